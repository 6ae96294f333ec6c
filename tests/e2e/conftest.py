"""The real engine on CPU: ``SPEC_GATE_E2E_ENGINE`` names an interpreter that has it, else the locked one is built.

The machine must be idle: a lease is the machine's, so another run of the gate would hold the cores that these want.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.e2e.gate import Gate


@pytest.fixture(scope="session")
def engine() -> str:
    return os.environ.get("SPEC_GATE_E2E_ENGINE", "cpu")


@pytest.fixture
def gate(engine: str, tmp_path: Path) -> Gate:
    return Gate(engine, tmp_path)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker("engine")
            # One test may wait for an import, two runs and their end.
            item.add_marker(pytest.mark.timeout(600))
