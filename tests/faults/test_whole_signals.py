"""A signal to each process of a run in each of its phases: the word, the exit code, valid result, nothing left."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from dataclasses import dataclass
from typing import Any

import pytest

from harness.result import read_result
from harness.runtime.identity import ProcessId, alive
from harness.runtime.reaping import reap_stale
from harness.runtime.record import RunRecord
from harness.verdict import Verdict
from tests.faults.fake_run import eventually
from tests.faults.whole_run import CLEAN_WITHIN_S, Command, Whole, _lines

pytestmark = pytest.mark.whole_run

# The grace of a stop is half of it, and a server that ignores SIGTERM uses it up.
STOP_S = 6.0

INTERRUPTED, INFRA, REGRESSION = Verdict.INTERRUPTED, Verdict.INFRA, Verdict.REGRESSION
INT, TERM, HUP, KILL = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL

# What keeps a run in a phase until the signal comes, however late the test gets to send it.
HOLD: dict[str, dict[str, dict[str, Any]]] = {
    "launch": {"importer": {"hang": True}},
    "ready": {"decode": {"health": "503", "engine_process": True}},
    "drive": {"decode": {"slow_s": 1.0, "engine_process": True}},
    "stop": {"decode": {"ignore_sigterm": True, "engine_process": True}},
}


def hold(whole: Whole, phase: str) -> None:
    whole.faults(**HOLD[phase])
    if phase == "stop":
        whole.budgets = dataclasses.replace(whole.budgets, stop_s=STOP_S)


@dataclass(frozen=True)
class Signalled:
    phase: str
    target: str
    number: signal.Signals
    verdict: Verdict

    def __str__(self) -> str:
        article = "" if self.target.endswith("-0") else "the "
        return f"{self.number.name} to {article}{self.target} in {self.phase}"


SIGNALS = (
    *(Signalled(phase, "runner", INT, INTERRUPTED) for phase in ("launch", "ready", "drive")),
    *(Signalled(phase, "runner", TERM, INTERRUPTED) for phase in ("ready", "drive")),
    Signalled("drive", "runner", HUP, INTERRUPTED),
    # From the first moment the folder holds a result that says so.
    *(Signalled(phase, "runner", KILL, INFRA) for phase in ("launch", "ready", "drive", "stop")),
    *(Signalled(phase, "supervisor", KILL, INFRA) for phase in ("launch", "ready", "drive", "stop")),
    Signalled("drive", "supervisor", TERM, INFRA),
    Signalled("launch", "importer", KILL, INFRA),
    Signalled("ready", "decode-0", KILL, INFRA),
    Signalled("ready", "prefill-0", TERM, REGRESSION),
    Signalled("drive", "decode-0", KILL, INFRA),
    Signalled("drive", "prefill-0", KILL, INFRA),
    Signalled("drive", "engine process", KILL, REGRESSION),
)


def target_of(whole: Whole, command: Command, record: RunRecord, name: str) -> ProcessId:
    match name:
        case "runner":
            return record.runner
        case "supervisor":
            assert record.supervisor is not None
            return record.supervisor
        case "engine process":
            server = target_of(whole, command, record, "decode-0")
            pids = [ProcessId(*map(int, line.split())) for line in _lines(whole.fake / "pids")]
            log = command.folder / "supervisor.log"
            (child,) = [one for one in pids if one not in {entry.process for entry in record.servers}]
            eventually(lambda: f"watching {child}" in log.read_text(), "the engine process is watched")
            assert alive(server)
            return child
        case server:
            (process,) = [entry.process for entry in record.servers if entry.name == server]
            assert process is not None
            return process


@pytest.mark.parametrize("fault", SIGNALS, ids=str)
def test_after(whole: Whole, fault: Signalled) -> None:
    hold(whole, fault.phase)
    with whole.started(launch="warm" if fault.phase == "launch" else "spawn") as command:
        record = command.reach(fault.phase)
        target = target_of(whole, command, record, fault.target)
        os.kill(target.pid, fault.number)
        whole.nothing_left_within(CLEAN_WITHIN_S)
        code, result = command.finish()
        assert result.verdict is fault.verdict, result.reason
        if fault.target == "runner" and fault.number is KILL:
            assert code == -KILL
            assert result.reason == "The run ended before it was judged."
        else:
            assert code == fault.verdict.exit_code, command.out.read_text()


def test_an_interrupt_while_the_smoke_request_is_waited_for(whole: Whole) -> None:
    whole.faults(decode={"completions": "hang"})
    # Longer than the command may take to end.
    whole.budgets = dataclasses.replace(whole.budgets, request_s=300.0)
    with whole.started() as command:
        record = command.reach("ready")
        events = command.folder / "events.jsonl"
        eventually(lambda: "one request through the whole route" in events.read_text(), "the smoke request")
        os.kill(record.runner.pid, INT)
        whole.nothing_left_within(CLEAN_WITHIN_S)
        code, result = command.finish()
        assert (result.verdict, code) == (INTERRUPTED, INTERRUPTED.exit_code)


def test_a_signal_while_everything_is_ended_changes_nothing_of_the_end(whole: Whole) -> None:
    hold(whole, "stop")
    with whole.started() as command:
        record = command.reach("stop")
        for number in (INT, TERM, HUP, INT):
            os.kill(record.runner.pid, number)
        whole.nothing_left_within(CLEAN_WITHIN_S)
        _, result = command.finish()
        assert result.verdict in (INTERRUPTED, Verdict.PASS)
        assert result.cleanup.get("survivors", 0) == 0
        assert "already ending everything" in command.out.read_text()


@pytest.mark.parametrize("numbers", [(INT, INT), (HUP, TERM, INT, INT)], ids=len)
def test_an_impatient_user_gets_the_same_clean_end(whole: Whole, numbers: tuple[signal.Signals, ...]) -> None:
    whole.faults(decode={"slow_s": 1.0, "ignore_sigterm": True})
    with whole.started() as command:
        record = command.reach("drive")
        for number in numbers:
            os.kill(record.runner.pid, number)
            time.sleep(0.1)
        whole.nothing_left_within(CLEAN_WITHIN_S)
        code, result = command.finish()
        assert code == INTERRUPTED.exit_code
        assert result.verdict is INTERRUPTED


def test_a_ctrl_c_of_the_terminal_reaches_the_whole_group_and_ends_it_once(whole: Whole) -> None:
    whole.faults(decode={"slow_s": 1.0})
    with whole.started() as command:
        command.reach("drive")
        os.killpg(command.process.pid, INT)
        whole.nothing_left_within(CLEAN_WITHIN_S)
        _, result = command.finish()
        assert result.verdict is INTERRUPTED


def test_the_next_run_finishes_what_a_killed_runner_and_supervisor_left(whole: Whole) -> None:
    whole.faults(decode={"health": "503", "ignore_sigterm": True, "double_fork": True, "clear_environment": True})
    with whole.started() as command:
        record = command.reach("ready")
        assert record.supervisor is not None
        eventually(lambda: len((command.record() or record).descendants) >= 1, "the record names the orphan")
        os.kill(record.supervisor.pid, KILL)
        os.kill(record.runner.pid, KILL)
        command.process.wait()
        first = command.folder
        assert len(whole.left()) >= 3, "the servers were expected to outlive both"
        assert not reap_stale(whole.folder / "another-state"), "another state folder knows of this run"
    whole.faults()
    outcome = whole.run()
    assert outcome.shown.verdict is Verdict.PASS, outcome.shown.reason
    assert f"finished what the killed run {first.name} left behind" in outcome.output
    assert read_result(first).verdict is INFRA


def test_a_stopped_runner_is_no_dead_one(whole: Whole) -> None:
    """SIGSTOP (Ctrl-Z): nobody may take its run for abandoned, and it goes on when it is let."""
    whole.faults(decode={"slow_s": 0.3})
    with whole.started() as command:
        record = command.reach("drive")
        os.kill(record.runner.pid, signal.SIGSTOP)
        try:
            assert not reap_stale(whole.locations.state)
            assert alive(record.runner)
        finally:
            os.kill(record.runner.pid, signal.SIGCONT)
        code, result = command.finish()
        assert (code, result.verdict) == (0, Verdict.PASS), result.reason


def test_the_result_can_be_read_at_every_moment_of_a_run(whole: Whole) -> None:
    seen = set()
    with whole.started() as command:
        eventually(lambda: bool(whole.folders()) and (command.folder / "result.json").exists(), "the run folder")
        while command.process.poll() is None:
            seen.add(read_result(command.folder).verdict)
            time.sleep(0.005)
        seen.add(read_result(command.folder).verdict)
    assert seen == {INFRA, Verdict.PASS}
