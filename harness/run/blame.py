"""Whether an engine failed because somebody else took what it needed: memory of its device, a port, the disk."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.errors import EngineFailed, Infra
from harness.plan.types import Plan
from harness.runtime import ports
from harness.runtime.deadline import Deadline
from harness.runtime.devices import wait_released

# A driver frees the memory of a dead process a moment later; what is still there then is a stranger's.
_FREED_WITHIN_S = 5.0
_OUT_OF_MEMORY = re.compile(r"(?i)out of ?memory|Free memory on device")
_PORT_TAKEN = re.compile(r"(?i)address already in use|EADDRINUSE")
# Less than one block of a file: nothing more can be written.
_FULL_BELOW_BYTES = 64 << 10


def blame_others(error: EngineFailed, plan: Plan, keys: Sequence[str], used_before: Mapping[str, int]) -> None:
    """Raise Infra when ``error`` says that something was taken and, with every server of the run gone, it still is.

    ``used_before``: device memory in use before the start, bytes by key.
    """
    said = error.root_line or str(error)
    try:
        if _OUT_OF_MEMORY.search(said):
            wait_released(keys, used_before, Deadline.after(_FREED_WITHIN_S))
        if _PORT_TAKEN.search(said):
            for stage in plan.stages:
                for server in stage.servers:
                    for port in (server.port, *server.side_channel_ports):
                        ports.check_still_free(server.host, port)
    except Infra as taken:
        raise Infra(f"Somebody else took it: {taken}. So {error}", log=error.log, root_line=error.root_line) from error


def disk_is_full(folder: Path) -> bool:
    """Whether nothing more can be written into ``folder``; False when it is gone."""
    try:
        return shutil.disk_usage(folder).free < _FULL_BELOW_BYTES
    except OSError:
        return False
