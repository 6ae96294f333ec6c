"""The gate as a user has it: a command in a process of its own, watched through what it writes down."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.runtime import record as records
from harness.runtime.deadline import Deadline
from harness.runtime.identity import ProcessId, alive, carries_marker, command_line, process_table
from harness.runtime.leases import Holder, lease
from harness.runtime.ports import check_still_free, lease_ports
from harness.runtime.reaping import find_ours
from harness.runtime.record import RunRecord

ROOT = Path(__file__).parents[2]

# A cold import of the engine on two busy cores; nothing waits this long when all is well.
PATIENCE_S = 150.0
# What issue 2 promises after a kill, whatever was killed.
CLEAN_WITHIN_S = 15.0
# Enough that the requests are still being sent when a signal arrives: about a minute of them.
LONG = ("--prompts", "400")


@dataclass
class Started:
    """One running command. ``folder``: its run folder, once it has one."""

    process: subprocess.Popen[str]
    runs: Path
    state: Path
    out: Path
    record: RunRecord | None = None

    @property
    def folder(self) -> Path:
        (folder,) = [path for path in self.runs.iterdir() if path.is_dir()]
        return folder

    @property
    def output(self) -> str:
        return self.out.read_text()

    @property
    def result(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "result.json").read_text()))

    @property
    def plan(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "plan.json").read_text()))

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        with contextlib.suppress(FileNotFoundError, ValueError):
            lines = (self.folder / "events.jsonl").read_text().split("\n")[:-1]
            return [event for line in lines if kind in (None, (event := json.loads(line))["event"])]
        return []

    def finish(self) -> int:
        """The exit code of the command."""
        return self.process.wait(PATIENCE_S * 2)

    def await_phase(self, name: str) -> RunRecord:
        """Wait until phase ``name`` is on, and a request of it answered if it is the drive; returns the run record."""

        def begun() -> bool:
            if self.process.poll() is not None:
                pytest.fail(f"ended with {self.process.returncode} before {name}:\n{self.output}")
            started = any(event["phase"] == name for event in self.events("phase_started"))
            requests = self.runs.glob("*/requests.jsonl")
            return started and (name != "drive" or any(path.stat().st_size for path in requests))

        eventually(begun, f"phase {name} begins", PATIENCE_S)
        record = records.read(records.record_path(self.state, self.folder.name))
        assert record is not None, "a run in the middle of its work has no record"
        assert record.supervisor is not None
        self.record = record
        return record

    def everything(self) -> list[ProcessId]:
        """Every process of the run, runner and supervisor included, as they are now."""
        assert self.record is not None
        assert self.record.supervisor is not None
        return sorted({*find_ours(self.record), self.record.runner, self.record.supervisor})

    def engine_processes(self, server: str) -> list[ProcessId]:
        """The processes right below a server: its engine core."""
        table = process_table()
        return [row.identity for row in table.values() if row.parent == self.server(server).pid and not row.gone]

    def server(self, name: str) -> ProcessId:
        """A server, the router or the importer, by its name in the plan."""
        assert self.record is not None
        (process,) = [entry.process for entry in self.record.servers if entry.name == name]
        assert process is not None
        return process

    def ports(self) -> set[int]:
        """Every port that the plan names."""
        found: set[int] = set()
        for stage in self.plan["stages"]:
            for server in stage["servers"]:
                found |= {server["port"], *server["side_channel_ports"]}
            if (router := stage["router"]) is not None:
                found |= {router["port"], router["metrics_port"]}
        return found

    def nothing_left(self, known: Sequence[ProcessId]) -> None:
        """Fail unless, within `CLEAN_WITHIN_S`, no process, record, lease or port of the run is left."""
        record = self.record
        assert record is not None

        def left() -> list[str]:
            marked = [
                row.identity
                for row in process_table().values()
                if not row.gone and row.pid != os.getpid() and carries_marker(row.pid, record.marker)
            ]
            running = sorted({*marked, *(process for process in known if alive(process))})
            lines = [f"{process.pid} {command_line(process.pid)[:100]}" for process in running]
            path = records.record_path(self.state, record.run_id)
            return lines + ([f"record {path}"] if path.exists() else [])

        eventually(lambda: not left(), lambda: f"nothing is left of the run, but: {left()}", CLEAN_WITHIN_S)
        holder = Holder("check", os.getpid(), "tester", "check", time.time())
        with lease(record.leases, self.state, holder, deadline=Deadline.after(0.5)):
            pass
        # Reading the registry drops what belongs to nobody; what stays is still reserved.
        with lease_ports((), self.state, "check"):
            assert json.loads((self.state / "ports.json").read_text()) == []
        for port in self.ports():
            check_still_free("127.0.0.1", port)


def eventually(holds: Callable[[], bool], what: str | Callable[[], str], within_s: float) -> None:
    """Fail with ``what`` unless ``holds`` becomes true in time."""
    deadline = Deadline.after(within_s)
    while not holds():
        if deadline.expired:
            pytest.fail(f"not within {within_s:.0f} s: {what if isinstance(what, str) else what()}")
        time.sleep(0.05)


@dataclass(frozen=True)
class Gate:
    """How to call the gate in one test: its engine, and a state folder that no other run uses."""

    engine: str
    folder: Path

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @contextlib.contextmanager
    def start(self, argv: Sequence[str], label: str = "run") -> Iterator[Started]:
        """Start a command with a runs folder of its own; whatever it leaves behind is ended with the block."""
        runs = self.folder / label
        runs.mkdir()
        out = self.folder / f"{label}.out"
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "NOX_"))},
            "SPEC_GATE_STATE": str(self.state),
            # What `nox` finds as `python` is the interpreter of these tests.
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        with out.open("w") as stream:
            process = subprocess.Popen(
                [*argv, "--engine", self.engine, "--runs-dir", str(runs), "--no-retry-infra"],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=ROOT,
                env=environment,
                # A process group of its own, so that a Ctrl-C for all of it can be sent as a terminal does.
                start_new_session=True,
            )
        started = Started(process, runs, self.state, out)
        try:
            yield started
        finally:
            process.kill()
            process.wait()
            # Not the same process when nox was started; a failed test must not leave its run to the next one.
            if started.record is not None and alive(started.record.runner):
                os.kill(started.record.runner.pid, signal.SIGKILL)
            self.reap()

    def run(self, *options: str, label: str = "run") -> Started:
        """Run the gate to its end."""
        with self.start(harness("run", *options), label) as started:
            started.finish()
        return started

    def reap(self) -> str:
        """What `harness reap` says."""
        done = subprocess.run(
            [sys.executable, "-m", "harness", "reap"],
            env={**os.environ, "SPEC_GATE_STATE": str(self.state)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return done.stdout


def slow(value: object) -> object:
    """A parameter that a default run leaves out: its neighbour walks the same road."""
    return pytest.param(value, marks=pytest.mark.slow)


def harness(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "harness", *arguments]


def solo(name: str, folder: Path) -> list[str]:
    """The command line of a standalone deployment, with the baseline that it needs."""
    from tests.e2e.solo import BASELINE

    path = folder / "baselines.toml"
    path.write_text(BASELINE.format(name=name))
    return [sys.executable, "-m", "tests.e2e.solo", "run", name, "--baselines", str(path)]


def nox(session: str, *options: str) -> list[str]:
    """Real nox, in the environment of these tests instead of one that it would install first."""
    return [sys.executable, "-m", "nox", "--no-venv", "--no-install", "-s", session, "--", *options]
