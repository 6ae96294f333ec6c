"""Steps that exist only as comments, and areas in which nothing is left to run. YAML cannot see either."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.ci.audit.model import Finding
from harness.ci.audit.tree import SourceTree, is_pipeline_file

RULE = "commented-step"
EMPTY_RULE = "empty-area"
_LABEL = re.compile(r"^\s*#\s*- label:\s*(?P<label>.+?)\s*$")
# What makes a commented `- label:` a step and not prose about one.
_BODY = re.compile(r"^\s*#\s+(commands|command|device|key|timeout_in_minutes|agent_pool|source_file_dependencies):")
# In lower case: `# Note: ...` is prose.
_FIELD = re.compile(r"^\s*#\s*-?\s*[a-z_][\w.]*:(\s|$)")
_OFF = re.compile(r"(disabled?|todo|temporar|skipp?|flaky|broken|blocked|re-?enable)", re.IGNORECASE)
REASON_LINES = 12


@dataclass(frozen=True)
class CommentedStep:
    """A step in comments. ``reason``: the sentence right above it, "" when nobody wrote one."""

    file: str
    line: int
    label: str
    reason: str


def commented_steps(file: str, text: str) -> list[CommentedStep]:
    """Every commented-out step of a pipeline file."""
    lines = text.split("\n")
    found = []
    for index, line in enumerate(lines):
        match = _LABEL.match(line)
        if match and _has_body(lines, index):
            label = re.sub(r"\s+#[^\"']*$", "", match["label"]).strip("\"'")
            found.append(CommentedStep(file, index + 1, label, _reason(lines, index)))
    return found


def _has_body(lines: Sequence[str], index: int) -> bool:
    for line in lines[index + 1 :]:
        if not line.lstrip().startswith("#") or _LABEL.match(line):
            return False
        if _BODY.match(line):
            return True
    return False


def _reason(lines: Sequence[str], index: int) -> str:
    """The prose above the step, nearest sentence block only: earlier steps' commented YAML is not a reason."""
    words: list[str] = []
    for line in reversed(lines[max(0, index - REASON_LINES) : index]):
        text = line.strip()
        if not text.startswith("#"):
            break
        prose = text.lstrip("#").strip()
        indented = len(text.lstrip("#")) - len(text.lstrip("#").lstrip()) > 1
        if not prose or indented or _FIELD.match(line) or prose.startswith("- "):
            break
        words.insert(0, prose)
    # A paragraph about the step often comes before the sentence that says why it is off.
    off = [place for place, prose in enumerate(words) if _OFF.match(prose)]
    return " ".join(words[off[-1] :] if off else words)


def check(tree: SourceTree) -> Iterator[Finding]:
    by_file: dict[str, list[CommentedStep]] = {}
    for path in sorted(tree.texts):
        if is_pipeline_file(path):
            steps = commented_steps(path, tree.texts[path])
            by_file[path] = steps
            for step in steps:
                reason = f"reason given: {step.reason}" if step.reason else "no reason given"
                yield Finding(RULE, path, step.line, f"{step.label!r} is commented out", reason, f"{path}:{step.label}")
    for area in tree.pipelines.areas:
        if area.active == 0:
            labels = [step.label for step in by_file.get(area.file, [])]
            detail = f"commented out: {'; '.join(labels)}" if labels else "the file defines no step at all"
            yield Finding(
                EMPTY_RULE,
                area.file,
                area.steps_line,
                f"area {area.name!r} has 0 active steps, {len(labels)} commented out",
                detail,
                area.file,
            )
