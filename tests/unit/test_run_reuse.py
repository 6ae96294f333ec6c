"""What decides which reference may be shared, and what becomes of what is kept."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.deployments import DEPLOYMENTS
from harness.facts import RunFacts
from harness.models import Checkpoints
from harness.plan.assign import propose
from harness.plan.build import build_plan, kv_buffers, model_set_of, requirements
from harness.plan.reference import judged_only, reference_of, with_reference_after
from harness.plan.types import Allocation, Device, Machine, Options, Plan
from harness.run import reuse
from harness.run.request import Prepared
from harness.run.reuse import Shelf, key_of, shelf_of, sweep
from harness.run.workload import load_workload
from harness.runtime.identity import ProcessId, identify, own_identity
from harness.zoo import ZooModel
from harness.zoo.store import chain_of
from tests.unit import paired_facts
from tests.unit.plan_inputs import CPU_MACHINE, GPU_MACHINE, inputs
from tests.unit.run_inputs import request

FOUR_GPUS = replace(GPU_MACHINE, devices=tuple(Device(i, f"GPU-{i}", "NVIDIA H200", 1 << 37, (9, 0)) for i in range(4)))


def planned(
    name: str, options: Options | None = None, machine: Machine = CPU_MACHINE, *, shift: int = 0
) -> tuple[Plan, Prepared]:
    """A plan as a lease makes it; ``shift``: on other ports than those of a dry run."""
    deployment, options = DEPLOYMENTS[name], options or Options(models="tiny")
    given = inputs(deployment, machine=machine, options=options)
    model_set = model_set_of(options, machine)
    needs = requirements(deployment, options, model_set)
    proposed = propose(needs, machine, options, model_set)
    ports = {purpose: port + shift for purpose, port in proposed.ports.items()}
    buffer = kv_buffers(deployment, options, machine)[0]
    plan = build_plan(given, Allocation(proposed.devices, ports), buffer)
    zoo = ZooModel("deepseek-mtp", Path("/t"), None, "bfloat16", "0", chain_of("deepseek-mtp"))
    workload = load_workload(deployment, model_set, options, zoo if model_set == "tiny" else None)
    checkpoints = Checkpoints(plan.models, None, None)
    prepared = Prepared(given.engine, machine, model_set, checkpoints, workload, given, needs, (buffer,), (None,))
    return plan, prepared


def key(
    name: str, options: Options | None = None, machine: Machine = CPU_MACHINE, *, shift: int = 0, **inherited: str
) -> str:
    plan, prepared = planned(name, options, machine, shift=shift)
    reference = reference_of(plan)
    assert reference is not None
    return key_of(reference, plan, prepared, inherited)


def test_the_controls_of_one_layout_share_a_reference_whatever_their_names_ports_and_places() -> None:
    assert key("tp1") == key("dp1", shift=500) == key("tp1", PATH="/venv-of-another-session", NOX_X="1")


@pytest.mark.parametrize(
    "other",
    [
        key("deepseek-tp2"),
        key("tp1", Options(models="tiny", prompts=4)),
        key("tp1", Options(models="tiny", max_tokens=4)),
        key("tp1", Options(models="tiny", concurrency=1)),
        key("tp1", Options(models="tiny", logprobs=True)),
        key("tp1", Options(models="tiny", launch="spawn")),
        key("tp1", Options(models="tiny"), FOUR_GPUS),
        key("tp1", TORCH_SWITCH="1"),
    ],
    ids=["layout", "prompts", "length", "concurrency", "logprobs", "launch", "device", "environment"],
)
def test_whatever_decides_the_answers_makes_another_key(other: str) -> None:
    assert other != key("tp1")


def test_the_engine_and_the_checkpoint_make_another_key() -> None:
    plan, prepared = planned("tp1")
    reference = reference_of(plan)
    assert reference is not None
    keys = {
        key_of(reference, plan, prepared, {}),
        key_of(reference, plan, replace(prepared, engine=replace(prepared.engine, fingerprint="other")), {}),
        key_of(reference, replace(plan, models=replace(plan.models, provenance=("zoo:x@1",))), prepared, {}),
    }
    assert len(keys) == 3


def test_the_devices_of_one_kind_are_alike_and_their_ids_are_no_matter() -> None:
    beside, after = Options(models="tiny"), Options(models="tiny", reference="after")
    assert planned("tp1", beside, FOUR_GPUS)[0].stages != planned("tp1", after, FOUR_GPUS)[0].stages
    assert key("tp1", beside, FOUR_GPUS) == key("dp1", after, FOUR_GPUS)
    other = replace(FOUR_GPUS, devices=tuple(replace(device, name="NVIDIA L4") for device in FOUR_GPUS.devices))
    assert key("tp1", beside, FOUR_GPUS) != key("tp1", beside, other)


def test_both_kv_buffers_of_a_pair_of_hub_models_share_the_standalone_reference(tmp_path: Path) -> None:
    dataset = tmp_path / "mt-bench.jsonl"
    dataset.write_text('{"prompt": ["one"]}\n{"prompt": ["two"]}\n')
    device = Options(models="hub", dataset=dataset, prompts=2, kv_buffer="device")
    host, longer = replace(device, kv_buffer="host"), replace(device, max_tokens=8)
    assert key("eagle3-pd", device, FOUR_GPUS) == key("eagle3-pd", host, FOUR_GPUS, shift=300)
    assert key("eagle3-pd", device, FOUR_GPUS) != key("eagle3-pd", longer, FOUR_GPUS)


@pytest.mark.parametrize("placed", ["beside", "after"])
def test_a_plan_loses_its_reference_and_gets_it_back_as_a_stage_of_its_own(placed: str) -> None:
    plan, _ = planned("tp1", Options(models="tiny", reference=placed))  # type: ignore[arg-type]
    assert [[server.name for server in stage.servers] for stage in judged_only(plan).stages] == [["server-0"]]
    later = with_reference_after(plan)
    assert [(stage.name, [server.name for server in stage.servers]) for stage in later.stages] == [
        ("main", ["server-0"]),
        ("reference", ["reference-0"]),
    ]
    assert reference_of(later) == reference_of(plan)


def test_nothing_is_shared_without_an_invocation_a_reference_or_under_a_trace(tmp_path: Path) -> None:
    plan, prepared = planned("tp1")
    here = own_identity()
    assert shelf_of(request(tmp_path, invocation=here), prepared, plan) is not None
    assert shelf_of(request(tmp_path), prepared, plan) is None
    assert shelf_of(request(tmp_path, invocation=here), prepared, judged_only(plan)) is None
    assert (
        shelf_of(request(tmp_path, invocation=here, extra_environment={"server-0": {"X": "1"}}), prepared, plan) is None
    )


def shelf(folder: Path, invocation: ProcessId | None = None, key: str = "k" * 64) -> Shelf:
    return Shelf(folder / "references", invocation or own_identity(), key)


def kept(folder: Path, key: str = "k" * 64, facts: RunFacts | None = None) -> Path:
    one = shelf(folder, key=key)
    one.keep("run-1", facts or paired_facts.passing())
    return one.path


def test_the_reference_part_comes_back_as_it_was_and_nothing_of_what_is_judged(tmp_path: Path) -> None:
    facts = paired_facts.passing()
    kept(tmp_path)
    found = shelf(tmp_path).find()
    assert found is not None
    assert found.run_id == "run-1"
    assert found.requests == tuple(one for one in facts.requests if one.stage == "reference")
    assert [server.name for server in found.servers] == ["reference-0"]
    assert shelf(tmp_path, key="another").find() is None


def test_only_this_user_may_read_what_is_kept(tmp_path: Path) -> None:
    (tmp_path / "references").mkdir(mode=0o755)
    path = kept(tmp_path)
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


@pytest.mark.parametrize("content", ["", "{}", '{"run_id": "x", "servers": "no"', "\udcff"])
def test_what_is_damaged_is_as_good_as_nothing(tmp_path: Path, content: str) -> None:
    kept(tmp_path).write_bytes(content.encode("utf-8", "surrogateescape"))
    assert shelf(tmp_path).find() is None


def test_what_is_too_large_is_neither_kept_nor_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = kept(tmp_path)
    monkeypatch.setattr(reuse, "_LARGEST_BYTES", path.stat().st_size - 1)
    assert shelf(tmp_path).find() is None
    assert not kept(tmp_path, "other").exists()


def test_what_an_ended_invocation_kept_is_removed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as process:
        other = identify(process.pid)
        assert other is not None
        theirs = shelf(tmp_path, other)
        theirs.keep("run-0", paired_facts.passing())
        sweep(tmp_path)
        assert shelf(tmp_path).find() is None
        assert theirs.find() is not None
    sweep(tmp_path)
    assert not theirs.path.exists()


def test_what_is_of_another_boot_or_old_or_beyond_the_most_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reuse, "_MOST_KEPT", 3)
    paths = [kept(tmp_path, f"key{index}") for index in range(3)]
    foreign = paths[0].with_name("another-boot" + paths[0].name[36:])
    foreign.write_text("{}")
    os.utime(paths[1], (1, 1))
    # What a killed writer left, and what another one is writing.
    scratch = [paths[0].with_name(f".{name}.json.1.new") for name in ("left", "now")]
    for path in scratch:
        path.touch()
    os.utime(scratch[0], (1, 1))
    sweep(tmp_path)
    assert [path.exists() for path in (*paths, foreign, *scratch)] == [True, False, True, False, False, True]
    scratch[1].unlink()
    for index in range(4):
        kept(tmp_path, f"more{index}")
    assert len(list((tmp_path / "references").iterdir())) == 3


def test_a_state_folder_that_cannot_be_written_costs_nothing_but_time(tmp_path: Path) -> None:
    (tmp_path / "references").write_text("in the way")
    kept(tmp_path)
    assert shelf(tmp_path).find() is None
