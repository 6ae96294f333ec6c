"""Whether there are GPUs, and whether somebody who takes no leases is using them."""

from __future__ import annotations

from collections.abc import Sequence

import pynvml

from harness.runtime.devices import memory_used

# A driver and a display manager keep some hundred MiB; an engine process never holds less than this.
_IDLE_BELOW_BYTES = 2 << 30


def gpu_visible() -> bool:
    """Whether NVML finds a GPU. False without a driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    try:
        return int(pynvml.nvmlDeviceGetCount()) > 0
    finally:
        pynvml.nvmlShutdown()


def busy_with_strangers(keys: Sequence[str]) -> str | None:
    """One sentence about memory that is in use on a device whose lease is free, or None."""
    for key, used_bytes in memory_used(keys).items():
        if used_bytes > _IDLE_BELOW_BYTES:
            return f"device {key} has {used_bytes >> 20} MiB in use by processes that hold no lease"
    return None
