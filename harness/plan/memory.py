"""Memory budgets of one server, in bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from harness.deployments import ModelSetName
from harness.engine.info import EnginePlatform
from harness.errors import Misconfigured
from harness.plan.types import Device

MIB = 1 << 20
GIB = 1 << 30

# tiny: 4096 tokens of the largest zoo model (5 layers x K and V x 128 x 4 bytes) are 20 MiB; hybrid pages are padded
# to the recurrent state, hence the room. hub: one 16k sequence of Llama-3.1-8B is 2 GiB; 8 GiB serve 16 at a time.
_KV_CACHE_BYTES = {"tiny": 64 * MIB, "hub": 8 * GIB}

# Weights, activations, CUDA context and graphs beside the KV cache; what one server needs at least.
_OTHER_BYTES = {"tiny": 4 * GIB, "hub": 24 * GIB}


# On CPU a connector touches and registers every block before the server is ready: 8 GiB of small blocks take a minute,
# and two servers of 8 GiB leave nothing for weights. Room for one 16k sequence of Llama-3.1-8B and its drafter.
_HUB_KV_CACHE_BYTES_ON_CPU = 5 * GIB // 2


def kv_cache_bytes(model_set: ModelSetName, platform: EnginePlatform) -> int:
    """KV cache of one rank."""
    if model_set == "hub" and platform == "cpu":
        return _HUB_KV_CACHE_BYTES_ON_CPU
    return _KV_CACHE_BYTES[model_set]


def server_bytes(model_set: ModelSetName) -> int:
    """Device memory to plan for one rank of one server."""
    return _KV_CACHE_BYTES[model_set] + _OTHER_BYTES[model_set]


# Private memory of one CPU rank of a tiny server: what it does not share with the importer it was forked from.
_CPU_RANK_BYTES = 2 * GIB


def cpu_ranks_that_fit(memory_bytes: int) -> int:
    """How many ranks may live at once in main memory; a quarter of it is left to the system and the page cache."""
    return memory_bytes * 3 // 4 // _CPU_RANK_BYTES


def check_shared(servers: Mapping[str, tuple[Device, ...]], model_set: ModelSetName) -> None:
    """Raise Misconfigured, with the arithmetic, when servers that live at once cannot fit on a device they share.

    ``servers``: devices by server name.
    """
    sharing = Counter(device.key for devices in servers.values() for device in devices)
    for device in {device.key: device for devices in servers.values() for device in devices}.values():
        count = sharing[device.key]
        need = count * server_bytes(model_set)
        if count > 1 and need > device.total_bytes:
            raise Misconfigured(
                f"{count} servers x {server_bytes(model_set) / GIB:.1f} GiB = {need / GIB:.1f} GiB do not "
                f"fit on device {device.index} ({device.name}, {device.total_bytes / GIB:.1f} GiB); "
                "give each server its own device (drop --share-devices or pass --devices)."
            )
