"""SIGKILL to any process of a real run while requests are in flight: a verdict that is right, and nothing left.

Nothing left means, within `CLEAN_WITHIN_S` of the kill: no process of the run, no record, its lease to be had at once,
its ports unregistered and free. A foreign vLLM that looks the same runs beside all of it.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.runtime.identity import ProcessId, alive, command_line
from tests.e2e.gate import CLEAN_WITHIN_S, LONG, Gate, Started, eventually, harness, nox, slow, solo
from tests.e2e.look_alike import foreign_vllm, untouched


@pytest.fixture(autouse=True)
def _strangers(tmp_path: Path) -> Iterator[None]:
    with foreign_vllm(tmp_path / "foreign") as strangers:
        yield
        untouched(strangers)


def kill(process: ProcessId) -> float:
    """SIGKILL to exactly this process; when."""
    assert alive(process), "it ended before it was killed"
    print(f"SIGKILL to {process.pid}: {command_line(process.pid)[:90]}")  # noqa: T201
    os.kill(process.pid, signal.SIGKILL)
    return time.monotonic()


def report(started: Started, killed_s: float, what: str) -> None:
    result = started.result
    print(  # noqa: T201
        f"{what}: {result['verdict']}: {result['reason']} [exit {started.process.poll()}, clean "
        f"{time.monotonic() - killed_s:.1f} s after the signal, at most {CLEAN_WITHIN_S:.0f} s allowed]"
    )


@pytest.mark.parametrize("name", [slow("prefill-0"), "decode-0", "router-0", slow("importer")])
def test_a_killed_server_is_the_machines_fault_and_leaves_nothing(gate: Gate, name: str) -> None:
    with gate.start(harness("run", "eagle3-pd", *LONG)) as started:
        started.await_phase("drive")
        known = started.everything()
        killed_s = kill(started.server(name))
        started.nothing_left(known)
        assert started.finish() == 3
        report(started, killed_s, name)
        assert started.result["verdict"] == "infra"
        assert f"{name} was killed by SIGKILL; read " in started.result["reason"]


@pytest.mark.parametrize("name", [slow("prefill-0"), "decode-0"])
def test_a_killed_engine_core_is_no_pass_and_leaves_nothing(gate: Gate, name: str) -> None:
    with gate.start(harness("run", "mtp-pd", *LONG)) as started:
        started.await_phase("drive")
        known = started.everything()
        (engine,) = started.engine_processes(name)
        killed_s = kill(engine)
        started.nothing_left(known)
        assert started.finish() == 1
        report(started, killed_s, f"engine core of {name}")
        assert started.result["verdict"] == "regression"
        assert re.search(rf"engine process .*pid {engine.pid}.* of {name} died", started.result["reason"])


def test_a_killed_worker_is_no_pass_and_leaves_nothing(gate: Gate, tmp_path: Path) -> None:
    with gate.start([*solo("eagle3-solo-tp2", tmp_path), *LONG]) as started:
        started.await_phase("drive")
        known = started.everything()
        workers = [process for process in known if "Worker" in command_line(process.pid)]
        assert len(workers) == 2, [command_line(process.pid) for process in known]
        killed_s = kill(workers[1])
        started.nothing_left(known)
        assert started.finish() == 1
        report(started, killed_s, "worker")
        assert started.result["verdict"] == "regression"
        assert "of server-0 died: Worker proc VllmWorker-1 died unexpectedly" in started.result["reason"]


def test_the_runner_finishes_the_job_of_a_killed_supervisor(gate: Gate) -> None:
    with gate.start(harness("run", "eagle3-pd", *LONG)) as started:
        record = started.await_phase("drive")
        known = started.everything()
        assert record.supervisor is not None
        killed_s = kill(record.supervisor)
        started.nothing_left(known)
        assert started.finish() == 3
        report(started, killed_s, "supervisor")
        assert started.result["verdict"] == "infra"
        assert re.search(r"supervisor process ended .*SIGKILL", started.result["reason"])


def test_the_supervisor_finishes_the_job_of_a_killed_runner(gate: Gate) -> None:
    with gate.start(harness("run", "eagle3-pd", *LONG)) as started:
        record = started.await_phase("drive")
        known = started.everything()
        killed_s = kill(record.runner)
        started.nothing_left(known)
        started.finish()
        report(started, killed_s, "runner")
        assert started.result["verdict"] == "infra"
        assert started.result["reason"] == "The run ended before it was judged."


def test_reap_finishes_the_job_when_runner_and_supervisor_were_killed(gate: Gate) -> None:
    with gate.start(harness("run", "eagle3-pd", *LONG)) as started:
        record = started.await_phase("drive")
        known = started.everything()
        assert record.supervisor is not None
        kill(record.supervisor)
        killed_s = kill(record.runner)
        eventually(lambda: not alive(record.runner), "the runner is gone", CLEAN_WITHIN_S)
        left = [process for process in known if alive(process)]
        assert len(left) >= 4, "the servers were expected to outlive both"
        said = gate.reap()
        print(said.strip())  # noqa: T201
        assert record.run_id in said
        started.nothing_left(known)
        report(started, killed_s, "runner and supervisor, then reap")
        assert started.result["verdict"] == "infra"


def test_a_killed_nox_interrupts_the_run_and_leaves_nothing(gate: Gate) -> None:
    with gate.start(nox("eagle3-pd", *LONG)) as started:
        record = started.await_phase("drive")
        known = started.everything()
        assert record.runner.pid != started.process.pid
        killed_s = time.monotonic()
        started.process.kill()
        started.nothing_left(known)
        report(started, killed_s, "nox")
        assert started.result["verdict"] == "interrupted"
