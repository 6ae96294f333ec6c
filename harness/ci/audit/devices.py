"""What a step's device can do, as far as the skip conditions of tests ask: platform, count, memory, architecture."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Literal

from harness.ci.audit.model import Step

Platform = Literal["cuda", "rocm", "xpu", "cpu", "other"]


@dataclass(frozen=True)
class Device:
    """``memory_gb`` is 10^9 bytes per device, as the tests' marks count it; None where it is not known.

    ``capability``: CUDA compute capability times ten (90 is Hopper). ``arch``: the AMD gfx name.
    """

    name: str
    platform: Platform
    count: int | None
    memory_gb: float | None = None
    capability: int | None = None
    arch: str | None = None


@dataclass(frozen=True)
class _Kind:
    platform: Platform
    memory_gb: float | None = None
    capability: int | None = None
    arch: str | None = None


# Nominal memory. A comparison within 10 % of it is left undecided: a driver reserves a part.
KINDS = {
    "l4": _Kind("cuda", 24, 89),
    "a100": _Kind("cuda", 80, 80),
    "h100": _Kind("cuda", 80, 90),
    "h200": _Kind("cuda", 141, 90),
    "h200_18gb": _Kind("cuda", 18, 90),
    "h200_35gb": _Kind("cuda", 35, 90),
    "gh200": _Kind("cuda", 96, 90),
    "b200": _Kind("cuda", 180, 100),
    "b200-k8s": _Kind("cuda", 180, 100),
    "dgx-spark": _Kind("cuda", None, 121),
    "mi250": _Kind("rocm", 64, None, "gfx90a"),
    "mi300": _Kind("rocm", 192, None, "gfx942"),
    "mi325": _Kind("rocm", 256, None, "gfx942"),
    "mi355": _Kind("rocm", 288, None, "gfx950"),
    "intel_gpu": _Kind("xpu"),
    "intel_hpu": _Kind("other"),
    "ascend_npu": _Kind("other"),
    "cpu": _Kind("cpu"),
    "cpu-small": _Kind("cpu"),
    "cpu-medium": _Kind("cpu"),
    "intel_cpu": _Kind("cpu"),
    "arm_cpu": _Kind("cpu"),
    "amd_cpu": _Kind("cpu"),
    "zen5": _Kind("cpu"),
}
# A step without `device` goes to the general queue, whose agents hold L4 cards.
DEFAULT_KIND = "l4"


def pool_count(device: str) -> int | None:
    """The device count that an AMD pool's name states (``mi355_4``: 4); None for other names."""
    found = re.fullmatch(r"mi\d+_(\d+|dpx)", device)
    if found is None:
        return None
    return 1 if found.group(1) == "dpx" else int(found.group(1))


def device_of(step: Step) -> Device | None:
    """The device that ``step`` runs on; None when its name is unknown here, or the job was given no device at all."""
    return None if step.no_gpu else _device(step.device or DEFAULT_KIND, step.count)


@cache
def _device(name: str, asked: int | None) -> Device | None:
    pool = re.fullmatch(r"(mi\d+)_(\d+|dpx)", name)
    kind = KINDS.get(pool.group(1) if pool else name)
    if kind is None:
        return None
    if kind.platform == "cpu":
        return Device(name, "cpu", 0)
    memory_gb = kind.memory_gb
    if pool and pool.group(2) == "dpx" and memory_gb is not None:
        memory_gb /= 2  # dual partition: each half of the card is a device of its own
    count = pool_count(name) if pool else _visible(name, asked)
    return Device(name, kind.platform, count, memory_gb, kind.capability, kind.arch)


# Pods and MIG slices show a job exactly what it asked for; other queues run the container with every GPU of the host.
EXACT_QUEUES = frozenset({"a100", "h100", "b200-k8s"})
ONE_DEVICE_QUEUES = frozenset({"h200_18gb", "h200_35gb", "gh200", "dgx-spark"})
L4_HOST_DEVICES = 4


def _visible(name: str, asked: int | None) -> int | None:
    """How many devices the job sees; None where the agent may show more than was asked for."""
    if name in ONE_DEVICE_QUEUES:
        return 1
    if name in EXACT_QUEUES:
        return asked or 1
    if name == "l4":
        return 1 if (asked or 1) == 1 else L4_HOST_DEVICES
    return None
