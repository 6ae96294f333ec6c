"""What the runner and its supervisor say to each other: one JSON object per line, over two pipes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from harness.runtime.identity import ProcessId
from harness.runtime.reaping import ReapReport

Message = dict[str, Any]
LaunchKind = Literal["spawn", "warm"]

IMPORTER = "importer"

# The longest message carries the environment of a server, which the kernel itself keeps below 6 MiB.
_LARGEST_MESSAGE_BYTES = 16 << 20


@dataclass(frozen=True)
class ServerSpec:
    """One server to start.

    ``spawn``: ``argv`` is complete, interpreter first, and ``environment`` is all it gets. ``warm``: the importer
    forks it; ``argv`` are the API server's arguments, ``environment`` is set and ``unset`` taken away on top of the
    importer's own. stdout and stderr are appended to ``log``. ``cwd`` is used by ``spawn`` only.
    """

    name: str
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    cwd: Path
    log: Path
    launch: LaunchKind = "spawn"
    unset: tuple[str, ...] = ()

    def to_message(self, op: Literal["start", "importer"]) -> Message:
        return {
            "op": op,
            "name": self.name,
            "argv": list(self.argv),
            "environment": dict(self.environment),
            "cwd": str(self.cwd),
            "log": str(self.log),
            "launch": self.launch,
            "unset": list(self.unset),
        }

    @classmethod
    def from_message(cls, message: Message) -> ServerSpec:
        return cls(
            name=message["name"],
            argv=tuple(message["argv"]),
            environment=message["environment"],
            cwd=Path(message["cwd"]),
            log=Path(message["log"]),
            launch=message["launch"],
            unset=tuple(message["unset"]),
        )


def encode(message: Message) -> bytes:
    return json.dumps(message).encode() + b"\n"


def write_all(fd: int, data: bytes) -> None:
    """A pipe that is nearly full takes a part when a signal arrives; half a line would be no message."""
    while data:
        data = data[os.write(fd, data) :]


def report_to_message(report: ReapReport) -> Message:
    return asdict(report)


def report_from_message(message: Message) -> ReapReport:
    def processes(key: str) -> tuple[ProcessId, ...]:
        return tuple(ProcessId(**process) for process in message[key])

    return ReapReport(
        terminated=processes("terminated"),
        killed=processes("killed"),
        survivors=processes("survivors"),
        seconds=message["seconds"],
        shared_memory=tuple(message["shared_memory"]),
    )


class LineReader:
    """Messages from a pipe that `select` says is readable; a message may arrive in pieces.

    A side that sends so much without an end of line speaks another language: its pipe is taken for closed.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._pending = b""
        self.at_end = False

    def read(self) -> Iterator[Message]:
        """The complete messages that have arrived; sets ``at_end`` when the other side has closed the pipe."""
        chunk = os.read(self._fd, 65536)
        if not chunk:
            self.at_end = True
            return
        *lines, self._pending = (self._pending + chunk).split(b"\n")
        self.at_end = len(self._pending) > _LARGEST_MESSAGE_BYTES
        for line in lines:
            if line.strip():
                yield json.loads(line)
