"""Processes that the supervisor started, and the descriptors that say when they end."""

from __future__ import annotations

import os
import selectors
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field

from harness.runtime.identity import ProcessId
from harness.runtime.wire import ServerSpec


@dataclass
class Server:
    """One server or the importer. ``child`` None: forked by the importer, which then reports the exit code."""

    name: str
    pid: int | None = None
    process: ProcessId | None = None
    child: subprocess.Popen[bytes] | None = None
    watched: bool = False
    ended_at_s: float | None = None
    reported: bool = False
    members: frozenset[ProcessId] = frozenset()
    exit_fds: dict[int, ProcessId] = field(default_factory=dict)


def launch(spec: ServerSpec, argv: list[str], pass_fds: tuple[int, ...]) -> subprocess.Popen[bytes]:
    """Execute ``argv`` as the leader of a session of its own, logging to ``spec.log``. Raises ``OSError``."""
    with spec.log.open("ab") as log:
        return subprocess.Popen(
            argv,
            env=dict(spec.environment),
            cwd=spec.cwd,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=pass_fds,
        )


class Exits:
    """A pidfd per awaited process, registered with the event loop: an exit is seen at once and without polling."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector

    def await_exit(self, server: Server, process: ProcessId, then: Callable[[], None]) -> None:
        """Call ``then`` when ``process``, which is ``server`` or below it, has ended."""
        try:
            fd = os.pidfd_open(process.pid)
        except ProcessLookupError:
            then()
            return

        def on_readable() -> None:
            self._selector.unregister(fd)
            os.close(fd)
            server.exit_fds.pop(fd, None)
            then()

        server.exit_fds[fd] = process
        self._selector.register(fd, selectors.EVENT_READ, on_readable)

    def forget(self, server: Server) -> None:
        """From here on the end of the server and of what is below it is our doing and no news."""
        for fd in server.exit_fds:
            self._selector.unregister(fd)
            os.close(fd)
        server.exit_fds.clear()
