from __future__ import annotations

import dataclasses

from harness.runtime.identity import ProcessId, ProcessRow
from harness.runtime.reaping import ours
from harness.runtime.record import RunRecord, ServerEntry

RUNNER, SUPERVISOR, SERVER = ProcessId(10, 100), ProcessId(11, 110), ProcessId(20, 200)
RECORD = RunRecord(
    run_id="r1",
    marker="r1.abc",
    runner=RUNNER,
    host="boot/pid",
    user="me",
    run_dir="/runs/r1",
    started_at=0.0,
    supervisor=SUPERVISOR,
    servers=(ServerEntry("decode-0", SERVER),),
)


def row(process: ProcessId, parent: int, session: int, state: str = "S") -> ProcessRow:
    return ProcessRow(process, parent, session, session, state)


def found(*rows: ProcessRow, marked: tuple[int, ...] = (), record: RunRecord = RECORD, caller: int = 10) -> set[int]:
    table = {r.pid: r for r in rows}
    return {process.pid for process in ours(record, table, lambda pid: pid in marked, caller)}


def test_a_recorded_server_and_what_is_below_it_are_ours() -> None:
    rows = row(SERVER, 11, 20), row(ProcessId(21, 210), 20, 20), row(ProcessId(22, 220), 21, 22)
    assert found(*rows) == {20, 21, 22}


def test_a_stranger_under_a_reused_pid_is_not_ours_nor_are_its_children_or_its_session() -> None:
    rows = row(ProcessId(20, 999), 1, 20), row(ProcessId(21, 1000), 20, 20), row(ProcessId(22, 1001), 1, 20)
    assert found(*rows) == set()


def test_a_member_of_a_living_servers_session_is_ours_though_reparented() -> None:
    assert found(row(SERVER, 11, 20), row(ProcessId(30, 300), 1, 20)) == {20, 30}


def test_a_member_of_a_session_without_its_leader_needs_the_marker_or_to_have_been_seen() -> None:
    orphan = row(ProcessId(30, 300), 1, 20)
    assert found(orphan) == set()
    assert found(orphan, marked=(30,)) == {30}
    assert found(orphan, record=dataclasses.replace(RECORD, descendants=(ProcessId(30, 300),))) == {30}
    assert found(orphan, record=dataclasses.replace(RECORD, descendants=(ProcessId(30, 299),))) == set()


def test_the_marker_finds_a_server_that_was_never_recorded_and_its_children() -> None:
    assert found(row(ProcessId(40, 400), 1, 40), row(ProcessId(41, 410), 40, 41), marked=(40,)) == {40, 41}


def test_orphans_that_came_to_the_supervisor_are_ours_but_not_the_supervisor() -> None:
    assert found(row(SUPERVISOR, 10, 11), row(ProcessId(50, 500), 11, 50)) == {50}


def test_zombies_are_gone() -> None:
    assert found(row(SERVER, 11, 20, state="Z")) == set()


def test_the_caller_and_the_processes_above_it_are_never_signalled() -> None:
    # A runner that was itself started below a marked process.
    rows = row(ProcessId(5, 50), 1, 5), row(RUNNER, 5, 5), row(ProcessId(60, 600), 10, 60)
    assert found(*rows, marked=(5, 10, 60)) == {60}
