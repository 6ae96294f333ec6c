"""Whatever ends a run, turned into its verdict."""

from __future__ import annotations

import errno
import traceback
from collections.abc import Callable
from datetime import date
from pathlib import Path

from harness.errors import EngineFailed, GateError
from harness.expectations import Context, apply
from harness.run.blame import disk_is_full
from harness.run.execute import Run
from harness.runtime.logs import root_error
from harness.verdict import Verdict


def concluded(run: Run, body: Callable[[], None]) -> None:
    """Run ``body`` and turn whatever ends it into a verdict on ``run.result``; never raises."""
    result = run.result
    try:
        body()
    except GateError as error:
        result.verdict, result.reason = error.verdict, str(error)
        result.root_line = error.root_line
        result.log = str(error.log) if error.log else None
        if result.root_line is None and error.log is not None and (root := root_error(error.log)) is not None:
            result.root_line = root.line
        if isinstance(error, EngineFailed) and disk_is_full(run.run_dir):
            result.verdict = Verdict.INFRA
            result.reason = f"The disk of {run.run_dir} is full, so what followed says nothing of the engine: {error}"
    except KeyboardInterrupt:
        result.verdict, result.reason = Verdict.INTERRUPTED, "Interrupted; everything this run started was ended."
    except OSError as error:
        result.verdict, result.reason = Verdict.INFRA, f"The machine refused: {error}{_remedy(error)}."
        _keep_traceback(run)
    except Exception as error:  # noqa: BLE001 - a bug of ours must still leave a result that says so
        result.verdict = Verdict.INFRA
        result.reason = f"The harness itself failed ({type(error).__name__}: {error}); see {_keep_traceback(run)}."
    _consider_expectations(run)


def _consider_expectations(run: Run) -> None:
    """Rename a known refusal, and a pass that should have been one; a run that never met an engine is left alone."""
    result = run.result
    if not result.engine:
        return
    context = Context(result.deployment, str(result.engine["platform"]), str(result.engine["vllm"]), result.model_set)
    outcome = apply(result.verdict, result.root_line, context, date.today(), run.request.expectations)
    result.verdict, result.finding = outcome.verdict, outcome.finding
    result.reason = outcome.reason or result.reason
    if outcome.finding is not None and outcome.finding != result.reason:
        run.journal.note(outcome.finding)


def _remedy(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "; free some space there, or choose another place with --runs-dir"
    return ""


def _keep_traceback(run: Run) -> Path:
    path = run.run_dir / "logs" / "harness-traceback.log"
    try:
        path.write_text(traceback.format_exc(), "utf-8")
    except OSError:
        run.journal.event("traceback", text=traceback.format_exc())
    return path
