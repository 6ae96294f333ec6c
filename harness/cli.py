"""The command line: options parsed once into typed values, errors as one sentence, one exit code per verdict."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from harness.choices import Gsm8kThrough, KvBuffer, Launch, Models, Reference, Router
from harness.ci.commands import add_commands
from harness.deployments import DEPLOYMENTS, Deployment
from harness.errors import GateError, Misconfigured
from harness.falsify.commands import add_commands as add_proofs
from harness.locations import Locations, locate
from harness.plan.types import Options
from harness.report.terminal import console_for
from harness.run.interrupts import end_with_parent
from harness.runtime.identity import ProcessId, identify
from harness.verdict import Verdict, worst

PROJECT = Path(__file__).resolve().parents[1]

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Acceptance gate for vLLM speculative decoding.",
)


# As the hub client reads HF_HUB_OFFLINE.
_HUB_TRUE = frozenset({"1", "ON", "YES", "TRUE"})

EngineOption = Annotated[str, typer.Option("--engine", help="auto, cpu, cuda, or an interpreter that has vLLM.")]
RunsOption = Annotated[Path | None, typer.Option("--runs-dir", help="Where run folders go (default: runs/).")]


@app.command()
def run(
    name: Annotated[str, typer.Argument(help="A deployment; `nox --list` shows them.")],
    engine: EngineOption = "auto",
    models: Annotated[Models, typer.Option(help="hub checkpoints, or tiny computed ones (auto: tiny on CPU).")] = (
        Models.AUTO
    ),
    devices: Annotated[str | None, typer.Option(help="Device indices to use, e.g. 0,1.")] = None,
    share_devices: Annotated[bool, typer.Option("--share-devices", help="Let servers share a device.")] = False,
    launch: Annotated[Launch, typer.Option(help="spawn as production does, or warm: import once, fork.")] = Launch.AUTO,
    router: Annotated[Router, typer.Option(help="What stands in front of prefill and decode.")] = Router.VLLM_ROUTER,
    reference: Annotated[
        Reference, typer.Option(help="Standalone server to compare with: beside the others, after them, or none.")
    ] = (Reference.AUTO),
    kv_buffer: Annotated[KvBuffer | None, typer.Option(help="Only this KV buffer device.")] = None,
    no_adjust: Annotated[bool, typer.Option("--no-adjust", help="Leave the engine's speed as it is.")] = False,
    dataset: Annotated[Path | None, typer.Option(help="MT-Bench, or GSM8K, as a local JSONL.")] = None,
    gsm8k_through: Annotated[
        Gsm8kThrough,
        typer.Option(help="Who asks GSM8K: this harness, from --dataset, or lm-eval (an extra), from it or its own."),
    ] = Gsm8kThrough.JSONL,
    prompts: Annotated[int | None, typer.Option(min=1, help="Number of prompts.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Output tokens per prompt, at most.")] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Requests in flight.")] = None,
    logprobs: Annotated[
        bool,
        typer.Option(
            "--logprobs",
            help="Ask for the likeliest tokens, so that a divergence shows its margin. Off: the engine then samples on "
            "the path of ordinary requests, which is what is judged.",
        ),
    ] = False,
    baselines: Annotated[Path, typer.Option(help="The baselines file.")] = PROJECT / "baselines.toml",
    no_baseline: Annotated[
        bool, typer.Option("--no-baseline", help="Run without one, to record it from the run; never a pass.")
    ] = False,
    pass_env: Annotated[list[str] | None, typer.Option(help="Inherited variable to keep; may be repeated.")] = None,
    runs_dir: RunsOption = None,
    lease_timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for devices.")] = 600.0,
    retry_infra: Annotated[
        bool | None, typer.Option("--retry-infra/--no-retry-infra", help="Once more after infra (default: in CI).")
    ] = None,
    allow: Annotated[
        list[str] | None, typer.Option(help="Deployment that may end `unsupported` with exit code 0.")
    ] = None,
    expectations: Annotated[Path, typer.Option(help="What engines are known to refuse.")] = (
        PROJECT / "expectations.toml"
    ),
    trace: Annotated[
        bool, typer.Option("--trace", help="List the vLLM files each process imports, in RUN/trace (spawns servers).")
    ] = False,
    keep_logs: Annotated[bool, typer.Option("--keep-logs", help="Keep whole logs of a passing run.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan, start nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --dry-run: the plan as JSON.")] = False,
) -> None:
    """Start a deployment, judge it, tear it down. Ends with one word."""
    # Imported late: `--help` and user mistakes must not wait for numpy and the hub client.
    from harness.expectations import load
    from harness.run.request import Request
    from harness.run.session import run_session
    from harness.run.start import print_plan, refused
    from harness.run.trace import trace_environment

    if as_json and not dry_run:
        raise typer.BadParameter(
            "it prints a plan and needs --dry-run; a run leaves its result.json.", param_hint="--json"
        )
    locations = _locations(runs_dir)
    try:
        deployment = _deployment(name)
        for allowed in allow or ():
            _deployment(allowed)
        if trace and launch is Launch.WARM:
            raise Misconfigured("--trace needs --launch spawn: a forked server would list what its importer imported.")
        request = Request(
            deployment=deployment,
            options=Options(
                models=models.value,
                devices=_indices(devices),
                share_devices=share_devices,
                launch=Launch.SPAWN.value if trace else launch.value,
                router=router.value,
                reference=reference.value,
                adjust=not no_adjust,
                kv_buffer=kv_buffer.value if kv_buffer else None,
                dataset=dataset,
                prompts=prompts,
                max_tokens=max_tokens,
                concurrency=concurrency,
                keep_logs=keep_logs,
                logprobs=logprobs,
                gsm8k_through=gsm8k_through.value,
            ),
            engine_choice=engine,
            host_python=_host_python(),
            locations=locations,
            baselines=baselines,
            inherited=dict(os.environ),
            passed=_passed(pass_env or []),
            offline=os.environ.get("HF_HUB_OFFLINE", "").upper() in _HUB_TRUE,
            router_python=_router_python(),
            lease_timeout_s=lease_timeout,
            extra_environment=trace_environment(deployment) if trace else {},
            expectations=load(expectations),
            baseline_required=not no_baseline,
            invocation=_invocation(),
        )
        if dry_run:
            print_plan(request, console_for(sys.stdout, os.environ), as_json=as_json)
            return
    except GateError as error:
        raise typer.Exit(refused(name, locations, error, console_for(sys.stdout, os.environ), os.environ)) from error
    in_ci = os.environ.get("CI", "").lower() in ("1", "true")
    results = run_session(
        request, console_for(sys.stdout, os.environ), retry_infra=in_ci if retry_infra is None else retry_infra
    )
    verdict = worst([result.verdict for result in results])
    if verdict is Verdict.UNSUPPORTED and name in (allow or ()):
        raise typer.Exit(0)
    raise typer.Exit(verdict.exit_code)


@app.command()
def engine(choice: Annotated[str, typer.Option("--engine", help="auto, cpu, cuda or PYTHON.")] = "auto") -> None:
    """Find or build the engine environment and print what it is."""
    from harness.engine.resolve import resolve
    from harness.run.summary import describe_engine
    from harness.runtime.occupancy import gpu_visible

    with _one_sentence():
        info = resolve(
            choice,
            _locations(None).cache,
            _say,
            host_python=_host_python(),
            gpu_visible=gpu_visible(),
            environ=os.environ,
        )
    for name, value in describe_engine(info).items():
        if value is not None:
            _say(f"{name:13} {value}")
    _say(f"{'options':13} {len(info.flags)}")


@app.command()
def doctor() -> None:
    """Say what this machine can run and who holds its devices; finish what a killed run left behind."""
    from harness.run.doctor import examine

    with _one_sentence():
        for line in examine(_locations(None), os.environ):
            _say(line)


@app.command()
def reap() -> None:
    """End what killed runs left behind; only processes that carry the mark of a recorded run are touched."""
    from harness.runtime.reaping import reap_stale

    with _one_sentence():
        reports = reap_stale(_locations(None).state)
    if not reports:
        _say("Nothing was left behind.")
    for run_id, report in reports.items():
        _say(f"{run_id}: {len(report.terminated)} terminated, {len(report.killed)} killed")
        if report.survivors:
            pids = ", ".join(str(process.pid) for process in report.survivors)
            _say(f"{run_id}: still running: {pids}")
            raise typer.Exit(Verdict.INFRA.exit_code)


@app.command()
def judge(
    run_dir: Annotated[Path, typer.Argument(help="A run folder that holds facts.json.")],
    baselines: Annotated[Path | None, typer.Option(help="Judge against this file instead.")] = None,
) -> None:
    """Judge a finished run again, from its facts.json; nothing is started."""
    from harness.run.again import judge_again

    with _one_sentence():
        result = judge_again(run_dir, baselines)
    from harness.report.terminal import render_summary

    render_summary(result, console_for(sys.stdout, os.environ))
    raise typer.Exit(result.verdict.exit_code)


add_commands(app)
add_proofs(app)

baseline = typer.Typer(no_args_is_help=True, help="Reference values.")
app.add_typer(baseline, name="baseline")


@baseline.command("record")
def baseline_record(
    run_dir: Annotated[Path, typer.Argument(help="A run folder that holds facts.json and result.json.")],
    reason: Annotated[str, typer.Option(help="Why this value is right.")],
    key: Annotated[str | None, typer.Option(help="Entry to write (default: DEPLOYMENT/MODELS).")] = None,
    baselines: Annotated[Path, typer.Option(help="The baselines file.")] = PROJECT / "baselines.toml",
) -> None:
    """Write the acceptance of a run into the baselines file, with its certificate."""
    from harness.run.again import record_baseline

    with _one_sentence():
        _say(record_baseline(run_dir, baselines, key, reason))


def _deployment(name: str) -> Deployment:
    try:
        return DEPLOYMENTS[name]
    except KeyError:
        near = difflib.get_close_matches(name, DEPLOYMENTS, n=1)
        known = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(DEPLOYMENTS))}."
        raise Misconfigured(f"There is no deployment {name!r}; {known} `nox --list` describes them.") from None


def _passed(names: list[str]) -> frozenset[str]:
    unset = [name for name in names if name not in os.environ]
    if unset:
        raise Misconfigured(
            f"--pass-env {unset[0]}: there is no such variable here; set it for this command or drop the option "
            "(it takes a name, not NAME=VALUE)."
        )
    return frozenset(names)


def _indices(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise Misconfigured(f"--devices takes indices such as 0,1, not {text!r}.") from None


def _locations(runs_dir: Path | None) -> Locations:
    return locate(os.environ, runs_dir)


def _host_python() -> Path | None:
    named = os.environ.get("SPEC_GATE_HOST_PYTHON")
    return Path(named) if named else Path(sys.executable)


def _invocation() -> ProcessId | None:
    """The process whose sessions share a reference: nox's id, or one that a shell names (``$$``)."""
    named = os.environ.get("SPEC_GATE_INVOCATION")
    if not named:
        return None
    found = identify(int(named)) if named.isdecimal() else None
    if found is None:
        raise Misconfigured(
            f"SPEC_GATE_INVOCATION={named} names no running process; set it to the id of the shell ($$) or unset it."
        )
    return found


def _router_python() -> Path | None:
    # This interpreter's own copy; a `vllm-router` on PATH would be another version.
    return Path(sys.executable) if find_spec("vllm_router") is not None else None


def _say(text: str) -> None:
    console_for(sys.stdout, os.environ).print(Text(text), soft_wrap=True)


@contextmanager
def _one_sentence() -> Iterator[None]:
    """A user mistake inside the block ends as one sentence and its exit code."""
    try:
        yield
    except GateError as error:
        _say(f"{error.verdict.value}: {error}")
        raise typer.Exit(error.verdict.exit_code) from error
    except OSError as error:
        _say(f"{Verdict.INFRA.value}: the machine refused: {error}")
        raise typer.Exit(Verdict.INFRA.exit_code) from error


def main() -> None:
    """Entry point of ``python -m harness``."""
    if os.environ.get("SPEC_GATE_END_WITH_PARENT") == "1":
        end_with_parent()
    app()
