"""report.html: one run on one page, self-contained, no script, nothing fetched from anywhere."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePath
from statistics import median
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from harness.facts import RequestFacts
from harness.report.figures import figure_rows, scalars
from harness.report.plaintext import one_line, plain
from harness.report.template import TEMPLATE
from harness.result import RESULT_NAME, Phase, Result

# A browser copes with a few thousand rows and a few megabytes; requests.jsonl and the logs hold the rest.
_MOST_REQUESTS = 1000
_LONGEST_TAIL = 200_000
_LONGEST_TEXT = 4000


def render_html(
    result: Result,
    requests: Sequence[RequestFacts],
    log_tails: Mapping[str, str],
    *,
    secrets: Collection[str] = (),
) -> str:
    """The page. ``log_tails``: the last lines of each log by file name; the log to blame is shown open.

    ``secrets`` are values to mask wherever they stand (`harness.report.redact.secrets_in`).
    """
    blamed = PurePath(result.log).name if result.log else None
    return _TEMPLATE.render(
        result=result,
        log_href=_relative_href(result.log, result.run_dir),
        result_href=RESULT_NAME,
        figures=figure_rows(result),
        failed=[check for check in result.checks if not check.ok],
        passed=[check for check in result.checks if check.ok],
        phases=_bars(result.phases),
        about=_about(result),
        tables={"Engine": scalars(result.engine), "Hardware": scalars(result.hardware)},
        baseline=scalars(result.baseline),
        cleanup=scalars(result.cleanup),
        requests=[_request_row(request) for request in requests[:_MOST_REQUESTS]],
        requests_line=_requests_line(requests),
        more_requests=max(0, len(requests) - _MOST_REQUESTS),
        tails=[
            {"name": name, "text": tail[-_LONGEST_TAIL:], "open": name == blamed} for name, tail in log_tails.items()
        ],
        scalars=scalars,
        secrets=secrets,
    )


@pass_context
def _finalize(context: Context, value: object) -> object:
    """Every value that the template prints passes here, so no expression can forget to be cleaned."""
    return plain(value, context["secrets"]) if isinstance(value, str) and not isinstance(value, Markup) else value


_TEMPLATE = Environment(
    autoescape=True, finalize=_finalize, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
).from_string(TEMPLATE)


def _relative_href(path: str | None, run_dir: str) -> str | None:
    """A link that still works when the run folder is moved or uploaded; None for a path outside of it."""
    if path is None:
        return None
    target = PurePath(path)
    if not target.is_absolute():
        target = PurePath(run_dir) / target
    if not target.is_relative_to(run_dir) or ".." in target.parts:
        return None
    return f"./{quote(target.relative_to(run_dir).as_posix())}"


def _bars(phases: Sequence[Phase]) -> list[dict[str, Any]]:
    """Each phase with where its bar begins and how long it is, in percent of all phases."""
    total = sum(phase.seconds for phase in phases) or 1.0
    bars: list[dict[str, Any]] = []
    begin = 0.0
    for phase in phases:
        bars.append({"phase": phase, "left": 100 * begin / total, "width": 100 * phase.seconds / total})
        begin += phase.seconds
    return bars


def _about(result: Result) -> dict[str, str]:
    about = {
        "model set": result.model_set,
        "models": ", ".join(result.models),
        "KV buffer": result.kv_buffer,
        "launch": result.launch,
        "router": result.router,
        "reference": result.reference,
        "reference from": result.reference_from and f"run {result.reference_from}",
        **{f"workload {name}": str(value) for name, value in result.workload.items()},
        **{f"adjusted on {server}": ", ".join(made) or "nothing" for server, made in result.adjustments.items()},
        "not judged": ", ".join(result.not_judged),
        "notes": ", ".join(result.notes),
        "retried": "once, after infra" if result.retried else None,
        "started": result.started_at,
        "wall": f"{result.wall_seconds:.1f} s",
        "harness": result.harness_version,
        "run": result.run_dir,
    }
    return {name: value for name, value in about.items() if value}


def _request_row(request: RequestFacts) -> dict[str, Any]:
    error = request.error or request.body_error
    steps = request.accepted_per_step
    return {
        "facts": request,
        "ok": request.status is not None and 200 <= request.status < 300 and error is None,
        "error": one_line(error, _LONGEST_TEXT) if error else None,
        "accepted": sum(steps) / len(steps) if steps else None,
        "text": (request.text or "")[:_LONGEST_TEXT],
    }


def _requests_line(requests: Sequence[RequestFacts]) -> str:
    if not requests:
        return "No request was sent."
    failed = sum(not _request_row(request)["ok"] for request in requests)
    durations = [request.duration_s for request in requests]
    return (
        f"{len(requests)} requests, {failed} failed; median {median(durations):.2f} s, longest {max(durations):.2f} s."
    )
