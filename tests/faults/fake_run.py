"""A small run of fake engines: in this process, or as a runner of its own that a test may kill.

python -m tests.faults.fake_run STATE_DIR RUN_DIR RUN_ID LAUNCH [fake engine options]
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.runtime.deadline import Deadline
from harness.runtime.identity import (
    carries_marker,
    host_identity,
    new_marker,
    own_identity,
    process_table,
)
from harness.runtime.leases import Holder, lease, socket_name
from harness.runtime.readiness import HttpHealth, wait
from harness.runtime.record import RunRecord, read, record_path
from harness.runtime.supervised import Servers, supervised
from harness.runtime.wire import IMPORTER, LaunchKind, ServerSpec

FAKE_ENGINE = Path(__file__).with_name("fake_engine.py")
# Generous: a loaded machine must not fail a test, and nothing waits this long when all is well.
PATIENCE_S = 20.0


@dataclass(frozen=True)
class FakeRun:
    """Where one run keeps its things, and the marker of its processes."""

    run_id: str
    marker: str
    state_dir: Path
    run_dir: Path

    def record(self, leases: tuple[str, ...] = ()) -> RunRecord:
        return RunRecord(
            run_id=self.run_id,
            marker=self.marker,
            runner=own_identity(),
            host=host_identity(),
            user="tester",
            run_dir=str(self.run_dir),
            started_at=time.time(),
            leases=leases,
        )

    def environment(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "GATE_RUN": self.marker, "SPT_NOENV": "1"}

    def server(self, name: str, port: int, *options: str, launch: LaunchKind = "spawn") -> ServerSpec:
        argv = (sys.executable, "-S", str(FAKE_ENGINE)) if launch == "spawn" else ()
        return ServerSpec(
            name=name,
            argv=(*argv, "--port", str(port), *options),
            environment=self.environment(),
            cwd=self.run_dir,
            log=self.run_dir / f"{name}.log",
            launch=launch,
        )

    def importer(self) -> ServerSpec:
        return ServerSpec(
            name=IMPORTER,
            argv=(sys.executable, "-S", str(FAKE_ENGINE)),
            environment=self.environment(),
            cwd=self.run_dir,
            log=self.run_dir / "importer.log",
        )

    def on_disk(self) -> RunRecord | None:
        return read(record_path(self.state_dir, self.run_id))

    def processes(self) -> list[int]:
        """Running processes that carry this run's marker."""
        return [pid for pid, row in process_table().items() if not row.gone and carries_marker(pid, self.marker)]


def new_run(root: Path, run_id: str = "r1") -> FakeRun:
    run_dir = root / run_id
    run_dir.mkdir()
    return FakeRun(run_id, new_marker(run_id), root / "state", run_dir)


# Below every port that runs choose and that the kernel gives to connections: one of those may get a port between the
# moment it was found free and the start of its server. Each process of a test session begins elsewhere.
_PORTS = itertools.cycle(range(10_000, 20_000))
for _ in range(os.getpid() * 97 % 10_000):
    next(_PORTS)


def free_port() -> int:
    while True:
        port = next(_PORTS)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def name_is_bound(key: str) -> bool:
    """Whether somebody on this machine holds the name of a device or a port."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(socket_name(key))
        except OSError:
            return True
    return False


@contextlib.contextmanager
def servers_of(run: FakeRun) -> Iterator[Servers]:
    with supervised(run.record(), run.state_dir, run.run_dir) as servers:
        yield servers


def soon() -> Deadline:
    return Deadline.after(PATIENCE_S)


def ready(servers: Servers, *ports: int) -> None:
    wait([HttpHealth(str(port), f"http://127.0.0.1:{port}") for port in ports], soon(), servers.check, poll_s=0.02)


def eventually(holds: Callable[[], bool], what: str) -> None:
    """Fail with ``what`` unless ``holds`` becomes true within `PATIENCE_S`."""
    deadline = soon()
    while not holds():
        if deadline.expired:
            pytest.fail(f"never happened: {what}")
        time.sleep(0.02)


def main() -> None:
    state_dir, run_dir, run_id, marker, launch, *options = sys.argv[1:]
    run = FakeRun(run_id, marker, Path(state_dir), Path(run_dir))
    key = f"test-device-{marker}"
    holder = Holder(run_id, os.getpid(), "tester", "fake", time.time())
    with (
        lease([key], run.state_dir, holder, deadline=soon()) as held,
        supervised(run.record(leases=(key,)), run.state_dir, run.run_dir, hold=held.descriptors) as servers,
    ):
        port = free_port()
        if launch == "warm":
            servers.start_importer(run.importer(), soon())
        kind: LaunchKind = "warm" if launch == "warm" else "spawn"
        server = servers.start(run.server("server-0", port, *options, launch=kind), soon())
        ready(servers, port)
        servers.watch("server-0")
        record = run.on_disk()
        assert record is not None
        assert record.supervisor is not None
        pids = {"runner": os.getpid(), "supervisor": record.supervisor.pid, "server": server.pid}
        sys.stdout.write(json.dumps(pids) + "\n")
        sys.stdout.flush()
        while True:
            servers.check()
            signal.sigtimedwait([signal.SIGUSR1], 0.1)


if __name__ == "__main__":
    main()
