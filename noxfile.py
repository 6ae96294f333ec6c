"""A session named after a deployment is that deployment: `nox -s mtp-pd` starts it, judges it and tears it down.

Options after `--` reach the command line unchanged: `nox -s mtp-pd -- --models hub --devices 0,1`.
Bare `nox` runs what is safe anywhere: lint, types, tests.
Tags: pd, parallel, correctness, control, eagle3, mtp, moe, hybrid, mrv2.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import nox

sys.path.insert(0, str(Path(__file__).parent))

from harness.deployments import DEPLOYMENTS, Deployment

nox.needs_version = ">=2024.10.9"
nox.options.sessions = ["lint", "types", "tests"]
nox.options.reuse_venv = "yes"
nox.options.error_on_missing_interpreters = True

# A run answers an interrupt with an orderly teardown (SIGTERM, 30 s grace, SIGKILL); nox's own 0.3 s would cut it off.
TEARDOWN_S = 60.0


def harness(session: nox.Session, *arguments: str) -> None:
    """Install the harness and hand over to its command line, which ends with nox if nox is killed."""
    extras = "router,lm-eval" if any(argument.endswith("lm-eval") for argument in arguments) else "router"
    session.install("-q", "-e", f".[{extras}]")
    session.run(
        "python",
        "-m",
        "harness",
        *arguments,
        env={
            "SPEC_GATE_HOST_PYTHON": sys.executable,
            "SPEC_GATE_END_WITH_PARENT": "1",
            # Sessions of one nox share what an equal reference server answered; set to nothing, they do not.
            "SPEC_GATE_INVOCATION": os.environ.get("SPEC_GATE_INVOCATION", str(os.getpid())),
        },
        interrupt_timeout=TEARDOWN_S,
        terminate_timeout=TEARDOWN_S,
    )


def deployment_session(deployment: Deployment) -> Callable[[nox.Session], None]:
    """A session that runs ``deployment``; its docstring is what `nox --list` and `nox --usage` show."""

    def run(session: nox.Session) -> None:
        harness(session, "run", deployment.name, *session.posargs)

    run.__doc__ = deployment.usage
    return run


for _deployment in DEPLOYMENTS.values():
    nox.session(name=_deployment.name, tags=list(_deployment.tags), default=False)(deployment_session(_deployment))


@nox.session(tags=["self"])
def lint(session: nox.Session) -> None:
    """Ruff: rules and formatting of this project."""
    session.install("-q", "ruff==0.14.5")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session(tags=["self"])
def types(session: nox.Session) -> None:
    """Strict type checking of the harness."""
    session.install("-q", "-e", ".[lint]", "nox")
    session.run("mypy")


@nox.session(tags=["self"])
def tests(session: nox.Session) -> None:
    """This project's own tests of pure code, and of the runtime with a fake engine. No vLLM needed."""
    session.install("-q", "-e", ".[router,test]")
    session.run("pytest", *(session.posargs or ("tests/unit", "tests/faults", "-m", "not whole_run")))


@nox.session(tags=["self"], default=False)
def faults(session: nox.Session) -> None:
    """Whole runs of the gate against a fake engine, one fault in each (docs/faults.md); two minutes."""
    session.install("-q", "-e", ".[test]")
    # Four at a time: a run mostly waits, and each has devices, ports and folders of its own.
    session.run("pytest", "tests/faults", "-n", "4", *session.posargs)


@nox.session(tags=["self"], default=False)
def e2e(session: nox.Session) -> None:
    """This project's own tests on the real vLLM CPU build (built once into the cache)."""
    # With nox: its own end is one of the things tested.
    session.install("-q", "-e", ".[router,test]", "nox")
    # A later -m wins: `nox -s e2e -- -m slow` runs what is left out here.
    arguments = ("tests/e2e", "-m", "not slow", *session.posargs)
    session.run("pytest", *arguments, env={"SPEC_GATE_HOST_PYTHON": sys.executable})


@nox.session(tags=["self"], default=False)
def falsify(session: nox.Session) -> None:
    """Break the deployments in every known way; each must be caught. Options: --smoke  --family NAME  --only NAME."""
    harness(session, "falsify", *session.posargs)


@nox.session(tags=["self"], default=False)
def soak(session: nox.Session) -> None:
    """Repeat clean runs of a deployment: false alarms, spread of every figure. `nox -s soak -- mtp-pd --runs 50`."""
    harness(session, "soak", *session.posargs)


@nox.session(default=False)
def engine(session: nox.Session) -> None:
    """Find or build the engine environment and print what it is. Options: --engine auto|cpu|cuda|PYTHON."""
    harness(session, "engine", *session.posargs)


@nox.session(default=False)
def doctor(session: nox.Session) -> None:
    """Say what this machine can run, who holds its devices, and finish what a killed run left behind."""
    harness(session, "doctor", *session.posargs)


@nox.session(default=False)
def pipeline(session: nox.Session) -> None:
    """Render .buildkite/ from the registry. Options: --check (print the difference, fail on one)  --vllm CHECKOUT."""
    harness(session, "pipeline", *session.posargs)


@nox.session(default=False)
def audit(session: nox.Session) -> None:
    """Audit the CI of a vLLM tree. Options: --vllm PATH  --waivers FILE  --json."""
    harness(session, "audit", *session.posargs)


@nox.session(default=False)
def report(session: nox.Session) -> None:
    """Merge the reports of several runs. Options: --junit FILE  --annotation  --allow NAME  RUN_DIRS."""
    harness(session, "report", *session.posargs)
