"""Tests that are selected but can never run: every device that selects them is one they skip on.

Two findings: ``skips-everything`` for a command of which nothing at all can run on that step's device (the job is
green because it is empty), and ``never-executes`` for a test function that every step which selects it skips, or
leaves out by ``-k``, ``-m`` or a node id. Only what is certain counts: a condition that cannot be told from the
checkout leaves the test as one that may run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.ci.audit.conditions import describe, holds
from harness.ci.audit.devices import Device, device_of
from harness.ci.audit.keywords import keyword_selects, marker_selects
from harness.ci.audit.marks import Skip, TestCase
from harness.ci.audit.model import Finding
from harness.ci.audit.tree import Selected, SourceTree

COMMAND_RULE = "skips-everything"
TEST_RULE = "never-executes"
_SKIP_WORDS = ("skip", "large_gpu_", "multi_gpu_", "gpu_tier", "single_gpu_only")
# Marks whose answer differs between devices of one platform.
_DEVICE_WORDS = (
    *("large_gpu_", "multi_gpu_", "gpu_tier_mark", "single_gpu_only", "device_count()", "capability"),
    *("on_gfx", "on_mi3", "mark.optional", "is_xpu", "is_cpu", "is_tpu"),
)


@dataclass(frozen=True)
class Verdict:
    """What one selection does with one test. ``runs`` None: not known. ``why`` explains a certain no."""

    runs: bool | None
    why: str


def skipped(test: TestCase, device: Device) -> tuple[bool | None, str]:
    """Whether ``test`` is certain to skip on ``device``, and the condition that does it."""
    unsure = False
    for skip in test.skips:
        answer = holds(skip.condition, device)
        if answer:
            return True, _because(skip)
        unsure = unsure or answer is None
    for case in test.cases:
        answers = [False if skip is None else holds(skip.condition, device) for skip in case]
        if answers and all(answers):
            return True, _because(next(skip for skip in case if skip is not None)) + " on every parameter"
        unsure = unsure or None in answers
    return (None if unsure else False), ""


def _because(skip: Skip) -> str:
    if skip.unconditional:
        return f"skipped unconditionally ({skip.reason or 'no reason'})"
    return f"skips when {describe(skip.condition)}" + (f" ({skip.reason})" if skip.reason else "")


def judge(selection: Selected, path: str, test: TestCase, device: Device | None) -> Verdict:
    """Whether ``selection`` runs ``test`` of the file ``path``."""
    nodes = selection.nodes.get(path)
    if nodes and not any(
        test.node == (bare := node.split("[")[0]) or test.node.startswith(bare + "::") for node in nodes
    ):
        return Verdict(False, "not among the node ids of the command")
    run = selection.run
    if run.runner != "pytest":
        return Verdict(None, "")
    answers: list[bool | None] = [True]
    if run.keyword is not None:
        kept = keyword_selects(run.keyword, path, test)
        if kept is False:
            return Verdict(False, f"left out by -k {run.keyword!r}")
        answers.append(kept)
    if run.marker is not None:
        kept = marker_selects(run.marker, test)
        if kept is False:
            return Verdict(False, f"left out by -m {run.marker!r}")
        answers.append(kept)
    if "optional" in test.marks and "--optional" not in run.other_options:
        return Verdict(False, "marked optional, and the command lacks --optional")
    if device is not None:
        skips, why = skipped(test, device)
        if skips:
            return Verdict(False, f"on {device.name}: {why}")
        answers.append(None if skips is None else True)
    else:
        answers.append(None)
    return Verdict(None if None in answers else True, "")


def check(tree: SourceTree) -> Iterator[Finding]:
    yield from _empty_commands(tree)
    yield from _unreachable_tests(tree)


def _empty_commands(tree: SourceTree) -> Iterator[Finding]:
    seen: set[tuple[str, int, str]] = set()
    for selection in tree.selections:
        step = selection.step
        device = device_of(step)
        if device is None or not selection.files or selection.run.runner != "pytest":
            continue
        reasons = _nothing_runs(tree, selection, device)
        place = (step.file, selection.command.line, device.name)
        if reasons is None or place in seen:
            continue
        seen.add(place)
        files = ", ".join(selection.files[:3]) + (" ..." if len(selection.files) > 3 else "")
        yield Finding(
            COMMAND_RULE,
            step.file,
            selection.command.line,
            f"{step.label!r}: every test of {files} is certain to skip on {device.name}",
            "; ".join(sorted(reasons)[:4]),
            f"{step.file}:{step.key or step.label}:{files}",
        )


def _nothing_runs(tree: SourceTree, selection: Selected, device: Device) -> set[str] | None:
    """Why nothing runs; None as soon as one test may."""
    reasons: set[str] = set()
    # Files without any skip first: one of them settles the question without a parse.
    for path in sorted(selection.files, key=lambda file: mentions_skip(tree.texts.get(file, ""))):
        if (
            not mentions_skip(tree.texts.get(path, ""))
            and selection.run.keyword is None
            and selection.run.marker is None
        ):
            return None
        module = tree.module(path)
        if module is None or not module.tests:
            return None
        for test in module.tests:
            verdict = judge(selection, path, test, device)
            if verdict.runs is not False:
                return None
            if verdict.why.startswith("on "):
                reasons.add(f"{test.node}: {verdict.why}")
    return reasons or None


def mentions_skip(text: str) -> bool:
    """Whether a test file can skip anything; without one of these words, every test in it runs."""
    return any(word in text for word in _SKIP_WORDS)


def _suspects(tree: SourceTree) -> list[str]:
    """The selected files in which a test may be unreachable; the others are settled by a look at the text."""
    return sorted(path for path, selections in tree.selections_by_file.items() if _suspicious(tree, path, selections))


def _suspicious(tree: SourceTree, path: str, selections: Sequence[Selected]) -> bool:
    text = tree.texts.get(path, "")
    whole = [s for s in selections if not s.nodes.get(path) and s.run.keyword is None and s.run.marker is None]
    if not whole:
        return True
    if not mentions_skip(text):
        return False
    if any(word in text for word in _DEVICE_WORDS):
        return True
    devices = [device_of(selection.step) for selection in whole]
    platforms = {device.platform for device in devices if device is not None}
    return None not in devices and not {"cuda", "rocm"} <= platforms


def _unreachable_tests(tree: SourceTree) -> Iterator[Finding]:
    by_file = tree.selections_by_file
    for path in _suspects(tree):
        module = tree.module(path)
        # A plain skip is visible in the file itself; `stale_skips` judges its reason.
        tests = [t for t in module.tests if not any(s.unconditional for s in t.skips)] if module is not None else []
        dead: list[TestCase] = []
        reasons: dict[str, str] = {}
        for test in tests:
            why = _never(by_file[path], path, test)
            if why is not None:
                dead.append(test)
                reasons = {**why, **reasons}
        if dead:
            shown = ", ".join(test.node for test in dead[:6]) + (f" and {len(dead) - 6} more" if len(dead) > 6 else "")
            every = "no test of the file" if len(dead) == len(tests) else f"{len(dead)} of {len(tests)} tests never"
            verb = "runs" if len(dead) == len(tests) else "run"
            yield Finding(
                TEST_RULE,
                path,
                dead[0].line,
                f"{every} {verb} in any of the {len(by_file[path])} commands that collect it: {shown}",
                "; ".join(f"{label}: {reason}" for reason, label in list(reasons.items())[:5]),
                path,
            )


def _never(selections: Sequence[Selected], path: str, test: TestCase) -> dict[str, str] | None:
    """By reason the label of a step that gives it; None when a selection may run the test."""
    reasons: dict[str, str] = {}
    for selection in selections:
        verdict = judge(selection, path, test, device_of(selection.step))
        if verdict.runs is not False:
            return None
        reasons.setdefault(verdict.why, selection.step.label)
    return reasons
