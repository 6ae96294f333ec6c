"""The bench of the whole-run faults, and the strangers that no fault may touch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.runtime.identity import ProcessId, alive
from tests.faults.whole_run import Bench, Whole, build_bench, stranger


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return build_bench(tmp_path_factory.mktemp("bench"))


@pytest.fixture(scope="session")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ProcessId]]:
    with stranger(tmp_path_factory.mktemp("foreign") / "run") as processes:
        yield processes


@pytest.fixture
def whole(bench: Bench, tmp_path: Path, strangers: list[ProcessId]) -> Iterator[Whole]:
    """One test's runs; whatever the test did, nothing of them may be left and no stranger touched."""
    whole = Whole(bench, tmp_path)
    yield whole
    try:
        whole.nothing_left()
        assert all(map(alive, strangers)), "a foreign process was touched"
    finally:
        whole.sweep()
