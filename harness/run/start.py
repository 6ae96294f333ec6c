"""What happens instead of a run: a printed plan, or a refusal that still leaves a result."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.text import Text

from harness.errors import GateError, Misconfigured
from harness.locations import Locations
from harness.plan.assign import propose
from harness.plan.build import build_plan
from harness.plan.render import as_json as plan_as_json
from harness.plan.render import as_text as plan_as_text
from harness.report.terminal import Progress, render_summary
from harness.run.finish import finish
from harness.run.journal import Journal
from harness.run.prepare import prepare
from harness.run.request import Request
from harness.run.session import blank_result, new_run_folder


def print_plan(request: Request, console: Console, *, as_json: bool) -> None:
    """Print the plan of every run of this session. Nothing is leased or launched; the engine is asked what it is."""
    quiet = Console(file=console.file, quiet=True)
    with Progress(quiet) as progress:
        journal = Journal(None, progress)
        prepared = prepare(request, journal, lambda _: None)
    allocation = propose(prepared.needs, prepared.machine, request.options, prepared.model_set)
    plans = [build_plan(prepared.inputs, allocation, buffer) for buffer in prepared.buffers]
    if as_json:
        text = "[" + ",\n".join(plan_as_json(plan) for plan in plans) + "]"
    else:
        text = "\n\n".join(plan_as_text(plan) for plan in plans)
    # Never wrapped: each command line can be copied into a shell.
    console.print(Text(text), soft_wrap=True)


def refused(name: str, locations: Locations, error: GateError, console: Console, inherited: Mapping[str, str]) -> int:
    """Say why nothing was started, leave a result where one can be left, and return the exit code."""
    run_id, folder, unwritable = "", None, ""
    try:
        run_id, folder = new_run_folder(locations, name)
    except Misconfigured as second:
        unwritable = str(second)
    result = blank_result(name, run_id, folder)
    result.verdict, result.reason, result.root_line = error.verdict, str(error), error.root_line
    if folder is not None:
        with Progress(Console(file=console.file, quiet=True)) as progress:
            result = finish(result, Journal(folder, progress), folder, inherited, keep_logs=True)
    render_summary(result, console)
    if unwritable:
        console.print(Text(f"  {unwritable}"), soft_wrap=True)
    return error.verdict.exit_code
