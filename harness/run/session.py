"""One session: a deployment, once for each KV buffer device, each run with a folder and a result of its own."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

import harness
from harness.errors import Misconfigured
from harness.locations import MIB, Locations, make_usable
from harness.report.terminal import Progress, render_summary
from harness.result import Result, write_result
from harness.run.concluded import concluded
from harness.run.execute import Run
from harness.run.finish import finish, reserve
from harness.run.interrupts import listening
from harness.run.journal import Journal
from harness.run.prepare import prepare
from harness.run.request import Prepared, Request
from harness.verdict import Verdict

# Logs, metrics pages and facts of an ordinary run, with room for an engine that says more than usual.
_FREE_BYTES = 64 * MIB


def run_session(request: Request, console: Console, *, retry_infra: bool) -> list[Result]:
    """Run every variant; an ``infra`` verdict is tried again once if allowed, and the result says so."""
    results: list[Result] = []
    prepared: Prepared | None = None
    index = 0
    while True:
        result, prepared = _run_once(request, prepared, index, console)
        if result.verdict is Verdict.INFRA and retry_infra:
            console.print("Trying once more: infra says nothing about the engine.", markup=False, highlight=False)
            result, prepared = _run_once(request, prepared, index, console, retried=True)
        results.append(result)
        index += 1
        if prepared is None or index >= len(prepared.buffers) or result.verdict is Verdict.INTERRUPTED:
            return results


def new_run_folder(locations: Locations, name: str) -> tuple[str, Path]:
    """Run id and an empty folder for it, readable by this user only. Raises Misconfigured when it cannot be made."""
    remedy = "choose another one with --runs-dir"
    make_usable(locations.runs, "runs", remedy, free_bytes=_FREE_BYTES)
    safe = "".join(c if c.isalnum() or c in "-_." else "-" for c in name)[:60] or "unnamed"
    run_id = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{safe}-{secrets.token_hex(3)}"
    folder = locations.runs / run_id
    # Logs and requests of a private model are nobody else's business.
    make_usable(folder, "run", remedy, mode=0o700)
    try:
        (folder / "logs").mkdir()
        reserve(folder)
        # There from the first moment: a SIGKILL leaves this one behind.
        write_result(folder, blank_result(name, run_id, folder))
    except OSError as error:
        raise Misconfigured(f"The run folder {folder} cannot be written ({error.strerror}); {remedy}.") from error
    return run_id, folder


def blank_result(name: str, run_id: str, folder: Path | None) -> Result:
    """A result that is true until something better is known: the run ended before it was judged."""
    return Result(
        run_id=run_id,
        deployment=name,
        verdict=Verdict.INFRA,
        reason="The run ended before it was judged.",
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        harness_version=harness.__version__,
        run_dir=str(folder) if folder else "",
    )


def _run_once(
    request: Request, prepared: Prepared | None, index: int, console: Console, *, retried: bool = False
) -> tuple[Result, Prepared | None]:
    try:
        run_id, folder = new_run_folder(request.locations, request.deployment.name)
    except Misconfigured as error:
        # No place for a result: the terminal and the exit code say it.
        result = blank_result(request.deployment.name, "", None)
        result.verdict, result.reason, result.retried = error.verdict, str(error), retried
        render_summary(result, console)
        return result, prepared
    result = blank_result(request.deployment.name, run_id, folder)
    result.retried = retried
    known = prepared

    with Progress(console) as progress, listening(progress.note) as signals:
        journal = Journal(folder, progress)
        run = Run(request, result, folder, journal, progress, signals)

        def body() -> None:
            nonlocal known
            if known is None:
                known = prepare(request, journal, journal.detail)
            chosen = known.baselines[index]
            if chosen is not None:
                result.baseline = chosen.model_dump(mode="json")
            run.execute(known, index)

        concluded(run, body)
        with signals.ignored():
            shown = finish(result, journal, folder, request.inherited, keep_logs=request.options.keep_logs)
    render_summary(shown, console)
    return shown, known
