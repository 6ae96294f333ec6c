"""Two runs at once on one machine: never a device or a port of both; the one that waits names the one that holds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.gate import LONG, Gate, Started, harness


def keys(started: Started) -> set[str]:
    return {
        device["key"] for stage in started.plan["stages"] for server in stage["servers"] for device in server["devices"]
    }


def wall(started: Started, kind: str, phase: str) -> float:
    """Unix time of one event of one phase."""
    (event,) = [event for event in started.events(kind) if event["phase"] == phase]
    return float(event["wall"])


def one_line(result: dict[str, Any]) -> str:
    return json.dumps({name: result[name] for name in ("run_id", "verdict", "reason")})


def test_the_second_run_refuses_or_waits_and_names_the_holder(gate: Gate) -> None:
    with gate.start(harness("run", "eagle3-pd", "--prompts", "120"), "first") as first:
        first.await_phase("drive")

        refused = gate.run("mtp-pd", "--lease-timeout", "1", label="refused")
        print(one_line(refused.result))  # noqa: T201
        assert refused.process.returncode == 3
        assert refused.result["verdict"] == "infra"
        assert first.folder.name in refused.result["reason"]
        assert "eagle3-pd" in refused.result["reason"]
        assert f"pid {first.process.pid}" in refused.result["reason"]
        assert not refused.events("started")

        assert first.process.poll() is None, "the first run ended before the second one could meet it"
        with gate.start(harness("run", "mtp-pd"), "second") as second:
            assert second.finish() == 0, second.output
        assert first.finish() == 0, first.output
    said = [event["text"] for event in second.events("note")]
    print("\n".join(said))  # noqa: T201
    assert any(first.folder.name in text for text in said), "the second run did not say whom it waits for"
    assert keys(first) & keys(second), "the two runs were to meet on a device"
    # Nothing of the second run was launched before the last server of the first one was down.
    assert wall(second, "phase_ended", "lease") >= wall(first, "phase_ended", "stop")
    for started in (first, second):
        print(one_line(started.result))  # noqa: T201
        assert started.result["verdict"] == "pass"


@pytest.mark.slow
def test_runs_on_different_devices_share_no_port(gate: Gate) -> None:
    with (
        gate.start(harness("run", "eagle3-pd", "--devices", "0", *LONG), "first") as first,
        gate.start(harness("run", "eagle3-pd", "--devices", "1", *LONG), "second") as second,
    ):
        first.await_phase("launch")
        second.await_phase("launch")
        assert first.process.poll() is None
        print(sorted(keys(first)), sorted(first.ports()), sorted(keys(second)), sorted(second.ports()))  # noqa: T201
        assert not keys(first) & keys(second)
        assert not first.ports() & second.ports()
        for started in (first, second):
            started.process.terminate()
            assert started.finish() == 130
            assert started.result["verdict"] == "interrupted"
