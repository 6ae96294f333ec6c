from __future__ import annotations

import socket
from pathlib import Path

import pytest

from harness.deployments import EAGLE3_PD
from harness.errors import EngineFailed, Infra
from harness.plan.build import build_plan, kv_buffers, requirements
from harness.plan.types import Allocation, Options, Plan
from harness.run.blame import blame_others, disk_is_full
from tests.unit.plan_inputs import CPU_MACHINE, inputs


def plan_with(ports: list[int]) -> Plan:
    values = inputs(EAGLE3_PD, options=Options(router="direct"))
    needs = requirements(EAGLE3_PD, values.options, "tiny")
    devices = {"prefill-0": CPU_MACHINE.devices[:1], "decode-0": CPU_MACHINE.devices[1:]}
    given = {run.purpose: port for run, port in zip(needs.ports, ports, strict=True)}
    buffer = kv_buffers(EAGLE3_PD, values.options, CPU_MACHINE)[0]
    return build_plan(values, Allocation(devices=devices, ports=given), buffer)


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


TAKEN = EngineFailed("decode-0 exited", root_line="OSError: [Errno 98] Address already in use")


def test_a_port_that_is_still_taken_when_every_server_is_gone_is_a_strangers() -> None:
    ports = free_ports(4)
    with socket.create_server(("127.0.0.1", ports[2])), pytest.raises(Infra, match=f"port {ports[2]} .*pid"):
        blame_others(TAKEN, plan_with(ports), (), {})


def test_a_port_that_is_free_again_was_taken_by_the_engine_itself() -> None:
    blame_others(TAKEN, plan_with(free_ports(4)), (), {})


def test_a_failure_that_names_no_port_is_nobody_elses() -> None:
    ports = free_ports(4)
    with socket.create_server(("127.0.0.1", ports[2])):
        blame_others(EngineFailed("decode-0 exited", root_line="ValueError: bad"), plan_with(ports), (), {})


def test_a_disk_with_room_is_not_full_and_a_folder_that_is_gone_says_nothing(tmp_path: Path) -> None:
    assert not disk_is_full(tmp_path)
    assert not disk_is_full(tmp_path / "gone")
