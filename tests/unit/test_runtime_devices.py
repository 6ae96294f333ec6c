from __future__ import annotations

import pytest

from harness.errors import Infra, Misconfigured, Unsupported
from harness.plan.types import Machine
from harness.runtime.deadline import Deadline
from harness.runtime.devices import Gpu, discover, resolve_devices, visible_devices, wait_released

A = Gpu(0, "GPU-aaaa1111-0000", "H200", 150 << 30)
B = Gpu(1, "GPU-bbbb2222-0000", "H200", 150 << 30)
MIG = Gpu(
    2,
    "GPU-cccc3333-0000",
    "H200",
    150 << 30,
    (Gpu(0, "MIG-dddd-1", "1g", 16 << 30), Gpu(1, "MIG-eeee-2", "1g", 16 << 30)),
)


def machine(*gpus: Gpu, visible: str | None = None) -> Machine:
    return Machine("cuda", visible_devices(gpus, visible), 1 << 40, 16, "host")


@pytest.mark.parametrize("request_", [1, "1", "GPU-bbbb2222-0000", "GPU-bbbb", "gpu-BBBB2222"])
def test_every_way_to_name_a_device_leads_to_one_key(request_: int | str) -> None:
    (device,) = resolve_devices([request_], machine(A, B))
    assert device.key == B.uuid


def test_a_device_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(Misconfigured, match=r"device 9 was asked for, but does not exist.*0 \(GPU-aaaa.*1 \(GPU-bbbb"):
        resolve_devices([9], machine(A, B))


def test_an_ambiguous_beginning_is_refused() -> None:
    with pytest.raises(Misconfigured, match="ambiguous"):
        resolve_devices(["GPU-"], machine(A, B))
    with pytest.raises(Misconfigured):
        resolve_devices([""], machine(A))


def test_one_device_by_two_names_is_refused() -> None:
    with pytest.raises(Misconfigured, match="twice"):
        resolve_devices([0, A.uuid], machine(A, B))


def test_visible_devices_limit_and_order_as_cuda_does() -> None:
    assert [device.key for device in machine(A, B, visible="1,0").devices] == [B.uuid, A.uuid]
    assert [device.index for device in machine(A, B, visible="1").devices] == [0]
    assert [device.key for device in machine(A, B, visible="GPU-bbbb").devices] == [B.uuid]
    assert machine(A, B, visible="").devices == ()


def test_a_visible_device_that_does_not_exist_is_refused_and_not_dropped() -> None:
    with pytest.raises(Misconfigured, match="'7' in CUDA_VISIBLE_DEVICES"):
        machine(A, B, visible="0,7")
    with pytest.raises(Misconfigured, match="one device twice"):
        machine(A, B, visible="0,GPU-aaaa")


def test_a_partitioned_gpu_offers_its_instances_instead_of_itself() -> None:
    assert [device.key for device in machine(A, MIG).devices] == [A.uuid, "MIG-dddd-1", "MIG-eeee-2"]
    assert [device.key for device in machine(A, MIG, visible="MIG-eeee-2").devices] == ["MIG-eeee-2"]


def test_on_cpu_the_devices_are_the_cores_this_process_may_use() -> None:
    found = discover("cpu", {})
    assert len(found.devices) == found.cores > 0
    assert all(device.key.startswith("cpu-core-") for device in found.devices)
    assert resolve_devices(["cpu-core-" + found.devices[0].key.removeprefix("cpu-core-")], found) == found.devices[:1]


def test_a_platform_that_cannot_be_listed_is_said() -> None:
    with pytest.raises(Unsupported, match="rocm"):
        discover("rocm", {})


def test_released_memory_ends_the_wait_and_kept_memory_is_named() -> None:
    readings = iter([{"GPU-a": 9 << 30}, {"GPU-a": 1 << 30}])
    wait_released(["GPU-a"], {"GPU-a": 1 << 30}, Deadline.after(60), lambda _: next(readings))
    with pytest.raises(Infra, match="GPU-a holds 9216 MiB, 1024 MiB before the run"):
        wait_released(["GPU-a"], {"GPU-a": 1 << 30}, Deadline.after(0), lambda _: {"GPU-a": 9 << 30})
