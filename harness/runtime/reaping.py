"""Ending processes: the only module of the project that sends signals, and only to processes of a recorded run.

Which processes are ours is the union of four answers, because each misses something: recorded servers and what was
seen below them (miss what was started in between), their sessions and groups (missed by a double fork), their
children (missed when a parent is gone), holders of the run marker (missed when the environment was cleared).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.runtime import record as records
from harness.runtime.deadline import Deadline
from harness.runtime.identity import (
    ProcessId,
    ProcessRow,
    alive,
    ancestors,
    carries_marker,
    descendants,
    process_table,
    started_at,
)
from harness.runtime.record import RunRecord
from harness.runtime.shared_memory import mapped_segments, remove_leftovers

# An engine process whose API server is gone ends by itself when it can; longer than this and it is stuck.
_STRAGGLER_GRACE_S = 1.0
# How often a wait looks for processes that appeared meanwhile; exits end it at once.
_LOOK_AGAIN_S = 0.1

Find = Callable[[], frozenset[ProcessId]]


@dataclass(frozen=True)
class ReapReport:
    """What a stop did. ``terminated`` went after SIGTERM, ``killed`` needed SIGKILL, ``survivors`` still run.

    ``shared_memory``: segments under /dev/shm that the processes left behind and that were removed.
    """

    terminated: tuple[ProcessId, ...] = ()
    killed: tuple[ProcessId, ...] = ()
    survivors: tuple[ProcessId, ...] = ()
    seconds: float = 0.0
    shared_memory: tuple[str, ...] = ()


def ours(
    record: RunRecord,
    table: Mapping[int, ProcessRow],
    has_marker: Callable[[int], bool],
    caller: int,
) -> frozenset[ProcessId]:
    """The running processes of a run, given the process table. Never the runner, a supervisor, or ``caller``'s line.

    A session or group counts only while its number provably is ours: its leader is the recorded server, or the leader
    is gone and the member itself carries the marker or was seen below us. A number taken over by a stranger does not.
    """
    running = {row.identity for row in table.values() if not row.gone}
    recorded = {entry.process for entry in record.servers if entry.process is not None}
    seen = recorded | set(record.descendants)
    roots = {process.pid for process in seen if process in running}
    if record.supervisor in running and record.supervisor is not None:
        roots.add(record.supervisor.pid)
    led_by_us = {process.pid for process in recorded if process in running}
    members = {row.pid for row in table.values() if row.session in led_by_us or row.group in led_by_us}
    marked = {pid for pid, row in table.items() if not row.gone and has_marker(pid)}
    pids = roots | members | marked
    pids |= descendants(pids, table)
    untouchable = {caller, record.runner.pid, *ancestors(caller, table)}
    if record.supervisor is not None:
        untouchable.add(record.supervisor.pid)
    return frozenset(table[pid].identity for pid in pids - untouchable if pid in table and not table[pid].gone)


def find_ours(record: RunRecord) -> frozenset[ProcessId]:
    """The running processes of a recorded run, now. Nothing when its pids belong to another boot or pid namespace."""
    if not records.from_here(record):
        return frozenset()
    return ours(record, process_table(), lambda pid: carries_marker(pid, record.marker), os.getpid())


def stop(find: Find, first: Iterable[ProcessId], *, grace_s: float, deadline: Deadline) -> ReapReport:
    """End everything that ``find`` finds: SIGTERM to ``first`` (API servers end their engines), then to the
    stragglers, then SIGKILL, and again until ``find`` finds nothing more or ``deadline`` passes.

    ``grace_s`` is what ``first`` gets to end by itself. Does not raise: ``survivors`` says what was left.
    """
    started_s = time.monotonic()
    terminated: set[ProcessId] = set()
    killed: set[ProcessId] = set()
    segments: set[str] = set()
    oldest = time.time()

    def look() -> frozenset[ProcessId]:
        nonlocal oldest
        found = find()
        segments.update(mapped_segments(found))
        oldest = min([oldest, *(started_at(process) for process in found)])
        return found

    found = look()
    leaders = {process for process in first if process in found}
    terminated |= _send(leaders, signal.SIGTERM)
    _wait(leaders, deadline.sooner(grace_s))
    stragglers = look()
    if stragglers - leaders and not stragglers & leaders:
        terminated |= _send(stragglers, signal.SIGTERM)
        _wait(stragglers, deadline.sooner(min(grace_s, _STRAGGLER_GRACE_S)))
    remaining = look()
    while remaining:
        # Everything at once: a parent that outlives its child for a moment would start another one.
        killed |= _send(remaining, signal.SIGKILL)
        _wait(remaining, deadline.sooner(_LOOK_AGAIN_S))
        if deadline.expired:
            break
        remaining = look()
    survivors = find()
    return ReapReport(
        terminated=tuple(sorted(terminated - killed - survivors)),
        killed=tuple(sorted(killed - survivors)),
        survivors=tuple(sorted(survivors)),
        seconds=time.monotonic() - started_s,
        shared_memory=() if survivors else remove_leftovers(segments, oldest),
    )


def stop_one(process: ProcessId, *, grace_s: float, deadline: Deadline) -> ReapReport:
    """End a single process of ours, such as a supervisor that no longer answers."""
    return stop(lambda: frozenset({process} if alive(process) else ()), [process], grace_s=grace_s, deadline=deadline)


def reap(state_dir: Path, record: RunRecord, *, grace_s: float, deadline: Deadline) -> ReapReport:
    """End what is left of a recorded run and, when nothing is, remove its record. For a run without a supervisor."""
    servers = [entry.process for entry in record.servers if entry.process is not None]
    report = stop(lambda: find_ours(record), servers, grace_s=grace_s, deadline=deadline)
    if not report.survivors:
        records.remove(state_dir, record.run_id)
    return report


def is_stale(record: RunRecord) -> bool:
    """Whether nobody looks after the run any more: its supervisor is gone, or it died before it had one."""
    if not records.from_here(record):
        return records.from_another_boot(record)
    return not alive(record.supervisor if record.supervisor is not None else record.runner)


def reap_stale(state_dir: Path, *, grace_s: float = 2.0, budget_s: float = 15.0) -> dict[str, ReapReport]:
    """Finish the job of every run that nobody looks after; reports by run id. Live runs are left alone."""
    deadline = Deadline.after(budget_s)
    return {
        record.run_id: reap(state_dir, record, grace_s=grace_s, deadline=deadline)
        for record in records.read_all(state_dir).records
        if is_stale(record)
    }


def _send(processes: Collection[ProcessId], number: signal.Signals) -> set[ProcessId]:
    """Signal exactly these processes; returns those that were reached."""
    reached = set()
    for process in processes:
        with _opened(process) as fd:
            if fd is None:
                continue
            try:
                signal.pidfd_send_signal(fd, number)
            except ProcessLookupError:
                continue
            except PermissionError:
                # Another user's process: it stays among the survivors, which the report names.
                continue
            reached.add(process)
    return reached


def _wait(processes: Collection[ProcessId], deadline: Deadline) -> None:
    """Until all of ``processes`` are gone or ``deadline``; returns at the moment of the last exit."""
    with contextlib.ExitStack() as stack:
        poll = select.poll()
        open_fds = 0
        for process in processes:
            fd = stack.enter_context(_opened(process))
            if fd is not None:
                poll.register(fd, select.POLLIN)
                open_fds += 1
        while open_fds and not deadline.expired:
            for fd, _ in poll.poll(max(1.0, deadline.remaining() * 1000)):
                poll.unregister(fd)
                open_fds -= 1


@contextlib.contextmanager
def _opened(process: ProcessId) -> Iterator[int | None]:
    """A pidfd of exactly ``process``, None when it is gone. Checked after opening: the descriptor pins the pid."""
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        yield None
        return
    try:
        yield fd if alive(process) else None
    finally:
        os.close(fd)
