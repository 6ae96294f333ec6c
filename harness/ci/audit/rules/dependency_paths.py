"""Dependency paths that no file of the checkout can ever match: the trigger that was meant is dead."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from harness.ci.audit.model import Finding, Step
from harness.ci.audit.tree import SourceTree

RULE = "missing-dependency"


def check(tree: SourceTree) -> Iterator[Finding]:
    seen: set[tuple[str, int, str]] = set()
    for step in tree.pipelines.steps:
        for entry in step.own_dependencies:
            path = entry.value.removeprefix("!").rstrip("/")
            # An alias shares one list between steps: one wrong line is one finding.
            place = (step.file, entry.line, path)
            if place in seen or _matches(tree, step, entry.value):
                continue
            seen.add(place)
            yield Finding(
                RULE,
                step.file,
                entry.line,
                f"{entry.value} matches no file; {step.label!r} is never triggered by it",
                _hint(tree, path),
                f"{step.file}:{step.key or step.label}:{entry.value}",
            )


def _matches(tree: SourceTree, step: Step, entry: str) -> bool:
    path = entry.removeprefix("!").rstrip("/")
    if tree.exists(path):
        return True
    if step.semantics == "prefix":
        return any(candidate.startswith(entry) for candidate in tree.paths)
    # A path outside what was read (a file that a source distribution leaves out) is not judged.
    return not tree.knows(path)


def _hint(tree: SourceTree, path: str) -> str:
    partial = sorted(candidate for candidate in tree.paths if candidate.startswith(path))
    if any(character in path for character in "*?["):
        return "globs are not expanded: list the folder or the files"
    if partial:
        return f"whole path segments only: it is a partial name of {len(partial)} files such as {partial[0]}"
    name = path.rsplit("/", 1)[-1]
    same_name = sorted(candidate for candidate in tree.paths | tree.folders if candidate.rsplit("/", 1)[-1] == name)
    if same_name:
        return "the name exists as " + ", ".join(same_name[:3])
    folder = path.rpartition("/")[0]
    siblings = [candidate for candidate in tree.paths if candidate.rpartition("/")[0] == folder]
    near = difflib.get_close_matches(path, siblings, n=1, cutoff=0.8)
    return f"did you mean {near[0]}?" if near else ""
