"""Memory budgets of one server, in bytes."""

from __future__ import annotations

from harness.deployments import ModelSetName
from harness.errors import Misconfigured
from harness.plan.types import Device

MIB = 1 << 20
GIB = 1 << 30

# tiny: 4096 tokens of the largest zoo model (5 layers x K and V x 128 x 4 bytes) are 20 MiB; hybrid pages are padded
# to the recurrent state, hence the room. hub: one 16k sequence of Llama-3.1-8B is 2 GiB; 8 GiB serve 16 at a time.
_KV_CACHE_BYTES = {"tiny": 64 * MIB, "hub": 8 * GIB}

# Weights, activations, CUDA context and graphs beside the KV cache; what one server needs at least.
_OTHER_BYTES = {"tiny": 4 * GIB, "hub": 24 * GIB}


def kv_cache_bytes(model_set: ModelSetName) -> int:
    """KV cache of one rank."""
    return _KV_CACHE_BYTES[model_set]


def server_bytes(model_set: ModelSetName) -> int:
    """Device memory to plan for one rank of one server."""
    return _KV_CACHE_BYTES[model_set] + _OTHER_BYTES[model_set]


def check_shared(devices: tuple[Device, ...], servers_per_device: int, model_set: ModelSetName) -> None:
    """Raise Misconfigured, with the arithmetic, when the servers that share a device cannot fit on it."""
    need = servers_per_device * server_bytes(model_set)
    for device in devices:
        if need > device.total_bytes:
            raise Misconfigured(
                f"{servers_per_device} servers x {server_bytes(model_set) / GIB:.1f} GiB = {need / GIB:.1f} GiB do not "
                f"fit on device {device.index} ({device.name}, {device.total_bytes / GIB:.1f} GiB); "
                "give each server its own device (drop --share-devices or pass --devices)."
            )
