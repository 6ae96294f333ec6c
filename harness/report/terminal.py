"""What a run says on the terminal: live phase progress, then a summary that starts with the verdict.

Everything is printed as `rich.text.Text`, never as markup: text from servers cannot style, or break, the page.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self, TextIO

from rich import box
from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from harness.facts import CheckResult
from harness.report.figures import FigureRow, facts_line, figure_rows
from harness.report.plaintext import one_line, plain
from harness.result import Result
from harness.verdict import Verdict

VERDICT_STYLE = {
    Verdict.PASS: "green",
    Verdict.REGRESSION: "red",
    Verdict.MISCONFIGURED: "magenta",
    Verdict.INFRA: "yellow",
    Verdict.UNSUPPORTED: "cyan",
    Verdict.INTERRUPTED: "yellow",
}
_INDENT = 2
_LABEL_WIDTH = 8
_LONGEST_DETAIL = 100
_SHOWN_HASH = 12
# Figures that are shown even where nothing was expected of them.
_HEADLINE = frozenset({"drafts", "draft_tokens", "accepted", "acceptance_length", "per_position"})
# Narrower than this nothing can be read; the text is allowed to run over instead.
_NARROWEST = 20
_ASCII = str.maketrans({"✓": "ok", "✗": "FAILED", "·": "-", "±": "+-", "…": "..."})


def console_for(stream: TextIO, environment: Mapping[str, str]) -> Console:
    """A console on ``stream``. Under ``CI`` it is plain even on a terminal: CI agents run their jobs on one."""
    plain_lines = environment.get("CI", "").lower() in ("true", "1")
    return Console(file=stream, highlight=False, force_terminal=False if plain_lines else None)


class Progress:
    """Phases of a run as they happen: a spinner on a terminal, plain lines without ANSI or clock times elsewhere.

    >>> with Progress(console) as progress, progress.phase("ready"):
    ...     progress.detail("decode-0 ready (2.1 s)")

    ``clock`` returns seconds. Phases may nest; they are not for use from several threads.
    """

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._live: Live | None = None
        self._open: list[str] = []
        self._last_detail = ""
        self._last_quarter = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop_spinner()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Show ``name`` as running, then as one line with its seconds; left by an exception, it is marked failed."""
        began = self._clock()
        self._open.append(name)
        self._forget_detail()
        self._spin(name)
        ok = False
        try:
            yield
            ok = True
        finally:
            self._open.pop()
            self._forget_detail()
            if self._open:
                self._spin(self._open[-1])
            else:
                self._stop_spinner()
            line = (
                Text()
                .append_text(_mark(ok))
                .append(f" {one_line(name)} ")
                .append(f"{self._clock() - began:.1f} s", style="dim")
            )
            _print(self._console, line)

    def detail(self, text: str) -> None:
        """A milestone inside the phase: next to the spinner on a terminal, a line of its own elsewhere."""
        text = one_line(text, _LONGEST_DETAIL)
        if text == self._last_detail:
            return
        self._last_detail = text
        if self._console.is_interactive:
            self._spin(self._open[-1] if self._open else "", text)
        else:
            _print(self._console, Text(f"  {text}"))

    def count(self, done: int, total: int, what: str) -> None:
        """Progress by numbers (``40 of 80 requests``); where lines stay, only one for each quarter is written."""
        quarter = 4 * done // total if total else 0
        if self._console.is_interactive or quarter > self._last_quarter:
            self._last_quarter = quarter
            self.detail(f"{done} of {total} {what}")

    def note(self, text: str) -> None:
        """A line that stays, wherever the output goes."""
        _print(self._console, Text(f"  {one_line(text)}"))

    def _forget_detail(self) -> None:
        self._last_detail = ""
        self._last_quarter = 0

    def _spin(self, name: str, detail: str = "") -> None:
        if not self._console.is_interactive:
            return
        label = Text(one_line(name), no_wrap=True, overflow="ellipsis").append(f"  {detail}", style="dim")
        spinner = Spinner("line" if self._console.options.ascii_only else "dots", _encodable(self._console, label))
        if self._live is None:
            live = Live(spinner, console=self._console, transient=True, refresh_per_second=8)
            self._live = live
            live.start()
            # Live hides the cursor; after a SIGKILL nobody would bring it back.
            self._console.show_cursor(True)
        else:
            self._live.update(spinner)

    def _stop_spinner(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()


def render_summary(result: Result, console: Console) -> None:
    """Print ``result`` for a reader, verdict first and the next command last.

    Prose and tables keep to the console's width. A path, a command or a log line stays in one piece, to be copied.
    """
    _print_verdict(result, console)
    _print_figures(figure_rows(result), console)
    _print_checks(result.checks, console, passed_in_full=result.verdict is Verdict.PASS)
    if result.phases:
        ended = {"done": "", "failed": " (failed)", "open": " (not finished)"}
        phases = " · ".join(f"{one_line(p.name)} {p.seconds:.1f} s{ended[p.state]}" for p in result.phases)
        _print_field("phases", f"{phases} · wall {result.wall_seconds:.1f} s", console)
    for label, text in _about(result):
        _print_field(label, text, console)
    if result.run_dir:
        _print(console, _label("run").append(one_line(result.run_dir)))
    if result.next_step:
        _print(console, _label("next").append(one_line(result.next_step), style="bold"))


def _print_verdict(result: Result, console: Console) -> None:
    style = VERDICT_STYLE[result.verdict]
    title = Text(f" {result.verdict.upper()} ", style=f"bold reverse {style}")
    console.print()
    _print(console, title.append_text(Text(f"  {one_line(result.deployment)}", style="bold not reverse")))
    _print_wrapped(console, Text(one_line(result.reason)))
    if result.root_line:
        for line in plain(result.root_line).splitlines():
            _print(console, Text(f"  > {line.rstrip()}", style=style))
    if result.log:
        _print(console, Text(f"  {'in' if result.root_line else 'log'} {one_line(result.log)}", style="dim"))
    if result.retried:
        _print_wrapped(console, Text("The first attempt ended in infra; this is the retry."))
    if result.not_judged:
        _print_wrapped(console, Text(f"Not judged: {', '.join(map(one_line, result.not_judged))}", style="yellow"))


def _print_figures(all_rows: Sequence[FigureRow], console: Console) -> None:
    """What was judged by value. The rest is said by the checks in words, and kept in result.json and report.html."""
    rows = [row for row in all_rows if row.expected or row.name.partition("[")[0] in _HEADLINE]
    if not rows:
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), highlight=False)
    table.add_column("figure", overflow="fold")
    for column in ("measured", "expected", "tolerance"):
        table.add_column(column, justify="right", overflow="fold")
    table.add_column("")
    for row in rows:
        ok = Text() if row.ok is None else _encodable(console, _mark(row.ok))
        texts = (row.name, row.measured, row.expected, row.tolerance)
        table.add_row(*(_encodable(console, Text(text)) for text in texts), ok)
    console.print(table, highlight=False)


def _print_checks(checks: Sequence[CheckResult], console: Console, *, passed_in_full: bool) -> None:
    """Failed checks with their evidence; those that passed with what they showed, or by name beside a failure."""
    if not checks:
        return
    failed = [check for check in checks if not check.ok]
    passed = [check for check in checks if check.ok]
    for check in failed:
        title = Text(" " * _INDENT).append_text(_mark(False)).append(f" {one_line(check.name)}", style="bold")
        _print(console, title.append(f"  {check.verdict}", style="dim"))
        _print_wrapped(console, Text(one_line(check.summary)), indent=2 * _INDENT)
        if check.figures:
            _print_wrapped(console, Text(facts_line(check.figures), style="dim"), indent=2 * _INDENT)
        for evidence in check.evidence:
            for line in plain(evidence).splitlines():
                _print(console, Text(f"    > {line.rstrip()}"))
    count = f"{len(passed)} of {len(checks)} passed"
    if passed_in_full:
        width = max(len(one_line(check.name)) for check in passed) if passed else 0
        for check in passed:
            head = Text(" " * _INDENT).append_text(_mark(True)).append(f" {one_line(check.name):<{width}}  ")
            _print_wrapped(console, Text(one_line(check.summary), style="dim"), head=_encodable(console, head))
        _print_field("checks", count, console)
        return
    names = ", ".join(one_line(check.name) for check in passed)
    _print_field("checks", f"{count}: {names}" if names else count, console)


def _about(result: Result) -> Iterator[tuple[str, str]]:
    """The lines that say what was run, as (label, text); empty ones are left out."""
    ran = {
        "models": result.model_set,
        "kv buffer": result.kv_buffer,
        "launch": result.launch,
        "router": result.router,
        "reference": result.reference,
        "reference from": result.reference_from and f"run {result.reference_from}",
    }
    yield "ran", " · ".join(f"{name} {one_line(value)}" for name, value in ran.items() if value)
    for note in result.notes:
        yield "note", one_line(note)
    yield "models", ", ".join(one_line(model) for model in result.models)
    yield "workload", facts_line(result.workload | _short_hash(result.workload))
    yield "engine", facts_line(_short(result.engine))
    yield "hardware", facts_line(_short(result.hardware))
    for changes, servers in _by_value(result.adjustments).items():
        made = ", ".join(one_line(change) for change in changes) or "nothing"
        yield "adjusted", f"{', '.join(map(one_line, servers))}: {made}"


def _short_hash(workload: Mapping[str, str | int]) -> dict[str, str | int]:
    """Enough of the workload's hash to tell two of them apart by eye."""
    return {"hash": str(workload["hash"])[:_SHOWN_HASH]} if "hash" in workload else {}


def _by_value(adjustments: Mapping[str, Sequence[str]]) -> dict[tuple[str, ...], list[str]]:
    """Servers by what was changed in them: usually the same in all."""
    servers: dict[tuple[str, ...], list[str]] = {}
    for server, changes in adjustments.items():
        servers.setdefault(tuple(changes), []).append(server)
    return servers


def _short(values: dict[str, object]) -> dict[str, object]:
    """Without what only a program can use; result.json keeps it."""
    return {name: value for name, value in values.items() if name not in ("fingerprint", "flags", "environment")}


def _print_field(label: str, text: str, console: Console) -> None:
    if text:
        _print_wrapped(console, Text(text), head=_label(label))


def _label(label: str) -> Text:
    return Text(" " * _INDENT).append(f"{label:<{_LABEL_WIDTH}} ", style="dim")


def _print_wrapped(console: Console, text: Text, *, indent: int = _INDENT, head: Text | None = None) -> None:
    """``text`` within the console's width, behind ``head`` or ``indent``; the lines that follow are aligned."""
    head = Text(" " * indent) if head is None else head
    margin = Text(" " * len(head))
    lines = _encodable(console, text).wrap(console, max(console.width - len(head), _NARROWEST), overflow="fold")
    for line in lines:
        line.rstrip()
        _print(console, head + line)
        head = margin


def _print(console: Console, text: Text) -> None:
    """One line, whatever its length: a wrapped path or command cannot be copied."""
    console.print(_encodable(console, text), highlight=False, soft_wrap=True)


def _mark(ok: bool) -> Text:
    return Text("✓", style="green") if ok else Text("✗", style="red")


def _encodable(console: Console, text: Text) -> Text:
    """``text`` with what the console cannot encode replaced: a ``✓`` on an ASCII stream would end the run."""
    if console.options.ascii_only:
        shown = Text(style=text.style)
        for part in text.divide(sorted({edge for span in text.spans for edge in (span.start, span.end)})):
            style = part.spans[0].style if part.spans else ""
            ascii_text = part.plain.translate(_ASCII).encode("ascii", "replace").decode("ascii")
            shown.append(ascii_text, style=style)
        return shown
    return text
