"""Test files that no command of any active step collects: they pass review, merge, and never run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from harness.ci.audit.model import Finding
from harness.ci.audit.rules.commented_steps import commented_steps
from harness.ci.audit.tree import SourceTree, is_pipeline_file

RULE = "unselected-test"
ALLOWLIST = "tools/pre_commit/test_tethering_allowlist.txt"


def check(tree: SourceTree) -> Iterator[Finding]:
    selected = {path for selection in tree.selections for path in selection.files}
    known = allowlist(tree.texts.get(ALLOWLIST, ""))
    comments = _commented_lines(tree)
    for path in tree.test_files:
        if path not in selected:
            notes = [f"known upstream: {known[path]}"] if path in known else []
            named = _named_in_comments(tree, path, comments)
            if named:
                notes.append(f"named only in a commented-out step: {named}")
            yield Finding(RULE, path, 1, "no active step collects this test file", "; ".join(notes), path)


def allowlist(text: str) -> Mapping[str, str]:
    """Path to reason, from the checkout's own list of known gaps."""
    entries: dict[str, str] = {}
    for line in text.split("\n"):
        path, _, reason = line.partition("#")
        if path.strip():
            entries[path.strip()] = reason.strip() or "no reason"
    return entries


def _commented_lines(tree: SourceTree) -> list[tuple[str, int, str]]:
    """File, line and text of every comment of the pipeline files."""
    return [
        (file, index + 1, line)
        for file in sorted(tree.texts)
        if is_pipeline_file(file)
        for index, line in enumerate(tree.texts[file].split("\n"))
        if line.lstrip().startswith("#")
    ]


def _named_in_comments(tree: SourceTree, path: str, comments: list[tuple[str, int, str]]) -> str | None:
    """The label of a commented-out step whose commands name the file itself."""
    short = path.removeprefix("tests/")
    for file, number, line in comments:
        if short in line:
            owner = [step for step in commented_steps(file, tree.texts[file]) if step.line <= number]
            if owner:
                return f"{owner[-1].label!r} ({file}:{owner[-1].line})"
    return None
