"""Port runs of two processes never overlap, and a stranger on a port is named before launch."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import Infra
from harness.plan.types import PortRun
from harness.runtime.ports import check_still_free, lease_ports
from tests.faults.fake_run import FAKE_ENGINE, eventually, free_port, new_run

ROOT = Path(__file__).parents[2]
HOLD = """
import sys, json
from pathlib import Path
from harness.plan.types import PortRun
from harness.runtime.ports import lease_ports
with lease_ports([PortRun("http", 3)], Path(sys.argv[1]), sys.argv[2]) as ports:
    sys.stdout.write(json.dumps(ports) + "\\n")
    sys.stdout.flush()
    sys.stdin.read()
"""


def test_two_runs_of_one_id_get_different_ports_while_both_live(tmp_path: Path) -> None:
    # The same id, so both begin their search at the same port.
    argv = [sys.executable, "-c", HOLD, str(tmp_path), "same"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as other:
        assert other.stdout is not None
        theirs = json.loads(other.stdout.readline())["http"]
        with lease_ports([PortRun("http", 3)], tmp_path, "same") as ours:
            assert not set(range(theirs, theirs + 3)) & set(range(ours["http"], ours["http"] + 3))
        other.kill()
        other.wait()
        with lease_ports([PortRun("http", 3)], tmp_path, "same") as again:
            assert again["http"] == theirs, "the ports of a killed run were not given back"


def test_runs_of_one_id_with_different_state_folders_get_different_ports_before_they_bind_any(tmp_path: Path) -> None:
    wanted = [PortRun("http", 3)]
    with lease_ports(wanted, tmp_path / "one", "same") as ours, lease_ports(wanted, tmp_path / "two", "same") as theirs:
        assert abs(theirs["http"] - ours["http"]) >= 3
    with lease_ports(wanted, tmp_path / "two", "same") as again:
        assert again == ours, "the names of a run that is over were not given back"


def test_ports_are_contiguous_below_the_ephemeral_range_and_free(tmp_path: Path) -> None:
    with lease_ports([PortRun("a/http", 1), PortRun("a/nixl", 4), PortRun("b/nixl", 4)], tmp_path, "r1") as ports:
        low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        used = [*range(ports["a/nixl"], ports["a/nixl"] + 4), *range(ports["b/nixl"], ports["b/nixl"] + 4)]
        assert len({*used, ports["a/http"]}) == 9
        assert max(used) < low
        for port in used:
            check_still_free("127.0.0.1", port)


def test_a_port_that_is_in_use_is_not_chosen(tmp_path: Path) -> None:
    with lease_ports([PortRun("http", 2)], tmp_path, "r1") as first:
        port = first["http"] + 1
    with socket.create_server(("127.0.0.1", port)), lease_ports([PortRun("http", 2)], tmp_path, "r1") as second:
        assert second["http"] == port + 1


def test_a_stranger_on_the_port_is_named_with_its_pid_and_command(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    port = free_port()
    argv = [sys.executable, "-S", str(FAKE_ENGINE), "--port", str(port)]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, env={"PATH": os.environ["PATH"]}) as stranger:

        def listening() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        eventually(listening, "the stranger listens")
        with pytest.raises(Infra, match=f"port {port} .*pid {stranger.pid} .*fake_engine.py"):
            check_still_free("127.0.0.1", port)
        stranger.kill()
    check_still_free("127.0.0.1", port)
    assert run.on_disk() is None


def test_a_listener_on_all_addresses_blocks_the_loopback_port() -> None:
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(Infra, match=f"pid {os.getpid()}"):
            check_still_free("127.0.0.1", port)
