"""The reports of several runs as one: a merged JUnit file, and the annotation of a Buildkite build."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from pydantic import ValidationError

from harness.errors import Misconfigured
from harness.report.annotation import annotation, annotation_style, publish
from harness.report.junit import write_merged
from harness.result import Result, read_result
from harness.verdict import Verdict, worst

# What a reader opens after the annotation; logs of a failing run are whole, so the folder as such can be large.
ARTIFACTS = ("result.json", "junit.xml", "report.html", "plan.json", "facts.json", "logs/*.log")


def run_report(run_dirs: Sequence[Path], junit: Path | None, annotate: bool, allow: Collection[str] = ()) -> int:
    """Writes what is asked for; returns the exit code of the worst verdict. A folder without a result is ``infra``.

    ``allow``: deployments whose `unsupported` does not count here, as it did not fail their own step. Raises
    `Misconfigured` when nothing is asked for or a folder does not exist.
    """
    if junit is None and not annotate:
        raise Misconfigured("nothing to write: give --junit FILE, --annotation, or both")
    missing = [str(folder) for folder in run_dirs if not folder.is_dir()]
    if missing:
        raise Misconfigured(f"{missing[0]} is not a run folder")
    results = {folder.resolve(): read_or_none(folder) for folder in run_dirs}
    known = [result for result in results.values() if result is not None]
    if junit is not None:
        write_merged(list(run_dirs), junit)
        sys.stdout.write(f"{junit}: {len(results)} runs\n")
    if annotate:
        sys.stdout.write(_annotate(results, known) + "\n")
    lost = [folder.name for folder, result in results.items() if result is None]
    for name in lost:
        sys.stdout.write(f"{name} left no readable result.json\n")
    counted = [
        Verdict.PASS if result.verdict is Verdict.UNSUPPORTED and result.deployment in allow else result.verdict
        for result in known
    ]
    return worst(counted + [Verdict.INFRA for _ in lost]).exit_code


def _annotate(results: dict[Path, Result | None], known: Sequence[Result]) -> str:
    top = Path(os.path.commonpath([folder.parent for folder in results]))
    artifacts: dict[str, list[Path]] = {}
    for folder, result in results.items():
        if result is not None:
            artifacts[result.run_id] = [path for glob in ARTIFACTS for path in sorted(folder.glob(glob))]
    links = {run_id: [path.relative_to(top).as_posix() for path in paths] for run_id, paths in artifacts.items()}
    text = annotation(known, links)
    lost = [folder.name for folder, result in results.items() if result is None]
    if lost:
        text += f"\nWithout a readable result: {', '.join(f'`{name}`' for name in lost)}\n"
    style = "error" if lost else annotation_style(known)
    return publish(text, [path for paths in artifacts.values() for path in paths], top, style=style)


def read_or_none(folder: Path) -> Result | None:
    """The result of a run, or None where the run left none that can be read."""
    try:
        return read_result(folder)
    except (OSError, UnicodeDecodeError, ValidationError, Misconfigured):
        return None
