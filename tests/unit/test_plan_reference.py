"""Where and when a reference server lives, what gates close, and what each layout asks of the engine."""

from __future__ import annotations

import dataclasses
import json

import pytest

from harness.deployments import DEPLOYMENTS, ModelSetName
from harness.errors import Misconfigured, Unsupported
from harness.plan.assign import propose
from harness.plan.build import build_plan, kv_buffers, model_set_of, requirements
from harness.plan.gates import check_gates
from harness.plan.types import Device, Machine, Options, Plan
from tests.unit.plan_inputs import CPU_MACHINE, GPU_MACHINE, engine, inputs

FOUR_GPUS = dataclasses.replace(
    GPU_MACHINE, devices=tuple(Device(i, f"GPU-{i}", "NVIDIA H200", 143771 << 20, (9, 0)) for i in range(4))
)
ONE_GPU = dataclasses.replace(GPU_MACHINE, devices=GPU_MACHINE.devices[:1])


def planned(name: str, machine: Machine, options: Options) -> Plan:
    values = inputs(DEPLOYMENTS[name], machine=machine, options=options)
    model_set = model_set_of(options, machine)
    needs = requirements(values.deployment, options, model_set)
    buffer = kv_buffers(values.deployment, options, machine)[0]
    return build_plan(values, propose(needs, machine, options, model_set), buffer)


def stages(plan: Plan) -> list[list[str]]:
    return [[server.name for server in stage.servers] for stage in plan.stages]


def test_the_reference_runs_beside_the_server_where_it_has_devices_of_its_own() -> None:
    plan = planned("deepseek-tp2", FOUR_GPUS, Options())
    assert stages(plan) == [["server-0", "reference-0"]]
    used = [device.index for server in plan.stages[0].servers for device in server.devices]
    assert used == [0, 1, 2, 3]
    assert [(part.name, [server.name for server in part.servers]) for part in plan.stages[0].parts] == [
        ("main", ["server-0"]),
        ("reference", ["reference-0"]),
    ]


def test_without_devices_for_both_the_reference_comes_after_on_the_same_ones() -> None:
    plan = planned("deepseek-tp2", GPU_MACHINE, Options())
    assert stages(plan) == [["server-0"], ["reference-0"]]
    assert plan.stages[0].servers[0].devices == plan.stages[1].servers[0].devices
    assert plan.stages[1].parts[0].name == "reference"


def test_a_reference_after_the_run_and_none_at_all_can_be_asked_for() -> None:
    assert stages(planned("dp2", FOUR_GPUS, Options(reference="after"))) == [["server-0"], ["reference-0"]]
    assert stages(planned("dp2", FOUR_GPUS, Options(reference="none"))) == [["server-0"]]


def test_a_reference_beside_that_has_no_room_is_refused_with_the_arithmetic() -> None:
    with pytest.raises(Misconfigured, match=r"2 \+ 2 = 4 devices at once and 2 may be used"):
        planned("deepseek-tp2", GPU_MACHINE, Options(reference="beside"))


def test_the_ranks_of_one_server_are_never_told_to_share_a_device() -> None:
    with pytest.raises(Misconfigured, match="2 devices are needed") as refused:
        planned("deepseek-tp2", ONE_GPU, Options())
    assert "--share-devices" not in str(refused.value)
    with pytest.raises(Misconfigured, match="2 devices are needed"):
        planned("deepseek-tp2", ONE_GPU, Options(share_devices=True))


def test_one_gpu_shared_holds_the_server_and_its_reference_and_each_takes_its_part() -> None:
    plan = planned("tp1", ONE_GPU, Options(share_devices=True, models="tiny"))
    assert stages(plan) == [["server-0", "reference-0"]]
    for server in plan.stages[0].servers:
        assert [device.index for device in server.devices] == [0]
        assert server.argv[server.argv.index("--gpu-memory-utilization") + 1] == "0.40"


def test_one_small_gpu_holds_the_reference_later_or_refuses_with_the_arithmetic() -> None:
    small = dataclasses.replace(ONE_GPU, devices=(Device(0, "GPU-s", "L4", 24 << 30),))
    assert stages(planned("tp1", small, Options(share_devices=True, models="hub"))) == [["server-0"], ["reference-0"]]
    with pytest.raises(Misconfigured, match=r"2 servers x 32\.0 GiB = 64\.0 GiB do not fit"):
        planned("tp1", small, Options(share_devices=True, models="hub", reference="beside"))


def test_a_prefill_decode_pair_shares_one_gpu() -> None:
    plan = planned("eagle3-pd", ONE_GPU, Options(share_devices=True, models="hub"))
    assert stages(plan) == [["prefill-0", "decode-0", "reference-0"]]
    assert plan.stages[0].router is not None
    assert [len(part.servers) for part in plan.stages[0].parts] == [2, 1]


def test_a_cpu_with_little_memory_runs_one_after_the_other() -> None:
    assert stages(planned("deepseek-tp2", CPU_MACHINE, Options())) == [["server-0", "reference-0"]]
    small = dataclasses.replace(CPU_MACHINE, memory_bytes=8 << 30)
    assert stages(planned("deepseek-tp2", small, Options())) == [["server-0"], ["reference-0"]]


def test_each_layout_reaches_the_engine_in_its_own_flags() -> None:
    def argv(name: str) -> tuple[str, ...]:
        return planned(name, FOUR_GPUS, Options(models="tiny")).stages[0].servers[0].argv

    assert argv("deepseek-tp2")[argv("deepseek-tp2").index("--tensor-parallel-size") + 1] == "2"
    assert "--enable-expert-parallel" in argv("ep2")
    assert "--enable-eplb" not in argv("ep2")
    config = json.loads(argv("ep2-eplb")[argv("ep2-eplb").index("--eplb-config") + 1])
    assert config == {"window_size": 2, "step_interval": 4, "num_redundant_experts": 2}
    assert "--data-parallel-rpc-port" in argv("dp2")
    assert "--pipeline-parallel-size" in argv("pp2")
    assert "--speculative-config" not in argv("jamba-pp2-mrv2")


def test_code_of_a_repository_is_trusted_for_the_hub_model_that_needs_it_and_for_no_other() -> None:
    def trusting(name: str, models: ModelSetName) -> list[bool]:
        servers = planned(name, FOUR_GPUS, Options(models=models)).stages[0].servers
        return ["--trust-remote-code" in server.argv for server in servers]

    assert trusting("mimo-mtp", "hub") == [True, True]
    assert not any(trusting("mimo-mtp", "tiny") + trusting("deepseek-mtp", "hub"))


def test_only_the_server_drafts_and_the_reference_runs_the_same_layout() -> None:
    server, reference = planned("ep2-eplb", FOUR_GPUS, Options(models="tiny")).stages[0].servers
    assert "--speculative-config" in server.argv
    assert "--speculative-config" not in reference.argv
    assert "--enable-eplb" in reference.argv


def test_batch_invariant_kernels_are_for_hub_models_on_cuda_and_the_plan_says_so() -> None:
    hub = planned("deepseek-tp2", FOUR_GPUS, Options())
    tiny = planned("deepseek-tp2", FOUR_GPUS, Options(models="tiny"))
    assert all(server.environment["VLLM_BATCH_INVARIANT"] == "1" for server in hub.stages[0].servers)
    assert "VLLM_BATCH_INVARIANT" not in tiny.stages[0].servers[0].environment
    assert any("batch-invariant kernels: on" in note for note in hub.notes)
    assert any("batch-invariant kernels: off" in note for note in tiny.notes)


def test_model_runner_v2_is_asked_for_through_the_environment() -> None:
    plan = planned("qwen35-hybrid-mrv2", GPU_MACHINE, Options(models="tiny"))
    assert all(server.environment["VLLM_USE_V2_MODEL_RUNNER"] == "1" for server in plan.stages[0].servers)


def test_a_family_without_tiny_checkpoints_says_so() -> None:
    mimo = DEPLOYMENTS["mimo-mtp"]
    hub_only = dataclasses.replace(mimo, models=dataclasses.replace(mimo.models, tiny=None))
    with pytest.raises(Misconfigured, match=r"mimo-mtp has no tiny checkpoint .* --models hub"):
        check_gates(hub_only, engine("cpu"), CPU_MACHINE, "tiny")


def test_an_engine_without_nixl_is_refused_only_where_kv_moves() -> None:
    without = dataclasses.replace(engine("cpu"), nixl_version=None)
    with pytest.raises(Misconfigured, match=f"mtp-pd moves KV over NIXL, which {without.python} cannot import"):
        check_gates(DEPLOYMENTS["mtp-pd"], without, CPU_MACHINE, "tiny")
    check_gates(DEPLOYMENTS["mtp-pd"], engine("cpu"), CPU_MACHINE, "tiny")
    check_gates(DEPLOYMENTS["eagle3-dp2"], without, CPU_MACHINE, "tiny")


def test_an_old_transformers_closes_the_gate_of_gemma4_and_a_new_one_does_not() -> None:
    gemma4 = DEPLOYMENTS["gemma4-mtp"]
    old = dataclasses.replace(engine("cuda"), transformers_version="5.7.9")
    with pytest.raises(Unsupported, match=r"5\.8\.0 on; found transformers 5\.7\.9"):
        check_gates(gemma4, old, GPU_MACHINE, "hub")
    check_gates(gemma4, dataclasses.replace(old, transformers_version="5.10.0"), GPU_MACHINE, "hub")


def test_deepseek_is_unsupported_on_compute_capability_10_with_hub_models_only() -> None:
    blackwell = dataclasses.replace(ONE_GPU, devices=(Device(0, "GPU-b", "NVIDIA B200", 180 << 30, (10, 0)),))
    with pytest.raises(Unsupported, match=r"NVIDIA B200, compute capability 10\.0"):
        check_gates(DEPLOYMENTS["deepseek-mtp"], engine("cuda"), blackwell, "hub")
    check_gates(DEPLOYMENTS["deepseek-mtp"], engine("cuda"), blackwell, "tiny")
    check_gates(DEPLOYMENTS["deepseek-mtp"], engine("cuda"), FOUR_GPUS, "hub")
