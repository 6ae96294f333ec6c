"""The engine counts what the simulator computes, to the last count: through prefill/decode, and standalone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.deployments import DEPLOYMENTS
from harness.zoo import tiny_prompts
from tests.e2e.gate import Gate, Started, solo

SPEED_ONLY = ("nixl-progress-delay", "shm-wakeup", "torchvision-absent")
PAIRS = ("eagle3-pd", "mtp-pd")


def shown(started: Started) -> dict[str, Any]:
    """The result of a run that must have passed, with its figures printed for the reader of a log."""
    result = started.result
    phases = {phase["name"]: phase["seconds"] for phase in result["phases"]}
    figures = {name: result["figures"].get(name) for name in (*result["expected"], "bytes", "median_s", "slowest_s")}
    print(json.dumps({"deployment": result["deployment"], "launch": result["launch"], "router": result["router"]}))  # noqa: T201
    print(json.dumps({"figures": figures, "expected": result["expected"]}))  # noqa: T201
    print(json.dumps({"wall_s": result["wall_seconds"], "phases": phases}))  # noqa: T201
    assert result["verdict"] == "pass", f"{result['reason']}\n{started.output}"
    return result


def equals_the_simulator(result: dict[str, Any]) -> None:
    expected = result["expected"]
    assert expected["drafts"] > 0
    assert {name: result["figures"][name] for name in expected} == expected
    # Every token of every answer was computed beforehand, and the first of them needs the cache.
    assert result["figures"]["identical"] == result["workload"]["prompts"] > 0


def equals_the_simulator_through_pd(result: dict[str, Any]) -> None:
    equals_the_simulator(result)
    assert result["figures"]["bytes"] > 0
    assert result["figures"]["transfers"] == result["workload"]["prompts"]


@pytest.mark.parametrize("name", PAIRS)
def test_a_pair_counts_what_was_computed_and_moves_kv(gate: Gate, name: str) -> None:
    result = shown(gate.run(name))
    equals_the_simulator_through_pd(result)
    for server, made in result["adjustments"].items():
        assert made, f"{server} reports no adjustment"
        assert all(any(known in line for known in SPEED_ONLY) for line in made), f"{server} was healed: {made}"
    assert set(result["adjustments"]) == {"prefill-0", "decode-0"}


@pytest.mark.parametrize(("name", "pair"), [("eagle3-solo", "eagle3-pd"), ("mtp-solo", "mtp-pd")])
def test_the_same_checkpoint_standalone_counts_what_was_computed(
    gate: Gate, tmp_path: Path, name: str, pair: str
) -> None:
    with gate.start(solo(name, tmp_path)) as started:
        started.finish()
    result = shown(started)
    equals_the_simulator(result)
    assert "bytes" not in result["figures"]
    # The pair pads one draft for each request; standalone there is none, whatever else the simulator says.
    assert result["figures"]["padded_drafts"] == 0
    tiny = DEPLOYMENTS[pair].models.tiny
    assert tiny is not None
    assert result["workload"]["prompts"] == len(tiny_prompts(tiny))


def test_the_harness_own_handoff_does_as_well_as_the_router(gate: Gate) -> None:
    result = shown(gate.run("eagle3-pd", "--router", "direct"))
    equals_the_simulator_through_pd(result)
    assert result["router"] == "direct"


def test_servers_spawned_as_in_production_count_the_same(gate: Gate) -> None:
    result = shown(gate.run("mtp-pd", "--launch", "spawn"))
    equals_the_simulator_through_pd(result)
    assert result["launch"] == "spawn"


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_an_unadjusted_engine_counts_the_same_slowly(gate: Gate, name: str) -> None:
    result = shown(gate.run(name, "--no-adjust"))
    equals_the_simulator_through_pd(result)
    made = [line for lines in result["adjustments"].values() for line in lines]
    assert all("torchvision-absent" in line for line in made), made
