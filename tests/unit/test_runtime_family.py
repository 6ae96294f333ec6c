from __future__ import annotations

import pytest

from harness.runtime.family import family, is_engine_process
from harness.runtime.identity import ProcessId, ProcessRow

SERVER = ProcessId(20, 200)
TITLE = "/usr/bin/python3 -m vllm.entrypoints.openai.api_server --port 8100"


@pytest.mark.parametrize(
    "title",
    [
        "VLLM::EngineCore",
        "VLLM::Worker_TP0",
        "/usr/bin/python3 -c from multiprocessing.spawn import spawn_main; spawn_main() --multiprocessing-fork",
        TITLE,
    ],
)
def test_engine_processes_are_watched(title: str) -> None:
    assert is_engine_process(title, TITLE)


@pytest.mark.parametrize(
    "title",
    [
        "",
        "/usr/bin/gcc -O3 -shared kernel.c",
        "/usr/bin/python3 -c from multiprocessing.resource_tracker import main;main(7)",
        "/usr/bin/python3 -m torch._inductor.compile_worker --workers=2",
    ],
)
def test_helper_programs_are_not(title: str) -> None:
    assert not is_engine_process(title, TITLE)


def row(process: ProcessId, parent: int, session: int) -> ProcessRow:
    return ProcessRow(process, parent, session, session, "S")


def pids(*rows: ProcessRow, remembered: frozenset[ProcessId] = frozenset()) -> set[int]:
    return {process.pid for process in family(SERVER, remembered, {r.pid: r for r in rows})}


def test_a_family_is_the_server_its_session_and_everything_below() -> None:
    rows = (
        row(SERVER, 11, 20),
        row(ProcessId(21, 210), 1, 20),
        row(ProcessId(22, 220), 21, 22),
        row(ProcessId(9, 9), 1, 9),
    )
    assert pids(*rows) == {20, 21, 22}


def test_what_was_seen_below_a_server_stays_of_its_family_when_it_is_gone() -> None:
    orphan = row(ProcessId(30, 300), 1, 30)
    assert pids(orphan, remembered=frozenset({ProcessId(30, 300)})) == {30}
    assert pids(orphan) == set()


def test_a_stranger_under_the_servers_pid_brings_nothing_into_the_family() -> None:
    assert pids(row(ProcessId(20, 999), 1, 20), row(ProcessId(21, 1000), 20, 20)) == set()
