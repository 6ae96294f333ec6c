"""Speculative, prefill/decode and parallel source files whose change starts no end-to-end job that could fail it.

A job counts when it runs on a pull request, can fail the build (no ``soft_fail``), runs on CUDA or ROCm, and starts a
real engine for the family's feature: it collects one of the family's test files, or runs one of its scripts. Unit
tests do not count; neither does a nightly (``optional``) job. Both are named in the detail.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from harness.ci.audit.devices import device_of
from harness.ci.audit.model import Finding, Step
from harness.ci.audit.rules.device_skips import judge
from harness.ci.audit.tree import Selected, SourceTree

RULE = "trigger-gap"
GATING_PLATFORMS = frozenset({"cuda", "rocm"})


_RELATED = re.compile(r"spec decode|eagle|mtp|nixl|eplb|elastic|moriio|mooncake|kv connector", re.IGNORECASE)
# A file for one of these has its end-to-end job there, if anywhere; CUDA and ROCm jobs never load it.
_OTHER_PLATFORM = re.compile(r"/(?:cpu|xpu|tpu)/|_(?:cpu|xpu|tpu)\.py$")


@dataclass(frozen=True)
class Family:
    """A feature: the source files that implement it, and what counts as running it end to end.

    ``sources`` and ``scripts`` are regular expressions for whole paths, ``commands`` one that is searched in a step's
    commands (the sessions of this project); ``tests`` are path prefixes.
    """

    name: str
    sources: str
    tests: tuple[str, ...] = ()
    scripts: str | None = None
    commands: str | None = None


_E2E = "tests/v1/e2e/spec_decode/"
_MODELS = r"vllm/(?:model_executor/models|models)/"
FAMILIES = (
    Family(
        "EAGLE",
        rf"{_MODELS}(?:.*/)?\w*eagle\w*\.py|vllm/v1/spec_decode/eagle\.py|vllm/v1/worker/gpu/spec_decode/eagle/.*\.py"
        r"|vllm/transformers_utils/configs/eagle\.py",
        (f"{_E2E}eagle/", f"{_E2E}speculators/", "tests/v1/e2e/test_cpu_spec_decode.py"),
        commands=r"\bnox -s eagle3",
    ),
    Family(
        "MTP",
        rf"{_MODELS}(?:.*/)?(?:\w*_mtp|mtp\w*)\.py",
        (f"{_E2E}mtp/", f"{_E2E}test_mtp_parallel_load.py", f"{_E2E}acceptance_rates/mtp_other/"),
        r".*_mtp_\w*\.sh",
        commands=r"\bnox -s (?:mtp|\S+-mtp)\b",
    ),
    Family(
        "DFlash",
        rf"{_MODELS}(?:.*/)?\w*dflash\w*\.py|vllm/v1/(?:.*/)?\w*dflash\w*(?:/.*)?\.py",
        (f"{_E2E}acceptance_rates/dflash/",),
    ),
    Family(
        "DSpark",
        rf"{_MODELS}(?:.*/)?\w*dspark\w*\.py|vllm/v1/(?:.*/)?\w*dspark\w*(?:/.*)?\.py",
        (f"{_E2E}acceptance_rates/dspark/",),
    ),
    Family(
        "speculators configuration",
        r"vllm/transformers_utils/configs/speculators/.*\.py|vllm/config/speculative\.py",
        (_E2E,),
    ),
    Family(
        "speculation",
        r"vllm/v1/spec_decode/.*\.py|vllm/v1/worker/gpu/spec_decode/.*\.py|vllm/v1/sample/rejection_sampler\.py",
        (_E2E,),
    ),
    Family(
        "prefill/decode over NIXL",
        r"vllm/distributed/kv_transfer/kv_connector/v1/nixl/.*\.py|vllm/v1/worker/kv_connector_model_runner_mixin\.py"
        r"|vllm/distributed/kv_transfer/kv_connector/(?:base|factory|utils)\.py"
        r"|vllm/distributed/kv_transfer/kv_connector/v1/(?:base|ssm_conv_transfer_utils)\.py",
        ("tests/v1/kv_connector/nixl_integration/", "tests/v1/kv_connector/nixl_push_integration/"),
        r"tests/v1/kv_connector/nixl(?:_push)?_integration/.*\.sh",
        commands=r"\bnox -s \S+-pd\b",
    ),
    Family(
        "prefill/decode over NIXL with speculation",
        r"vllm/distributed/kv_transfer/kv_connector/v1/nixl/.*\.py|vllm/v1/worker/kv_connector_model_runner_mixin\.py",
        ("tests/v1/kv_connector/nixl_integration/test_spec_decode_acceptance.py",),
        r"tests/v1/kv_connector/nixl_integration/.*spec_decode.*\.sh",
        commands=r"\bnox -s \S+-pd\b",
    ),
    Family(
        "prefill/decode over Mooncake",
        r"vllm/distributed/kv_transfer/kv_connector/v1/mooncake/.*\.py",
        ("tests/v1/kv_connector/mooncake_integration/",),
        r"tests/v1/kv_connector/mooncake_integration/.*\.sh",
    ),
    Family(
        "prefill/decode over MoRIIO",
        r"vllm/distributed/kv_transfer/kv_connector/v1/moriio/.*\.py",
        ("tests/v1/kv_connector/moriio_integration/",),
        r"tests/v1/kv_connector/moriio_integration/.*\.sh",
    ),
    Family(
        "expert load balancing", r"vllm/distributed/eplb/.*\.py|vllm/v1/worker/gpu/eplb_utils\.py", (), r".*eplb\w*\.sh"
    ),
    Family(
        "expert load balancing with speculation",
        r"vllm/distributed/eplb/.*\.py|vllm/v1/worker/gpu/eplb_utils\.py",
        ("tests/distributed/test_eplb_spec_decode.py::test_eplb_spec_decode", f"{_E2E}test_mtp_parallel_load.py"),
        r".*mtp_async_eplb\.sh",
        commands=r"\bnox -s ep2-eplb\b",
    ),
    Family(
        "elastic expert parallelism", r"vllm/distributed/elastic_ep/.*\.py", ("tests/distributed/test_elastic_ep.py",)
    ),
    Family(
        "pipeline parallelism",
        r"vllm/distributed/parallel_state\.py|vllm/v1/executor/\w*\.py|vllm/v1/worker/gpu/pp_\w*\.py",
        ("tests/distributed/test_pipeline_parallel.py", "tests/distributed/test_pp_"),
        commands=r"\bnox -s pp2\b",
    ),
    Family(
        "data parallelism",
        r"vllm/v1/engine/coordinator\.py|vllm/v1/worker/dp_utils\.py|vllm/v1/worker/gpu/dp_utils\.py",
        ("tests/v1/distributed/", "tests/distributed/test_data_parallel"),
        commands=r"\bnox -s dp2\b",
    ),
)


def check(tree: SourceTree) -> Iterator[Finding]:
    sources = [
        path
        for path in sorted(tree.paths)
        if path.startswith("vllm/") and path.endswith(".py") and not _OTHER_PLATFORM.search(path)
    ]
    for family in FAMILIES:
        pattern = re.compile(family.sources)
        paths = [path for path in sources if pattern.fullmatch(path) and not path.endswith("__init__.py")]
        if paths:
            yield from _gaps(tree, family, paths)


def end_to_end(tree: SourceTree, family: Family) -> list[Step]:
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
    return list(steps.values())


def _runs(tree: SourceTree, selection: Selected, path: str, name: str) -> bool:
    """Whether a selection may run a test of ``path`` whose name starts with ``name``."""
    module = tree.module(path)
    if module is None or selection.run.runner != "pytest":
        return True
    device = device_of(selection.step)
    return any(
        test.name.startswith(name) and judge(selection, path, test, device).runs is not False for test in module.tests
    )


def gating(step: Step) -> bool:
    """Whether the step can fail a pull request on an accelerator."""
    device = device_of(step)
    return step.per_pr and not step.soft_fail and device is not None and device.platform in GATING_PLATFORMS


def _gaps(tree: SourceTree, family: Family, paths: list[str]) -> Iterator[Finding]:
    jobs = end_to_end(tree, family)
    places = {(job.where, job.label) for job in jobs}
    for path in paths:
        started = tree.triggered_by(path)
        triggered = [step for step in started if (step.where, step.label) in places]
        if any(gating(step) for step in triggered):
            continue
        others = [step for step in started if step.per_pr and (step.where, step.label) not in places]
        yield Finding(
            RULE,
            path,
            1,
            f"a change triggers no per-PR end-to-end {family.name} job on CUDA or ROCm that can fail it "
            f"(such jobs at all: {len(jobs)}; gating pull requests: {sum(gating(step) for step in jobs)})",
            _detail(jobs, triggered, others),
            f"{family.name}:{path}",
        )


def _detail(jobs: list[Step], triggered: list[Step], others: list[Step]) -> str:
    parts = []
    weak = [f"{step.label!r} ({_weakness(step)})" for step in triggered]
    if weak:
        parts.append("it does trigger " + ", ".join(weak[:4]) + (f" and {len(weak) - 4} more" if len(weak) > 4 else ""))
    missed = [step.label for step in jobs if step not in triggered and gating(step)]
    if missed:
        parts.append("gating jobs that do not list it: " + "; ".join(missed[:3]) + (" ..." if len(missed) > 3 else ""))
    related = [step.label for step in others if _RELATED.search(step.label)]
    if related:
        parts.append("related per-PR steps, without the end-to-end tests: " + "; ".join(dict.fromkeys(related[:3])))
    return ". ".join(parts)


def _weakness(step: Step) -> str:
    if step.optional:
        return "nightly only"
    if step.soft_fail:
        return f"soft_fail, on {step.device}"
    return f"on {step.device} only"
