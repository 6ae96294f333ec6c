"""Leases on devices: a lock, a record of who holds it, and a proof that the device really is free.

Two locks per device, because each can be lost: the lock file (it can be removed while held; it works across containers
that share the state folder) and an abstract Unix socket name (it cannot be removed, ends with its last holder, and
works for all users that share a network namespace). Both are needed to hold the lease, so one is enough to keep
others out. The supervisor inherits the sockets: a lease outlives a killed runner for as long as its servers are being
ended. When the supervisor was killed as well, both are free but the servers may live: then the run records decide.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from harness.errors import Infra, Misconfigured
from harness.files import LARGEST_TABLE_BYTES, read_bounded, write_atomically
from harness.runtime import record as records
from harness.runtime.deadline import Deadline
from harness.runtime.identity import identify
from harness.runtime.reaping import find_ours, is_stale, reap_stale
from harness.runtime.record import RunRecord
from harness.runtime.state_folder import prepare

_POLL_S = 0.1
# Every user of the machine must be able to open the lock file, whoever created it.
_LOCK_MODE = 0o666


@dataclass(frozen=True)
class Holder:
    """Who holds a device; written beside its lock. ``since``: Unix time."""

    run_id: str
    pid: int
    user: str
    deployment: str
    since: float

    def __str__(self) -> str:
        for_s = max(0.0, time.time() - self.since)
        return f"run {self.run_id} ({self.deployment}, user {self.user}, pid {self.pid}, for {for_s:.0f} s)"


@dataclass(frozen=True)
class Lease:
    """``descriptors``: pass them to `supervised`, which keeps the lease alive beyond a killed runner."""

    keys: tuple[str, ...]
    descriptors: tuple[int, ...]


OnWait = Callable[[str], None]


@contextlib.contextmanager
def lease(
    keys: Sequence[str],
    state_dir: Path,
    holder: Holder,
    *,
    deadline: Deadline,
    on_wait: OnWait = lambda _: None,
    busy: Callable[[Sequence[str]], str | None] = lambda _: None,
) -> Iterator[Lease]:
    """Hold all of ``keys`` for the time of the block, or none.

    Keys are taken in sorted order, so two runs cannot wait for each other. ``on_wait`` gets one sentence when waiting
    begins and whenever its reason changes. ``busy`` says why a device is in use by something that takes no leases
    (its memory, for one), or None. Raises `Infra` naming the holder when ``deadline`` passes, `Misconfigured` when
    the state folder cannot hold locks.
    """
    ordered = tuple(sorted(set(keys)))
    folder = prepare(state_dir) / "leases"
    folder.mkdir(exist_ok=True)
    waiting = _Waiting(deadline, on_wait)
    with contextlib.ExitStack() as stack:
        descriptors = []
        for key in ordered:
            stack.enter_context(_locked_file(folder, key, waiting))
            descriptors.append(stack.enter_context(_bound_name(folder, key, waiting)).fileno())
        for key in ordered:
            write_atomically(_holder_path(folder, key), json.dumps(asdict(holder)))
        _prove_free(ordered, state_dir, holder.run_id, waiting, busy)
        yield Lease(ordered, tuple(descriptors))


def holder_of(state_dir: Path, key: str) -> Holder | None:
    """Who last took the lease of ``key``; it may have ended since. None when nobody did or the note was removed."""
    return _read_holder(state_dir / "leases", key)


class _Waiting:
    """A wait that says why, once per reason."""

    def __init__(self, deadline: Deadline, on_wait: OnWait) -> None:
        self.deadline = deadline
        self._on_wait = on_wait
        self._said: str | None = None

    def pause(self, subject: str, sentence: str) -> None:
        """Raises `Infra` with ``sentence`` at the deadline. ``subject``: the reason without what changes each time."""
        if self.deadline.expired:
            raise Infra(f"{sentence}; wait for it, choose other devices, or allow more time")
        if subject != self._said:
            self._said = subject
            self._on_wait(sentence)
        time.sleep(min(_POLL_S, self.deadline.remaining()))


@contextlib.contextmanager
def _locked_file(folder: Path, key: str, waiting: _Waiting) -> Iterator[None]:
    lock = FileLock(folder / f"{_file_name(key)}.lock", mode=_LOCK_MODE, thread_local=False)
    while True:
        try:
            lock.acquire(timeout=0)
            break
        except Timeout:
            waiting.pause(*_held(folder, key))
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _bound_name(folder: Path, key: str, waiting: _Waiting) -> Iterator[socket.socket]:
    """Bind the abstract name of ``key``; the socket is never listened on, the name itself is the lock."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as name:
        while True:
            try:
                name.bind(socket_name(key))
                break
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                waiting.pause(*_held(folder, key))
        yield name


def socket_name(key: str) -> bytes:
    """The machine-wide name of a device, the same for every user and state folder."""
    return b"\0spec-decode-gate/" + hashlib.sha256(key.encode()).hexdigest().encode()


def _prove_free(
    keys: tuple[str, ...],
    state_dir: Path,
    run_id: str,
    waiting: _Waiting,
    busy: Callable[[Sequence[str]], str | None],
) -> None:
    """Wait until nothing that was recorded on these devices runs and they are idle; finish stale runs on the way."""
    while True:
        others = [record for record in records.read_all(state_dir).records if record.run_id != run_id]
        blocking = [record for record in others if set(record.leases) & set(keys)]
        if any(is_stale(record) for record in blocking):
            reap_stale(state_dir)
        for record in blocking:
            if still_there := _still_there(record):
                waiting.pause(record.run_id, f"{_names(keys)}: {still_there}")
                break
        else:
            if (why := busy(keys)) is None:
                return
            waiting.pause("busy", f"{_names(keys)}: {why}")


def _still_there(record: RunRecord) -> str | None:
    """Why the lease of another run cannot be over yet, although its locks are free."""
    if not records.from_here(record):
        if records.from_another_boot(record):
            return None
        return f"run {record.run_id} was started in another container and its end cannot be seen from here"
    if processes := find_ours(record):
        pids = ", ".join(str(process.pid) for process in sorted(processes))
        return f"processes of run {record.run_id} (user {record.user}) still run: pid {pids}"
    return None


def _held(folder: Path, key: str) -> tuple[str, str]:
    holder = _read_holder(folder, key)
    if holder is None:
        who = "a run that left no note"
    elif identify(holder.pid) is None:
        # A lock is the machine's, a note is this state folder's: it may be an old one.
        who = f"what is left of {holder}, which has ended, or by a run with another state folder"
    else:
        who = str(holder)
    return f"{key} {holder.run_id if holder else ''}", f"device {key} is held by {who}"


def _read_holder(folder: Path, key: str) -> Holder | None:
    try:
        return Holder(**json.loads(read_bounded(_holder_path(folder, key), LARGEST_TABLE_BYTES)))
    except (OSError, ValueError, TypeError, Misconfigured):
        return None


def _holder_path(folder: Path, key: str) -> Path:
    return folder / f"{_file_name(key)}.holder.json"


def _file_name(key: str) -> str:
    return key.replace("/", "_")


def _names(keys: Sequence[str]) -> str:
    return f"device{'' if len(keys) == 1 else 's'} {', '.join(keys)}"
