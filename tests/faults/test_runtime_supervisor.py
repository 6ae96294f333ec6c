"""Whatever is killed, nothing of the run is left and nothing else is touched. Real processes, real signals."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.errors import Infra
from harness.runtime.identity import ProcessId, alive, carries_marker, identify, new_marker, process_table
from harness.runtime.reaping import find_ours, reap_stale
from harness.runtime.record import read_all
from harness.runtime.supervised import EngineProcessDied, ServerExited
from harness.runtime.wire import LaunchKind
from harness.verdict import Verdict
from tests.faults.fake_run import FakeRun, eventually, free_port, new_run, ready, servers_of, soon

STUBBORN = ("--engine-process", "--ignore-sigterm", "--double-fork", "--clear-environment")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[FakeRun]:
    run = new_run(tmp_path)
    yield run
    # A failed test must not leave its processes to the next one.
    for pid in run.processes():
        os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def separate_runner(run: FakeRun, launch: str, *options: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A runner in a process of its own, with one server up; pids by role."""
    argv = [str(run.state_dir), str(run.run_dir), run.run_id, run.marker, launch, *options]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.faults.fake_run", *argv],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        start_new_session=True,
    ) as runner:
        assert runner.stdout is not None
        try:
            yield runner, json.loads(runner.stdout.readline())
        finally:
            runner.kill()


def below(pid: int) -> list[ProcessId]:
    return [row.identity for row in process_table().values() if row.parent == pid and not row.gone]


def nothing_left(run: FakeRun, known: list[ProcessId]) -> None:
    eventually(lambda: not run.processes() and not any(map(alive, known)), "every process of the run is gone")
    eventually(lambda: not read_all(run.state_dir).records, "the run record is removed")


def everything(run: FakeRun) -> list[ProcessId]:
    """All processes of the run, those without the marker too; waits until the supervisor knows the orphan."""
    record = run.on_disk()
    assert record is not None
    return sorted(find_ours(record))


@pytest.mark.parametrize("launch", ["spawn", "warm"])
def test_a_killed_runner_leaves_no_process_and_no_record(run: FakeRun, launch: str) -> None:
    with separate_runner(run, launch, *STUBBORN) as (runner, _):
        known = everything(run)
        assert len(known) >= 3
        runner.kill()
        nothing_left(run, known)


def test_a_terminated_runner_leaves_no_process_and_no_record(run: FakeRun) -> None:
    with separate_runner(run, "spawn", "--engine-process") as (runner, _):
        known = everything(run)
        runner.terminate()
        nothing_left(run, known)


def test_a_terminated_supervisor_ends_its_servers_first(run: FakeRun) -> None:
    with separate_runner(run, "spawn", "--engine-process") as (_, pids):
        known = everything(run)
        os.kill(pids["supervisor"], signal.SIGTERM)
        nothing_left(run, known)


def test_the_runner_finishes_the_job_of_a_killed_supervisor_and_says_so(run: FakeRun) -> None:
    port = free_port()
    with servers_of(run) as servers:
        servers.start(run.server("server-0", port, *STUBBORN), soon())
        ready(servers, port)
        servers.watch("server-0")
        eventually(lambda: len(everything(run)) == 3, "the orphan is known")
        known = everything(run)
        record = run.on_disk()
        assert record is not None
        assert record.supervisor is not None
        eventually(lambda: len((run.on_disk() or record).descendants) == 2, "the record names the orphan")
        os.kill(record.supervisor.pid, signal.SIGKILL)
        with pytest.raises(Infra, match=r"supervisor process ended.*SIGKILL"):
            ready(servers, free_port())
        assert not any(map(alive, known))
    nothing_left(run, known)


def test_the_next_start_finishes_the_job_when_runner_and_supervisor_were_killed(run: FakeRun) -> None:
    with separate_runner(run, "spawn", *STUBBORN) as (runner, pids):
        record = run.on_disk()
        assert record is not None
        eventually(lambda: len((run.on_disk() or record).descendants) == 2, "the record names the orphan")
        known = everything(run)
        assert not reap_stale(run.state_dir), "a live run was taken for a stale one"
        runner.kill()
        os.kill(pids["supervisor"], signal.SIGKILL)
        runner.wait()
        eventually(lambda: identify(pids["supervisor"]) is None, "the supervisor is gone")
        # The supervisor may have had time to see the end of the pipe; then it left nothing to do.
        reap_stale(run.state_dir, grace_s=0.2)
        nothing_left(run, known)


def test_a_server_that_exits_at_once_is_seen_with_the_line_it_printed(run: FakeRun) -> None:
    line = "MTP speculative decoding layer 78 weights missing from checkpoint"
    with servers_of(run) as servers:
        servers.start(run.server("decode-0", free_port(), "--exit-at-once", line), soon())
        with pytest.raises(ServerExited, match=line) as caught:
            ready(servers, free_port())
        assert caught.value.returncode == 1
        assert caught.value.name == "decode-0"
        assert caught.value.root_line == line
        assert caught.value.verdict is Verdict.REGRESSION


def test_an_exit_of_a_forked_server_is_seen_with_its_code(run: FakeRun) -> None:
    with servers_of(run) as servers:
        servers.start_importer(run.importer(), soon())
        servers.start(run.server("decode-0", free_port(), "--exit-at-once", "no weights", launch="warm"), soon())
        with pytest.raises(ServerExited, match="no weights") as caught:
            ready(servers, free_port())
        assert caught.value.returncode == 1


@pytest.mark.parametrize("launch", ["spawn", "warm"])
def test_a_killed_server_is_seen_and_blamed_on_the_machine(run: FakeRun, launch: str) -> None:
    port = free_port()
    with servers_of(run) as servers:
        if launch == "warm":
            servers.start_importer(run.importer(), soon())
        server = servers.start(run.server("s", port, launch="warm" if launch == "warm" else "spawn"), soon())
        ready(servers, port)
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(ServerExited, match="SIGKILL") as caught:
            ready(servers, free_port())
        assert caught.value.verdict is Verdict.INFRA


@pytest.mark.parametrize("launch", ["spawn", "warm"])
def test_the_death_of_an_engine_process_is_seen_though_the_server_stays_healthy(run: FakeRun, launch: str) -> None:
    port = free_port()
    with servers_of(run) as servers:
        if launch == "warm":
            servers.start_importer(run.importer(), soon())
        kind: LaunchKind = "warm" if launch == "warm" else "spawn"
        server = servers.start(run.server("decode-0", port, "--engine-process", launch=kind), soon())
        ready(servers, port)
        servers.watch("decode-0")
        (engine,) = below(server.pid)
        eventually(lambda: f"watching {engine}" in (run.run_dir / "supervisor.log").read_text(), "it is watched")
        os.kill(engine.pid, signal.SIGKILL)
        with pytest.raises(EngineProcessDied) as caught:
            ready(servers, free_port())
        assert caught.value.process == engine
        assert alive(server)


def test_the_end_of_a_helper_program_below_a_server_is_no_news(run: FakeRun) -> None:
    port = free_port()
    with servers_of(run) as servers:
        server = servers.start(run.server("s", port, "--helper", "--engine-process"), soon())
        ready(servers, port)
        servers.watch("s")
        log = run.run_dir / "supervisor.log"
        eventually(lambda: "watching" in log.read_text(), "the engine process is watched")
        eventually(lambda: len(below(server.pid)) == 1, "the helper has ended")
        servers.check()
        assert "descendant_died" not in log.read_text()


def test_stopping_one_server_leaves_the_other_and_its_engine_alone(run: FakeRun) -> None:
    first, second = free_port(), free_port()
    with servers_of(run) as servers:
        servers.start(run.server("a", first, "--engine-process"), soon())
        other = servers.start(run.server("b", second, "--engine-process"), soon())
        ready(servers, first, second)
        servers.watch("a")
        report = servers.stop("a", grace_s=5, deadline=soon())
        assert len(report.terminated) >= 1
        assert not report.killed
        assert alive(other)
        assert len(below(other.pid)) == 1
        servers.check()


def test_a_server_that_ignores_sigterm_is_killed_with_its_orphans(run: FakeRun) -> None:
    port = free_port()
    with servers_of(run) as servers:
        servers.start(run.server("a", port, *STUBBORN), soon())
        ready(servers, port)
        eventually(lambda: len(everything(run)) == 3, "the orphan is known")
        known = everything(run)
        report = servers.stop_all(grace_s=0.2, deadline=soon())
        assert len(report.killed) >= 2
        assert not report.survivors
        assert not any(map(alive, known))


def test_a_stopped_name_can_be_started_again(run: FakeRun) -> None:
    first, second = free_port(), free_port()
    with servers_of(run) as servers:
        servers.start_importer(run.importer(), soon())
        for port in (first, second):
            servers.start(run.server("a", port, launch="warm"), soon())
            ready(servers, port)
            servers.stop("a", grace_s=5, deadline=soon())
        servers.check()


def test_a_program_that_does_not_exist_is_named(run: FakeRun) -> None:
    with servers_of(run) as servers:
        spec = run.server("a", 1)
        broken = type(spec)(spec.name, ("/no/such/python",), spec.environment, spec.cwd, spec.log)
        with pytest.raises(Infra, match="/no/such/python"):
            servers.start(broken, soon())


def test_an_environment_without_the_marker_is_refused(run: FakeRun) -> None:
    with servers_of(run) as servers:
        spec = run.server("a", 1)
        with pytest.raises(ValueError, match="SPT_NOENV=1"):
            servers.start(type(spec)(spec.name, spec.argv, {}, spec.cwd, spec.log), soon())


def test_shared_memory_of_killed_servers_is_removed(run: FakeRun) -> None:
    port = free_port()
    segment = Path(f"/dev/shm/psm_{run.marker}")
    with servers_of(run) as servers:
        servers.start(run.server("a", port, "--shared-memory", segment.name, "--ignore-sigterm"), soon())
        ready(servers, port)
        assert segment.exists()
        report = servers.stop_all(grace_s=0.1, deadline=soon())
    assert report.shared_memory == (str(segment),)
    assert not segment.exists()


def test_foreign_processes_that_look_the_same_are_not_touched(run: FakeRun) -> None:
    port, foreign_port = free_port(), free_port()
    options = ("--engine-process", "--ignore-sigterm", "--double-fork")
    spec = run.server("a", port, *options)
    # The same program, options and variables; only the token of the marker is another run's.
    foreign_marker = new_marker(run.run_id)
    foreign_argv = [*spec.argv[:3], "--port", str(foreign_port), *options]
    environment = {**run.environment(), "GATE_RUN": foreign_marker}

    def strangers() -> set[ProcessId]:
        table = process_table()
        return {row.identity for row in table.values() if not row.gone and carries_marker(row.pid, foreign_marker)}

    with subprocess.Popen(foreign_argv, env=environment, stdout=subprocess.DEVNULL, start_new_session=True):
        try:
            with servers_of(run) as servers:
                servers.start(spec, soon())
                ready(servers, port, foreign_port)
                before = strangers()
                servers.stop_all(grace_s=0.2, deadline=soon())
            nothing_left(run, [])
            assert len(before) == 3
            assert strangers() == before
        finally:
            for stranger in strangers():
                os.kill(stranger.pid, signal.SIGKILL)
