"""Who a process is. A pid alone is never enough: it is reused, and a name is anybody's.

Identity is (pid, start time in clock ticks since boot). Ticks and not a wall-clock time: the latter is derived from
the boot time, which moves when the clock is set, and our own processes would look like strangers.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

MARKER_VARIABLE = "GATE_RUN"
# setproctitle writes the title over the environment block unless this is set, and the marker would be lost.
KEEP_ENVIRONMENT_VARIABLE = "SPT_NOENV"

_GONE_STATES = frozenset("ZXx")


@dataclass(frozen=True, order=True)
class ProcessId:
    """``create_time``: start time in clock ticks since boot (field 22 of /proc/<pid>/stat)."""

    pid: int
    create_time: int


@dataclass(frozen=True)
class ProcessRow:
    """One line of the process table."""

    identity: ProcessId
    parent: int
    session: int
    group: int
    state: str

    @property
    def pid(self) -> int:
        return self.identity.pid

    @property
    def gone(self) -> bool:
        """A zombie holds no memory, port or device, and only its parent can remove it."""
        return self.state in _GONE_STATES


def parse_stat(text: str) -> ProcessRow:
    """A row from /proc/<pid>/stat; the command may hold spaces and parentheses, so count from its last one."""
    pid, _, rest = text.partition(" (")
    fields = rest[rest.rindex(")") + 2 :].split()
    return ProcessRow(
        identity=ProcessId(int(pid), int(fields[19])),
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        state=fields[0],
    )


def read_row(pid: int) -> ProcessRow | None:
    """The row of ``pid``; None when there is no such process, or it is hidden from us."""
    try:
        return parse_stat(Path(f"/proc/{pid}/stat").read_text(errors="replace"))
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def process_table() -> dict[int, ProcessRow]:
    """Every process of this pid namespace, zombies included, by pid."""
    rows = (read_row(int(entry)) for entry in os.listdir("/proc") if entry.isdigit())
    return {row.pid: row for row in rows if row is not None}


def identify(pid: int) -> ProcessId | None:
    """The identity of a running ``pid``; None when it is gone or a zombie."""
    row = read_row(pid)
    return None if row is None or row.gone else row.identity


def own_identity() -> ProcessId:
    identity = identify(os.getpid())
    assert identity is not None
    return identity


def alive(process: ProcessId) -> bool:
    """Whether exactly this process runs: another one under a reused pid is not it, a zombie is gone."""
    return identify(process.pid) == process


def age_s(process: ProcessId) -> float:
    """Seconds since the process was created (not since it executed its program)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - process.create_time / os.sysconf("SC_CLK_TCK")


def started_at(process: ProcessId) -> float:
    """Unix time at which the process was created, by today's clock."""
    return time.time() - age_s(process)


def descendants(roots: Collection[int], table: Mapping[int, ProcessRow]) -> set[int]:
    """Pids below ``roots``, without them."""
    children: dict[int, list[int]] = {}
    for row in table.values():
        children.setdefault(row.parent, []).append(row.pid)
    found: set[int] = set()
    frontier = list(roots)
    while frontier:
        for child in children.get(frontier.pop(), ()):
            if child not in found and child not in roots:
                found.add(child)
                frontier.append(child)
    return found


def ancestors(pid: int, table: Mapping[int, ProcessRow]) -> set[int]:
    """Pids above ``pid``, without it."""
    found: set[int] = set()
    while (row := table.get(pid)) is not None and row.parent not in found and row.parent > 0:
        found.add(row.parent)
        pid = row.parent
    return found


def new_marker(run_id: str) -> str:
    """The value of `MARKER_VARIABLE` for one run; the token keeps two runs of one id apart."""
    return f"{run_id}.{secrets.token_hex(8)}"


def carries_marker(pid: int, marker: str) -> bool:
    """Whether ``pid`` was executed (or forked from a process that was) with this run's marker.

    The kernel shows the environment that the program was *executed* with: a server forked by the importer shows the
    importer's. False when the environment may not be read (another user's process).
    """
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return f"{MARKER_VARIABLE}={marker}".encode() in environment.split(b"\0")


def missing_from_environment(environment: Mapping[str, str], marker: str) -> list[str]:
    """What an environment lacks for its process to be found again; empty when it is complete."""
    wanted = {MARKER_VARIABLE: marker, KEEP_ENVIRONMENT_VARIABLE: "1"}
    return [f"{name}={value}" for name, value in wanted.items() if environment.get(name) != value]


def command_line(pid: int) -> str:
    """The command line (or the title set over it), for messages; empty when it cannot be read."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return raw.replace(b"\0", b" ").decode(errors="replace").strip()


def host_identity() -> str:
    """This boot and this pid namespace: where a recorded pid means anything."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
