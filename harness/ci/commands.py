"""The command line's CI part: options to values, a mistake as one sentence, everything else in the modules behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from harness.errors import GateError

PROJECT = Path(__file__).resolve().parents[2]

ci = typer.Typer(no_args_is_help=True, help="What a change runs, and why.")


def add_commands(app: typer.Typer) -> None:
    """Put ``pipeline``, ``audit``, ``report`` and ``ci`` on ``app``."""
    app.command()(pipeline)
    app.command()(audit)
    app.command()(report)
    app.add_typer(ci, name="ci")


def pipeline(
    check: Annotated[bool, typer.Option("--check", help="Write nothing; print the difference, fail on one.")] = False,
    vllm: Annotated[
        Path | None, typer.Option(help="Render into this vLLM checkout instead, with its own image names.")
    ] = None,
) -> None:
    """Render the Buildkite steps of every deployment into .buildkite/."""
    from harness.ci.cli import run_pipeline

    _end(lambda: run_pipeline(PROJECT, check, vllm))


def audit(
    vllm: Annotated[Path, typer.Option(help="A vLLM source tree: a checkout or an unpacked source distribution.")],
    waivers: Annotated[Path | None, typer.Option(help="Findings that are known: owner, reason, link, expiry.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The findings as JSON.")] = False,
) -> None:
    """Say which tests of a vLLM tree its CI never runs, and which changes no job would notice."""
    from harness.ci.audit.cli import run_audit

    _end(lambda: run_audit(vllm, waivers, as_json))


def report(
    run_dirs: Annotated[list[Path], typer.Argument(help="Run folders.")],
    junit: Annotated[Path | None, typer.Option(help="Write the merged JUnit file here.")] = None,
    annotation: Annotated[
        bool, typer.Option("--annotation", help="Write annotation.md; publish it where buildkite-agent is present.")
    ] = False,
    allow: Annotated[list[str] | None, typer.Option(help="Deployment that may have ended `unsupported`.")] = None,
) -> None:
    """Merge the reports of several runs for CI. The exit code is that of the worst verdict."""
    from harness.ci.reports import run_report

    _end(lambda: run_report(run_dirs, junit, annotation, allow or ()))


@ci.command()
def deps(
    deployment: Annotated[str, typer.Argument(help="The deployment that ran.")],
    run_dir: Annotated[Path, typer.Argument(help="The folder of its run with --trace.")],
    package: Annotated[Path | None, typer.Option(help="The folder that holds that run's vllm package.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail if the list misses a file.")] = False,
) -> None:
    """Derive the list of files that must trigger a deployment from what its processes imported."""
    from harness.ci.cli import run_deps

    _end(lambda: run_deps(deployment, run_dir, package, check))


@ci.command()
def select(
    base: Annotated[str | None, typer.Option(help="Compare the vLLM checkout with this ref.")] = None,
    vllm: Annotated[Path | None, typer.Option(help="The vLLM checkout (default: this folder).")] = None,
    changed: Annotated[bool, typer.Option("--changed", help="The files named as arguments have changed.")] = False,
    files: Annotated[list[str] | None, typer.Argument(help="Changed files, relative to the vLLM tree.")] = None,
) -> None:
    """Say which steps a change runs, and why."""
    from harness.ci.cli import run_select

    named = files or []
    if named and not changed:
        raise typer.BadParameter("files are named after --changed")
    _end(lambda: run_select(vllm, base, named))


def _end(command: Callable[[], int]) -> None:
    """Run ``command`` and end with its exit code; a user mistake is one sentence and the code of its verdict."""
    try:
        code = command()
    except GateError as error:
        typer.echo(f"{error.verdict.value}: {error}")
        raise typer.Exit(error.verdict.exit_code) from error
    except OSError as error:
        typer.echo(f"misconfigured: {error.filename or 'the disk'}: {error.strerror}")
        raise typer.Exit(2) from error
    raise typer.Exit(code)
