from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import Infra
from harness.plan.types import PortRun
from harness.runtime.identity import ProcessId
from harness.runtime.ports import Taken, choose, port_span

OWNER = ProcessId(1, 1)


def test_ports_come_from_below_the_ephemeral_range() -> None:
    assert port_span(32768) == range(20000, 32768)
    assert port_span(20500).stop == 20500
    assert len(port_span(20500)) >= 1000


def test_a_host_that_gives_away_all_ports_gets_the_usual_span() -> None:
    assert port_span(1024) == range(20000, 32768)


@given(
    lengths=st.lists(st.integers(1, 8), min_size=1, max_size=6),
    start=st.integers(0, 10_000),
    busy=st.sets(st.integers(20000, 20099), max_size=20),
    taken=st.lists(st.tuples(st.integers(20000, 20090), st.integers(1, 8)), max_size=3),
)
def test_runs_are_contiguous_disjoint_free_and_inside(
    lengths: list[int], start: int, busy: set[int], taken: list[tuple[int, int]]
) -> None:
    span = range(20000, 20400)
    runs = [PortRun(f"s-{index}", length) for index, length in enumerate(lengths)]
    entries = [Taken("other", OWNER, "x", first, length) for first, length in taken]
    chosen = choose(runs, span, start, entries, lambda port: port not in busy)
    ports = [port for run in runs for port in range(chosen[run.purpose], chosen[run.purpose] + run.length)]
    assert len(set(ports)) == sum(lengths)
    assert all(port in span for port in ports)
    assert not busy & set(ports)
    assert not {port for first, length in taken for port in range(first, first + length)} & set(ports)


def test_the_search_wraps_around_the_end() -> None:
    assert choose([PortRun("a", 3)], range(20000, 20010), 8, [], lambda _: True) == {"a": 20000}


def test_the_same_start_gives_the_same_ports() -> None:
    runs = [PortRun("a", 2), PortRun("b", 1)]
    assert choose(runs, range(20000, 20010), 4, [], lambda _: True) == {"a": 20004, "b": 20006}


def test_no_room_is_said_with_the_purpose() -> None:
    with pytest.raises(Infra, match="no 3 free ports in a row for decode-0/nixl"):
        choose([PortRun("decode-0/nixl", 3)], range(20000, 20010), 0, [], lambda port: port % 3 != 0)
