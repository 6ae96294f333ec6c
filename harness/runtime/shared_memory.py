"""Segments under /dev/shm that a killed engine leaves behind.

Their names (``psm_...``, ``sem.mp-...``) say nothing of the owner, so a segment counts as ours only if a process of
ours had it mapped before it was stopped, and is removed only if nothing maps it any more, it is this user's and it is
not older than our processes.
Segments are told apart by inode: a named semaphore is mapped under a scratch name that is gone by the time it has its
own, so its mapping reads "(deleted)" while the semaphore lives on.
Limitation: a segment that was created but not mapped at the time of the stop stays.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from harness.runtime.identity import ProcessId, process_table

_FOLDER = "/dev/shm/"


def parse_maps(text: str) -> set[int]:
    """Inodes of what lies (or lay, under this name) in /dev/shm in a /proc/<pid>/maps."""
    return {int(line.split()[4]) for line in text.splitlines() if _FOLDER in line}


def mapped_segments(processes: Collection[ProcessId]) -> set[str]:
    """Segments that any of ``processes`` has mapped now; one without a name left is not there to remove."""
    inodes: set[int] = set()
    for process in processes:
        try:
            inodes |= parse_maps(Path(f"/proc/{process.pid}/maps").read_text(errors="replace"))
        except OSError:
            continue
    if not inodes:
        return set()
    with os.scandir(_FOLDER) as entries:
        return {entry.path for entry in entries if entry.inode() in inodes}


def remove_leftovers(segments: Collection[str], not_before: float) -> tuple[str, ...]:
    """Unlink those that are this user's, not older than ``not_before`` (Unix time) and mapped by nobody."""
    existing = {path for path in segments if _ours(path, not_before)}
    if not existing:
        return ()
    in_use = mapped_segments([row.identity for row in process_table().values()])
    removed = []
    for path in sorted(existing - in_use):
        try:
            os.unlink(path)
        except FileNotFoundError:
            # The engine's own resource tracker was quicker.
            continue
        removed.append(path)
    return tuple(removed)


def _ours(path: str, not_before: float) -> bool:
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return False
    return status.st_uid == os.getuid() and status.st_ctime >= not_before
