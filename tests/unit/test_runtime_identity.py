from __future__ import annotations

import os
import subprocess
import sys

from harness.runtime.identity import (
    ProcessId,
    ProcessRow,
    age_s,
    alive,
    ancestors,
    carries_marker,
    descendants,
    identify,
    missing_from_environment,
    new_marker,
    own_identity,
    parse_stat,
    read_row,
)


def test_a_command_with_spaces_and_parentheses_does_not_shift_the_fields() -> None:
    fields = " ".join(str(number) for number in range(7, 22))
    row = parse_stat(f"42 (a) b (c)) S 7 40 41 {fields} 777 0 0")
    assert row == ProcessRow(ProcessId(42, 777), parent=7, session=41, group=40, state="S")


def test_this_process_is_alive_and_young_and_another_start_time_is_not_it() -> None:
    me = own_identity()
    assert alive(me)
    assert not alive(ProcessId(me.pid, me.create_time + 1))
    assert 0 <= age_s(me) < 86400


def test_a_zombie_is_gone_though_its_row_is_there() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", ""], stdout=subprocess.PIPE) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        row = read_row(child.pid)
        assert row is not None
        assert row.gone
        assert identify(child.pid) is None
        assert not alive(row.identity)


def test_only_the_exact_marker_counts() -> None:
    marker = new_marker("r1")
    argv = [sys.executable, "-S", "-c", "print(flush=True); input()"]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, env={"GATE_RUN": marker}, stdin=pipe, stdout=pipe) as child:
        # The kernel shows the environment a moment after it has executed the program.
        assert child.stdout is not None
        child.stdout.readline()
        assert carries_marker(child.pid, marker)
        assert not carries_marker(child.pid, marker[:-1])
        assert not carries_marker(child.pid, new_marker("r1"))
        child.kill()
        child.wait()
        assert not carries_marker(child.pid, marker)


def test_descendants_and_ancestors_follow_parents() -> None:
    table = {
        pid: ProcessRow(ProcessId(pid, pid), parent, 0, 0, "S")
        for pid, parent in {1: 0, 2: 1, 3: 2, 4: 3, 5: 1}.items()
    }
    assert descendants({2}, table) == {3, 4}
    assert descendants({5}, table) == set()
    assert ancestors(4, table) == {3, 2, 1}


def test_what_an_environment_lacks_is_named() -> None:
    assert missing_from_environment({"GATE_RUN": "r1.a", "SPT_NOENV": "1"}, "r1.a") == []
    assert missing_from_environment({"GATE_RUN": "r2.b"}, "r1.a") == ["GATE_RUN=r1.a", "SPT_NOENV=1"]
