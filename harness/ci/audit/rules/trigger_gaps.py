"""Speculative, prefill/decode and parallel source files whose change starts no end-to-end job that could fail it.

A job counts when it runs on a pull request, can fail the build (no ``soft_fail``), runs on CUDA (on ROCm for AMD's own
files), and is end to end for the family's feature: it collects one of the family's test files, runs one of its scripts,
or evaluates a server whose arguments ask for it. Other tests do not count, even where one starts an engine with the
feature for a few tokens; neither does a nightly (``optional``) job. All of these are named in the detail.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.ci.audit.devices import device_of
from harness.ci.audit.model import Finding, Step
from harness.ci.audit.rules.device_skips import judge
from harness.ci.audit.rules.families import FAMILIES, Family
from harness.ci.audit.tree import Selected, SourceTree

RULE = "trigger-gap"
# A step and the texts of the server configurations that it evaluates.
Evaluation = tuple[Step, tuple[str, ...]]
_NAMES = {"cuda": "CUDA", "rocm": "ROCm"}
_AMD = re.compile(r"/amd/|rocm|aiter|moriio")
_RELATED = re.compile(r"spec decode|eagle|mtp|nixl|eplb|elastic|moriio|mooncake|kv connector", re.IGNORECASE)
# A test that starts an engine, and not a mock of one.
_ENGINE = ("LLM(", "vllm_runner", "VllmRunner(", "RemoteOpenAIServer(")
_EVALUATED = re.compile(r"--config-list-file[= ](\S+)")
# A file for one of these has its end-to-end job there, if anywhere; CUDA and ROCm jobs never load it.
_OTHER_PLATFORM = re.compile(r"/(?:cpu|xpu|tpu)/|_(?:cpu|xpu|tpu)\.py$")


def check(tree: SourceTree) -> Iterator[Finding]:
    sources = [
        path
        for path in sorted(tree.paths)
        if path.startswith("vllm/") and path.endswith(".py") and not _OTHER_PLATFORM.search(path)
    ]
    evaluated = _evaluated(tree)
    starting = _starting_an_engine(tree)
    for family in FAMILIES:
        pattern = re.compile(family.sources)
        paths = [path for path in sources if pattern.fullmatch(path) and not path.endswith("__init__.py")]
        if paths:
            yield from _gaps(tree, family, paths, evaluated, starting)


def end_to_end(tree: SourceTree, family: Family, evaluated: list[Evaluation]) -> list[Step]:
    """The active steps that run the family's feature with a real engine, wherever and whenever they run."""
    steps: dict[str, Step] = {}
    for prefix in family.tests:
        file_prefix, _, name = prefix.partition("::")
        for path, selections in tree.selections_by_file.items():
            if path.startswith(file_prefix):
                for selection in selections:
                    if _runs(tree, selection, path, name):
                        steps[f"{selection.step.where}{selection.step.label}"] = selection.step
    if family.scripts is not None:
        pattern = re.compile(family.scripts)
        for step in tree.pipelines.steps:
            if any(pattern.fullmatch(script) for script in tree.scripts_of[step.where]):
                steps[f"{step.where}{step.label}"] = step
    if family.commands is not None:
        wanted = re.compile(family.commands)
        for step in tree.pipelines.steps:
            if any(wanted.search(command.value) for command in step.commands):
                steps[f"{step.where}{step.label}"] = step
    if family.server is not None:
        served = re.compile(family.server)
        for step, texts in evaluated:
            if any(served.search(text) for text in texts):
                steps[f"{step.where}{step.label}"] = step
    return list(steps.values())


def _evaluated(tree: SourceTree) -> list[Evaluation]:
    """The steps that evaluate servers, with the texts of the configurations that their lists name."""
    found: list[Evaluation] = []
    for step in tree.pipelines.steps:
        names = [name for command in step.commands for name in _EVALUATED.findall(command.value)]
        texts = tuple(text for name in names for text in _configurations(tree, name.strip("\"'")))
        if texts:
            found.append((step, texts))
    return found


def _configurations(tree: SourceTree, name: str) -> Iterator[str]:
    """The texts of the server configurations that a list names; a shard's list is any shard's."""
    pattern = re.compile(r".*/" + re.sub(r"\\\$[\\$\w{}]+", r"\\w+", re.escape(name)))
    for path in tree.evaluation_files:
        if pattern.fullmatch(path):
            folder = path.rpartition("/")[0]
            for line in tree.texts[path].splitlines():
                yield tree.texts.get(f"{folder}/{line.strip()}", "")


def _starting_an_engine(tree: SourceTree) -> dict[str, str]:
    """The selected test files that start an engine with a drafter, with their text in lower case."""
    texts = {path: tree.texts.get(path, "") for path in tree.selections_by_file}
    return {
        path: text.lower()
        for path, text in texts.items()
        if "speculative_config" in text and any(start in text for start in _ENGINE)
    }


def _runs(tree: SourceTree, selection: Selected, path: str, name: str) -> bool:
    """Whether a selection may run a test of ``path`` whose name starts with ``name``."""
    module = tree.module(path)
    if module is None or selection.run.runner != "pytest":
        return True
    device = device_of(selection.step)
    return any(
        test.name.startswith(name) and judge(selection, path, test, device).runs is not False for test in module.tests
    )


def gating(step: Step, platform: str) -> bool:
    """Whether the step can fail a pull request on this platform."""
    device = device_of(step)
    return step.per_pr and not step.soft_fail and device is not None and device.platform == platform


def _gaps(
    tree: SourceTree, family: Family, paths: list[str], evaluated: list[Evaluation], starting: dict[str, str]
) -> Iterator[Finding]:
    jobs = end_to_end(tree, family, evaluated)
    places = {(job.where, job.label) for job in jobs}
    loading = _loading(tree, family, places, starting)
    for path in paths:
        started = tree.triggered_by(path)
        triggered = [step for step in started if (step.where, step.label) in places]
        platform = "rocm" if _AMD.search(path) else "cuda"
        if any(gating(step, platform) for step in triggered):
            continue
        others = [step for step in started if step.per_pr and (step.where, step.label) not in places]
        yield Finding(
            RULE,
            path,
            1,
            f"a change triggers no per-PR end-to-end {family.name} job on {_NAMES[platform]} that can fail it "
            f"(such jobs at all: {len(jobs)}; there and gating: {sum(gating(step, platform) for step in jobs)})",
            _detail(platform, jobs, triggered, others, loading),
            f"{family.name}:{path}",
        )


def _loading(
    tree: SourceTree, family: Family, places: set[tuple[str, str]], starting: dict[str, str]
) -> dict[tuple[str, str], list[str]]:
    """By step, the tests outside of the end-to-end ones that start an engine with the feature, if only for a moment."""
    found: dict[tuple[str, str], list[str]] = {}
    for path, text in starting.items():
        if family.word is None or family.word not in text:
            continue
        for selection in tree.selections_by_file[path]:
            place = (selection.step.where, selection.step.label)
            counts = any(gating(selection.step, platform) for platform in _NAMES)
            if counts and place not in places and _runs(tree, selection, path, ""):
                found.setdefault(place, []).append(path.rpartition("/")[2])
    return found


def _detail(
    platform: str,
    jobs: list[Step],
    triggered: list[Step],
    others: list[Step],
    loading: dict[tuple[str, str], list[str]],
) -> str:
    parts = []
    weak = list(dict.fromkeys(f"{step.label!r} ({_weakness(step)})" for step in triggered))
    if weak:
        parts.append("it does trigger " + ", ".join(weak[:4]) + (f" and {len(weak) - 4} more" if len(weak) > 4 else ""))
    missed = [step.label for step in jobs if step not in triggered and gating(step, platform)]
    if missed:
        parts.append("gating jobs that do not list it: " + "; ".join(missed[:3]) + (" ..." if len(missed) > 3 else ""))
    short = {step.label: loading[place] for step in others if (place := (step.where, step.label)) in loading}
    if short:
        named = [f"{label} ({', '.join(dict.fromkeys(names))})" for label, names in short.items()]
        parts.append("per-PR steps that start such an engine in other tests: " + "; ".join(named))
    related = [step.label for step in others if _RELATED.search(step.label) and step.label not in short]
    if related:
        parts.append("related per-PR steps, without the end-to-end tests: " + "; ".join(dict.fromkeys(related[:3])))
    return ". ".join(parts)


def _weakness(step: Step) -> str:
    if step.optional:
        return "nightly only"
    if step.soft_fail:
        return f"soft_fail, on {step.device}"
    return f"on {step.device} only"
