"""The commands `falsify` and `soak`, added to the command line of `harness.cli`."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from harness.deployments import DEPLOYMENTS
from harness.errors import GateError, Misconfigured
from harness.locations import locate
from harness.plan.types import Options
from harness.report.terminal import console_for

if TYPE_CHECKING:
    from harness.run.request import Request

_BASELINES = Path(__file__).resolve().parents[2] / "baselines.toml"

EngineOption = Annotated[str, typer.Option("--engine", help="auto, cpu, cuda, or an interpreter that has vLLM.")]
RunsOption = Annotated[Path | None, typer.Option("--runs-dir", help="Where run folders go (default: runs/).")]


def add_commands(app: typer.Typer) -> None:
    app.command()(falsify)
    app.command()(soak)


def falsify(
    engine: EngineOption = "auto",
    smoke: Annotated[bool, typer.Option("--smoke", help="A handful of mutations, for CI.")] = False,
    family: Annotated[str | None, typer.Option(help="Only this family: plan, drafter, counters, ...")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Only this mutation; may be repeated.")] = None,
    replay: Annotated[
        list[Path] | None, typer.Option(help="Judge a finished falsify folder again; may be repeated. Starts nothing.")
    ] = None,
    weaken: Annotated[
        list[str] | None, typer.Option(help="With --replay: take this check as always true; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcomes as JSON.")] = False,
    markdown: Annotated[Path | None, typer.Option(help="Write the tables as Markdown.")] = None,
    list_only: Annotated[bool, typer.Option("--list", help="Print the catalogue, start nothing.")] = False,
    runs_dir: RunsOption = None,
) -> None:
    """Break the deployment in every way the catalogue knows; each must be caught by the check that is there for it."""
    from harness.checks.registry import CHECKS
    from harness.falsify.session import BY_NAME, Selection, exit_code, read_again, run_catalogue, select
    from harness.falsify.session import as_json as outcomes_as_json
    from harness.falsify.table import as_markdown, print_catalogue, print_outcomes, print_weakened
    from harness.falsify.weaken import weaken_each

    console = console_for(sys.stdout, os.environ)
    try:
        if unknown := [name for name in weaken or () if name not in CHECKS]:
            raise Misconfigured(f"There is no check {unknown[0]!r}; known are {', '.join(CHECKS)}.")
        if weaken and not replay:
            raise Misconfigured("--weaken judges a finished falsify run again; name its folder with --replay.")
        chosen = select(Selection(smoke, family, tuple(only or ())))
        if list_only:
            print_catalogue(chosen, console)
            return
        if replay:
            outcomes = read_again(replay, frozenset(weaken or ()))
            folder = Path()
        else:
            folder, outcomes = run_catalogue(
                _request(engine, runs_dir), chosen, lambda text: _say(console, text, quiet=as_json)
            )
    except GateError as error:
        _say(console, f"{error.verdict.value}: {error}")
        raise typer.Exit(error.verdict.exit_code) from error
    weakened = weaken_each(BY_NAME, outcomes, folder) if not weaken else ()
    if as_json:
        console.print(outcomes_as_json(outcomes), markup=False, highlight=False, soft_wrap=True)
    else:
        print_outcomes(outcomes, console)
        if weakened:
            print_weakened(weakened, console)
    if markdown is not None:
        markdown.write_text(as_markdown(outcomes, weakened), "utf-8")
    code = exit_code(chosen if not replay else (), outcomes)
    whole = not (smoke or family or only)
    raise typer.Exit(code or int(whole and not all(one.noticed for one in weakened)))


def soak(
    name: Annotated[str, typer.Argument(help="A deployment; `nox --list` shows them.")],
    engine: EngineOption = "auto",
    runs: Annotated[int, typer.Option(min=1, help="Clean runs.")] = 20,
    fresh_every: Annotated[int, typer.Option(min=1, help="Runs on one pair of servers before it is replaced.")] = 10,
    runs_dir: RunsOption = None,
) -> None:
    """Repeat clean runs: no false alarm, and how far every figure spreads."""
    from harness.falsify.soak import print_soak, soak_runs

    console = console_for(sys.stdout, os.environ)
    try:
        if name not in DEPLOYMENTS:
            raise Misconfigured(f"There is no deployment {name!r}; known are {', '.join(sorted(DEPLOYMENTS))}.")
        soaked = soak_runs(
            _request(engine, runs_dir), DEPLOYMENTS[name], runs, fresh_every, lambda text: _say(console, text)
        )
    except GateError as error:
        _say(console, f"{error.verdict.value}: {error}")
        raise typer.Exit(error.verdict.exit_code) from error
    print_soak(soaked, _BASELINES, console)
    raise typer.Exit(0 if soaked.clean else 1)


def _request(engine: str, runs_dir: Path | None) -> Request:
    # Imported late: `--help` must not wait for numpy and the hub client.
    from harness.run.request import Request

    named = os.environ.get("SPEC_GATE_HOST_PYTHON")
    return Request(
        deployment=DEPLOYMENTS["eagle3-pd"],
        options=Options(models="tiny"),
        engine_choice=engine,
        host_python=Path(named) if named else Path(sys.executable),
        locations=locate(os.environ, runs_dir),
        baselines=_BASELINES,
        inherited=dict(os.environ),
        passed=frozenset(),
        offline=True,
        router_python=Path(sys.executable) if find_spec("vllm_router") is not None else None,
        lease_timeout_s=600.0,
        extra_environment={},
    )


def _say(console: Console, text: str, *, quiet: bool = False) -> None:
    if not quiet:
        console.print(Text(text), soft_wrap=True)
