"""One session: a deployment, once for each KV buffer device, each run with a folder and a result of its own."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

import harness
from harness.facts import RequestFacts
from harness.locations import Locations, make_usable
from harness.report.html import render_html
from harness.report.redact import redact_json, secrets_in
from harness.report.terminal import Progress, render_summary
from harness.result import Result, write_atomically, write_result
from harness.run.execute import Run, concluded
from harness.run.interrupts import listening
from harness.run.journal import Journal
from harness.run.prepare import prepare
from harness.run.request import Prepared, Request
from harness.runtime.logs import tail
from harness.verdict import Verdict

# What a passing run keeps of each log unless --keep-logs; a failing run keeps everything.
_KEPT_LOG_BYTES = 1 << 20
_REPORT_TAIL_LINES = 60


def run_session(request: Request, console: Console, *, retry_infra: bool) -> list[Result]:
    """Run every variant; an ``infra`` verdict is tried again once if allowed, and the result says so."""
    results: list[Result] = []
    prepared: Prepared | None = None
    index = 0
    while True:
        result, prepared = _run_once(request, prepared, index, console)
        if result.verdict is Verdict.INFRA and retry_infra:
            console.print(f"infra: {result.reason} Trying once more.", markup=False, highlight=False)
            result, prepared = _run_once(request, prepared, index, console, retried=True)
        results.append(result)
        index += 1
        if prepared is None or index >= len(prepared.buffers) or result.verdict is Verdict.INTERRUPTED:
            return results


def new_run_folder(locations: Locations, name: str) -> tuple[str, Path]:
    """Run id and an empty folder for it, readable by this user only. Raises Misconfigured when it cannot be made."""
    make_usable(locations.runs, "runs")
    safe = "".join(c if c.isalnum() or c in "-_." else "-" for c in name)[:60] or "unnamed"
    run_id = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{safe}-{secrets.token_hex(3)}"
    folder = locations.runs / run_id
    # Logs and requests of a private model are nobody else's business.
    make_usable(folder, "run", mode=0o700)
    (folder / "logs").mkdir()
    return run_id, folder


def blank_result(name: str, run_id: str, folder: Path) -> Result:
    """A result that is true until something better is known: the run ended before it was judged."""
    return Result(
        run_id=run_id,
        deployment=name,
        verdict=Verdict.INFRA,
        reason="The run ended before it was judged.",
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        harness_version=harness.__version__,
        run_dir=str(folder),
    )


def _run_once(
    request: Request, prepared: Prepared | None, index: int, console: Console, *, retried: bool = False
) -> tuple[Result, Prepared | None]:
    run_id, folder = new_run_folder(request.locations, request.deployment.name)
    result = blank_result(request.deployment.name, run_id, folder)
    result.retried = retried
    # There from the first moment: a SIGKILL leaves this one behind.
    write_result(folder, result)
    known = prepared

    with Progress(console) as progress, listening(progress.note) as signals:
        journal = Journal(folder, progress)
        run = Run(request, result, folder, journal, progress, signals)

        def body() -> None:
            nonlocal known
            if known is None:
                known = prepare(request, journal, journal.detail)
            result.baseline = known.baselines[index].model_dump(mode="json")
            run.execute(known, index)

        concluded(run, body)
        with signals.ignored():
            _finish(request, result, journal, folder)
    render_summary(result, console)
    return result, known


def _finish(request: Request, result: Result, journal: Journal, folder: Path) -> None:
    """Write what is left behind. result.json comes first and alone decides; the report is a view of it."""
    result.phases = journal.phases
    result.wall_seconds = round(journal.wall_seconds, 3)
    result.next_step = next_step(result)
    if result.verdict is Verdict.PASS and not request.options.keep_logs:
        _shorten_logs(folder / "logs")
    secret = secrets_in(request.inherited)
    redacted = Result.model_validate(redact_json(result.model_dump(mode="json"), secret))
    _write(journal, "result.json", lambda: write_result(folder, redacted))
    journal.event("verdict", verdict=result.verdict.value, reason=redacted.reason)
    tails = {path.name: "\n".join(tail(path, _REPORT_TAIL_LINES)) for path in sorted((folder / "logs").glob("*.log"))}
    _write(
        journal,
        "report.html",
        lambda: write_atomically(
            folder / "report.html", render_html(redacted, _requests(folder), tails, secrets=secret)
        ),
    )
    journal.close()


def _write(journal: Journal, what: str, write: Callable[[], object]) -> None:
    try:
        write()
    except (OSError, ValueError) as error:
        # The verdict is on the terminal and in the exit code; a full disk must not turn it into a traceback.
        journal.note(f"{what} could not be written: {error}")


def _requests(folder: Path) -> list[RequestFacts]:
    path = folder / "requests.jsonl"
    if not path.is_file():
        return []
    with path.open(encoding="utf-8") as stream:
        return [RequestFacts.model_validate_json(line) for line in stream if line.endswith("\n")]


def _shorten_logs(logs: Path) -> None:
    for path in logs.glob("*.log"):
        size = path.stat().st_size
        if size > 2 * _KEPT_LOG_BYTES:
            with path.open("rb") as stream:
                head = stream.read(_KEPT_LOG_BYTES)
                stream.seek(size - _KEPT_LOG_BYTES)
                end = stream.read()
            left_out = f"\n... {size - 2 * _KEPT_LOG_BYTES} bytes left out of a passing run (--keep-logs) ...\n"
            path.write_bytes(head + left_out.encode() + end)


def next_step(result: Result) -> str | None:
    """The command to type next. Pure."""
    match result.verdict:
        case Verdict.PASS:
            return None
        case Verdict.REGRESSION | Verdict.UNSUPPORTED if result.log is not None:
            return f"less {result.log}"
        case Verdict.REGRESSION | Verdict.UNSUPPORTED:
            return f"python -m harness judge {result.run_dir}"
        case Verdict.MISCONFIGURED:
            return f"nox -s {result.deployment} -- --dry-run"
        case Verdict.INFRA | Verdict.INTERRUPTED:
            return "nox -s doctor"
