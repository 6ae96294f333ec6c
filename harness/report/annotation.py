"""The Buildkite annotation: what a reviewer sees on the build page without opening a log."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from harness.files import write_atomically
from harness.report.figures import FigureRow, figure_rows
from harness.report.plaintext import one_line, plain
from harness.result import Result
from harness.verdict import Verdict, worst

ANNOTATION_NAME = "annotation.md"
_AGENT = "buildkite-agent"
_CONTEXT = "spec-decode-gate"
_AGENT_TIMEOUT_S = 120.0
# Buildkite refuses an annotation over 1 MiB, whole.
_LONGEST_MARKDOWN = 900_000
_LONGEST_QUOTE = 2000
_STYLE = {
    Verdict.PASS: "success",
    Verdict.REGRESSION: "error",
    Verdict.MISCONFIGURED: "error",
    Verdict.INFRA: "warning",
    Verdict.UNSUPPORTED: "warning",
    Verdict.INTERRUPTED: "warning",
}
_MARK = {True: "✓", False: "**✗**", None: ""}
# Whatever starts a Markdown or HTML construct in the middle of a line, `:` (emoji, links) and `@` (mentions) included.
_MARKUP = re.compile(r"[\\`*_{}\[\]|~:@$<>&\"']")
# The upload command takes globs joined by `;`: a name with one of these would upload something else.
_GLOB = re.compile(r"[*?\[\]{};\\]")

FindProgram = Callable[[str], str | None]


def annotation(results: Sequence[Result], artifacts: Mapping[str, Sequence[str]]) -> str:
    """Markdown for ``results``, the worst first. ``artifacts``: paths as they were uploaded, by run id."""
    if not results:
        return "**No run left a result.** Nothing was judged.\n"
    ranked = sorted(results, key=lambda result: result.verdict != worst([r.verdict for r in results]))
    lines = ["| verdict | deployment | reason | wall |", "|---|---|---|---:|"]
    lines += [
        f"| **{r.verdict.value}** | {_deployment(r)} | {_cell(r.reason)} | {r.wall_seconds:.0f} s |" for r in ranked
    ]
    first_error = next((r for r in ranked if r.verdict is not Verdict.PASS and r.root_line), None)
    if first_error is not None:
        lines += ["", f"First error, {_deployment(first_error)}:", "", *_quoted(first_error.root_line or "")]
    for result in ranked:
        lines += _section(result, artifacts.get(result.run_id, ()))
    text = "\n".join(lines) + "\n"
    if len(text.encode()) > _LONGEST_MARKDOWN:
        text = text.encode()[:_LONGEST_MARKDOWN].decode(errors="ignore") + "\n\n(cut: too long for an annotation)\n"
    return text


def annotation_style(results: Sequence[Result]) -> str:
    """The colour of the annotation: that of the worst verdict; nothing run is an error."""
    return _STYLE[worst([result.verdict for result in results])]


def publish(
    markdown: str, artifacts: Sequence[Path], folder: Path, *, style: str, find: FindProgram = shutil.which
) -> str:
    """Write annotation.md into ``folder``; where the Buildkite agent exists, upload ``artifacts`` and annotate too.

    ``artifacts`` lie under ``folder`` and are uploaded under their path relative to it, as `annotation` must link
    them. Returns one sentence on what was done; an agent that fails is reported in it and costs nothing else.
    Raises OSError when annotation.md cannot be written.
    """
    path = folder / ANNOTATION_NAME
    write_atomically(path, markdown)
    agent = find(_AGENT)
    if agent is None:
        return f"Annotation written to {path} ({_AGENT} is not on PATH)."
    names = [artifact.relative_to(folder).as_posix() for artifact in artifacts]
    sendable = [name for name in names if not _GLOB.search(name)]
    failures = [f"{name} has a glob character in its name" for name in names if name not in sendable]
    if sendable:
        failures += _run([agent, "artifact", "upload", ";".join(sendable)], folder)
    failures += _run([agent, "annotate", "--style", style, "--context", _CONTEXT], folder, markdown)
    if failures:
        return f"Annotation written to {path}, but {_AGENT} failed: {'; '.join(failures)}."
    return f"Annotation published, {len(sendable)} artifacts uploaded; a copy is {path}."


def _run(argv: Sequence[str], folder: Path, stdin: str = "") -> list[str]:
    """Run the agent; the returned list is empty, or holds the one line that says how it failed."""
    try:
        done = subprocess.run(
            argv, cwd=folder, input=stdin.encode(), capture_output=True, timeout=_AGENT_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [one_line(str(error), 200)]
    if done.returncode == 0:
        return []
    said = one_line(done.stderr.decode(errors="replace"), 200) or "it said nothing"
    return [f"`{argv[1]}` exited {done.returncode}: {said}"]


def _section(result: Result, artifacts: Sequence[str]) -> list[str]:
    rows = [row for row in figure_rows(result) if row.ok is not None]
    failed = [check for check in result.checks if not check.ok]
    lines: list[str] = []
    if rows:
        lines += ["", "| figure | measured | expected | tolerance | |", "|---|---:|---:|---:|---|"]
        lines += [_figure(row) for row in rows]
    if failed:
        lines += ["", *(f"- ✗ {_cell(check.name)}: {_cell(check.summary)}" for check in failed)]
    if result.not_judged:
        lines += ["", f"Not judged: {_cell(', '.join(result.not_judged))}"]
    if result.finding:
        lines += ["", _cell(result.finding)]
    if artifacts:
        lines += ["", " · ".join(f'<a href="artifact://{quote(path)}">{_cell(path)}</a>' for path in artifacts)]
    if not lines:
        return []
    # A pass is folded away; the blank lines make Buildkite read what is inside as Markdown.
    opened = "" if result.verdict is Verdict.PASS else " open"
    return [
        "",
        f"<details{opened}><summary>{result.verdict.value} {_deployment(result)}</summary>",
        *lines,
        "",
        "</details>",
    ]


def _deployment(result: Result) -> str:
    """Name and KV buffer, which tells two runs of one session apart."""
    return _cell(f"{result.deployment} ({result.kv_buffer})" if result.kv_buffer else result.deployment)


def _figure(row: FigureRow) -> str:
    cells = (row.name, row.measured, row.expected, row.tolerance)
    return f"| {' | '.join(_cell(cell) for cell in cells)} | {_MARK[row.ok]} |"


def _cell(text: str) -> str:
    """Text that cannot leave its table cell, start a link or become HTML."""
    # Character references, not backslashes: these are also read inside of HTML (`<summary>`), where Markdown is not.
    return _MARKUP.sub(lambda match: f"&#{ord(match[0])};", one_line(text, _LONGEST_QUOTE))


def _quoted(text: str) -> list[str]:
    """A code block whose fence is longer than any run of backticks inside."""
    body = plain(text)[:_LONGEST_QUOTE]
    longest = max((len(run) for run in re.findall(r"`+", body)), default=0)
    fence = "`" * max(3, longest + 1)
    return [fence, *body.splitlines(), fence]
