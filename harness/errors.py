"""Every way a run can end early, as one user-facing sentence with a verdict word.

Raise the class whose verdict fits; the command line prints ``str(error)`` and never a traceback for these.
A message says what was found, where, and what to do next.
"""

from __future__ import annotations

from pathlib import Path

from harness.verdict import Verdict


class GateError(Exception):
    """A run that cannot go on. ``log`` and ``root_line`` point at the evidence when a server is to blame."""

    verdict: Verdict = Verdict.INFRA

    def __init__(self, message: str, *, log: Path | None = None, root_line: str | None = None) -> None:
        super().__init__(message)
        self.log = log
        self.root_line = root_line


class Misconfigured(GateError):
    """The request is wrong: a name, an option, a file, a baseline. Nothing has been launched."""

    verdict = Verdict.MISCONFIGURED


class Infra(GateError):
    """The machine is to blame, not the engine: a busy port, a held lease, a full disk, no network."""

    verdict = Verdict.INFRA


class Unsupported(GateError):
    """The engine itself refuses this layout and says so in the line quoted by ``root_line``."""

    verdict = Verdict.UNSUPPORTED


class EngineFailed(GateError):
    """A server died or stopped answering: the engine under test is to blame."""

    verdict = Verdict.REGRESSION


class Interrupted(GateError):
    """Ctrl-C, SIGTERM or SIGHUP arrived; everything was torn down."""

    verdict = Verdict.INTERRUPTED
