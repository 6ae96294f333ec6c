"""What the machine has to lease: GPUs (keyed by UUID, MIG instances included) or, on CPU, cores. And their memory."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pynvml

from harness.engine.info import EnginePlatform
from harness.errors import Infra, Misconfigured, Unsupported
from harness.plan.types import Device, Machine
from harness.runtime.deadline import Deadline

VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"
# A driver keeps some memory for itself and frees a context a moment after its process is gone.
_RELEASED_WITHIN_BYTES = 256 << 20
_POLL_S = 0.1


@dataclass(frozen=True)
class Gpu:
    """One physical GPU as NVML lists it. ``instances``: its MIG instances; when it has any, only they can be used."""

    index: int
    uuid: str
    name: str
    total_bytes: int
    instances: tuple[Gpu, ...] = ()
    capability: tuple[int, int] | None = None


def discover(platform: EnginePlatform, environment: Mapping[str, str]) -> Machine:
    """The machine for an engine of this platform. ``environment``: the caller's, for `VISIBLE_VARIABLE`.

    Raises `Infra` when NVML cannot be used, `Misconfigured` for a bad `VISIBLE_VARIABLE`, `Unsupported` for platforms
    whose devices cannot be listed yet.
    """
    cores = sorted(os.sched_getaffinity(0))
    memory_bytes = _memory_bytes()
    driver: str | None = None
    match platform:
        case "cpu":
            share = memory_bytes // len(cores)
            devices = tuple(
                Device(index, f"cpu-core-{core}", f"CPU core {core}", share) for index, core in enumerate(cores)
            )
        case "cuda":
            with _nvml():
                driver = str(pynvml.nvmlSystemGetDriverVersion())
                devices = visible_devices(_gpus(), environment.get(VISIBLE_VARIABLE))
        case other:
            raise Unsupported(f"devices of the platform {other} cannot be listed yet; this gate leases cpu and cuda")
    return Machine(
        platform=platform,
        devices=devices,
        memory_bytes=memory_bytes,
        cores=len(cores),
        host=socket.gethostname(),
        driver=driver,
    )


def visible_devices(gpus: Sequence[Gpu], visible: str | None) -> tuple[Device, ...]:
    """The devices that CUDA would show, in its order; ``index`` is the position, as CUDA counts.

    ``visible``: the value of `VISIBLE_VARIABLE`; None is no limit, an empty one hides all. CUDA stops silently at
    an entry it does not know; here that is `Misconfigured`, because fewer devices would be used than were asked for.
    """
    usable = [unit for gpu in gpus for unit in (gpu.instances or (gpu,))]
    if visible is None:
        chosen = usable
    else:
        chosen = [_named(entry.strip(), gpus, usable) for entry in visible.split(",") if entry.strip()]
    if len({unit.uuid for unit in chosen}) < len(chosen):
        raise Misconfigured(f"{VISIBLE_VARIABLE}={visible} names one device twice")
    return tuple(
        Device(position, unit.uuid, unit.name, unit.total_bytes, unit.capability)
        for position, unit in enumerate(chosen)
    )


def _named(entry: str, gpus: Sequence[Gpu], usable: Sequence[Gpu]) -> Gpu:
    if entry.isdecimal():
        found = [unit for gpu in gpus if gpu.index == int(entry) for unit in (gpu.instances[:1] or (gpu,))]
    else:
        found = [unit for unit in usable if unit.uuid.lower().startswith(entry.lower())]
    if len(found) == 1:
        return found[0]
    what = "names no usable device" if not found else "is the beginning of several devices' UUIDs"
    raise Misconfigured(f"{entry!r} in {VISIBLE_VARIABLE} {what}; this machine has {_list(usable)}")


def resolve_devices(requested: Sequence[int | str], machine: Machine) -> tuple[Device, ...]:
    """The devices that the user asked for, by index, UUID or the beginning of one; all ways lead to one key.

    Raises `Misconfigured` for an unknown, ambiguous or repeated one.
    """
    resolved: list[Device] = []
    for request in requested:
        text = str(request)
        if text.isdecimal():
            found = [device for device in machine.devices if device.index == int(text)]
        else:
            found = [device for device in machine.devices if device.key == text] or [
                device for device in machine.devices if text and device.key.lower().startswith(text.lower())
            ]
        if len(found) != 1:
            has = ", ".join(f"{device.index} ({device.key})" for device in machine.devices) or "none"
            why = "was asked for, but does not exist" if not found else "is ambiguous"
            raise Misconfigured(f"device {text} {why}; this machine has {has}")
        if found[0] in resolved:
            raise Misconfigured(f"device {text} ({found[0].key}) was asked for twice")
        resolved.append(found[0])
    return tuple(resolved)


def memory_used(keys: Sequence[str]) -> dict[str, int]:
    """Bytes in use on each GPU of ``keys``, by anyone; CPU cores have no memory of their own and are left out."""
    gpu_keys = [key for key in keys if not key.startswith("cpu-core-")]
    if not gpu_keys:
        return {}
    with _nvml():
        return {
            key: int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByUUID(key)).used) for key in gpu_keys
        }


def wait_released(
    keys: Sequence[str],
    baseline: Mapping[str, int],
    deadline: Deadline,
    used: Callable[[Sequence[str]], dict[str, int]] = memory_used,
) -> None:
    """Until the memory of every device is back at ``baseline`` (bytes by key). Raises `Infra` naming what is left."""
    while True:
        now = used(keys)
        left = {
            key: used_bytes
            for key, used_bytes in now.items()
            if used_bytes > baseline.get(key, 0) + _RELEASED_WITHIN_BYTES
        }
        if not left:
            return
        if deadline.expired:
            amounts = ", ".join(
                f"{key} holds {used_bytes >> 20} MiB, {baseline.get(key, 0) >> 20} MiB before the run"
                for key, used_bytes in left.items()
            )
            raise Infra(f"device memory was not released: {amounts}; see which processes use it (`nvidia-smi`)")
        time.sleep(min(_POLL_S, deadline.remaining()))


@contextlib.contextmanager
def _nvml() -> Iterator[None]:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise Infra(f"the NVIDIA driver does not answer ({error}); run `nvidia-smi` on this machine") from error
    try:
        yield
    finally:
        pynvml.nvmlShutdown()


def _gpus() -> list[Gpu]:
    return [_gpu(index) for index in range(pynvml.nvmlDeviceGetCount())]


def _gpu(index: int) -> Gpu:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    capability = (int(major), int(minor))
    return Gpu(
        index=index,
        uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
        name=str(pynvml.nvmlDeviceGetName(handle)),
        total_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
        instances=tuple(_instances(handle, capability)),
        capability=capability,
    )


def _instances(handle: object, capability: tuple[int, int]) -> Iterator[Gpu]:
    try:
        current, _ = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError_NotSupported:
        return
    if current != pynvml.NVML_DEVICE_MIG_ENABLE:
        return
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            instance = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except pynvml.NVMLError_NotFound:
            continue
        yield Gpu(
            index=index,
            uuid=str(pynvml.nvmlDeviceGetUUID(instance)),
            name=str(pynvml.nvmlDeviceGetName(instance)),
            total_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(instance).total),
            capability=capability,
        )


def _memory_bytes() -> int:
    """Memory of the machine, or of the container when that is less."""
    total = int(psutil.virtual_memory().total)
    with contextlib.suppress(OSError, ValueError):
        return min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return total


def _list(usable: Sequence[Gpu]) -> str:
    return ", ".join(f"{unit.uuid} ({unit.name})" for unit in usable) or "none"
