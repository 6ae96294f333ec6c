"""Plans are pure: equal inputs give equal argv, environment, devices and ports; refusals do the arithmetic."""

from __future__ import annotations

import dataclasses
import json

import pytest

from harness.deployments import DEPLOYMENTS, EAGLE3_PD, MTP_PD
from harness.errors import Misconfigured, Unsupported
from harness.plan.assign import assign_devices, propose
from harness.plan.build import Inputs, build_plan, kv_buffers, launch_of, model_set_of, requirements
from harness.plan.environment import engine_environment
from harness.plan.render import as_json, as_text
from harness.plan.types import Options, Plan
from tests.unit.plan_inputs import ALL_FLAGS, CPU_MACHINE, GPU_MACHINE, engine, inputs


def planned(deployment=EAGLE3_PD, **given) -> Plan:
    return plan_of(inputs(deployment, **given))


def plan_of(values: Inputs) -> Plan:
    deployment = values.deployment
    model_set = model_set_of(values.options, values.machine)
    allocation = propose(requirements(deployment, values.options, model_set), values.machine, values.options, model_set)
    return build_plan(values, allocation, kv_buffers(deployment, values.options, values.machine)[0])


def value_after(argv: tuple[str, ...], flag: str) -> str:
    return argv[argv.index(flag) + 1]


def test_the_eagle3_decode_server_drafts_three_tokens_and_the_prefill_server_one():
    plan = planned()
    drafts = {
        server.role: json.loads(value_after(server.argv, "--speculative-config"))["num_speculative_tokens"]
        for server in plan.stages[0].servers
    }
    assert drafts == {"prefill": 1, "decode": 3}


def test_the_mtp_plan_keeps_what_the_hybrid_state_transfer_needs():
    plan = planned(MTP_PD)
    for server in plan.stages[0].servers:
        assert value_after(server.argv, "--block-size") == "32"
        assert value_after(server.argv, "--max-model-len") == "4096"
        assert server.environment["VLLM_SSM_CONV_STATE_LAYOUT"] == "DS"
        assert "--no-disable-hybrid-kv-cache-manager" in server.argv


@pytest.mark.parametrize(
    ("name", "has_flashinfer", "triton"),
    [
        ("mtp-pd", False, True),
        ("qwen35-hybrid-mrv2", False, True),
        ("mtp-pd", True, False),
        ("eagle3-pd", False, False),
    ],
)
def test_gated_delta_nets_need_no_flashinfer_and_use_it_where_it_is(name, has_flashinfer, triton):
    values = inputs(DEPLOYMENTS[name], machine=GPU_MACHINE)
    values = dataclasses.replace(values, engine=dataclasses.replace(values.engine, has_flashinfer=has_flashinfer))
    plan = plan_of(values)
    for server in plan.stages[0].servers:
        assert ("--gdn-prefill-backend" in server.argv) is triton
    assert any("Triton" in note for note in plan.notes) is triton


def test_lost_kv_fails_a_request_instead_of_being_recomputed_silently():
    for server in planned().stages[0].servers:
        assert json.loads(value_after(server.argv, "--kv-transfer-config"))["kv_load_failure_policy"] == "fail"


@pytest.mark.parametrize(
    ("machine", "buffer", "expected"),
    [(CPU_MACHINE, "device", "cpu"), (GPU_MACHINE, "device", "cuda"), (GPU_MACHINE, "host", "cpu")],
)
def test_the_kv_buffer_is_named_in_the_engines_own_word(machine, buffer, expected):
    plan = planned(machine=machine, options=Options(models="tiny", kv_buffer=buffer))
    config = json.loads(value_after(plan.stages[0].servers[0].argv, "--kv-transfer-config"))
    assert config["kv_buffer_device"] == expected


def test_both_buffers_run_on_an_accelerator_and_one_on_cpu():
    assert kv_buffers(EAGLE3_PD, Options(), GPU_MACHINE) == ("device", "host")
    assert kv_buffers(EAGLE3_PD, Options(), CPU_MACHINE) == ("device",)
    assert kv_buffers(MTP_PD, Options(), GPU_MACHINE) == ("device",)


@pytest.mark.parametrize("name", sorted(DEPLOYMENTS))
@pytest.mark.parametrize("machine", [CPU_MACHINE, GPU_MACHINE], ids=["cpu", "gpu"])
def test_no_port_is_used_twice(name, machine):
    deployment = DEPLOYMENTS[name]
    options = Options(share_devices=True)
    model_set = model_set_of(options, machine)
    needs = requirements(deployment, options, model_set)
    ports = propose(needs, machine, options, model_set).ports
    used = [ports[run.purpose] + offset for run in needs.ports for offset in range(run.length)]
    assert len(used) == len(set(used))


def test_each_gpu_server_sees_only_its_leased_device_by_uuid():
    plan = planned(machine=GPU_MACHINE)
    seen = [server.environment["CUDA_VISIBLE_DEVICES"] for server in plan.stages[0].servers]
    assert seen == ["GPU-0000", "GPU-1111"]


def test_a_device_that_does_not_exist_is_refused_with_the_list_of_those_that_do():
    with pytest.raises(Misconfigured, match=r"Device 9 was asked for, but this machine has 2 \(0, 1\)"):
        planned(machine=GPU_MACHINE, options=Options(devices=(0, 9)))


def test_one_device_for_two_servers_is_refused_unless_they_may_share_it():
    with pytest.raises(Misconfigured, match="2 devices are needed"):
        planned(machine=GPU_MACHINE, options=Options(devices=(1,)))
    plan = planned(machine=GPU_MACHINE, options=Options(devices=(1,), share_devices=True, models="tiny"))
    assert {server.devices[0].index for server in plan.stages[0].servers} == {1}


def test_servers_that_cannot_fit_on_one_device_are_refused_with_the_arithmetic():
    small = dataclasses.replace(
        GPU_MACHINE, devices=tuple(dataclasses.replace(d, total_bytes=40 << 30) for d in GPU_MACHINE.devices)
    )
    with pytest.raises(Misconfigured, match=r"2 servers x 32\.0 GiB = 64\.0 GiB do not fit"):
        planned(machine=small, options=Options(share_devices=True, models="hub"))


def test_an_engine_without_the_memory_option_gets_a_share_of_the_device():
    flags = ALL_FLAGS - {"--kv-cache-memory-bytes"}
    plan = planned(machine=GPU_MACHINE, options=Options(share_devices=True, models="tiny"), flags=flags)
    assert value_after(plan.stages[0].servers[0].argv, "--gpu-memory-utilization") == "0.40"


def test_an_engine_that_lacks_a_needed_option_is_unsupported_and_the_option_is_named():
    with pytest.raises(Unsupported, match="no option --no-disable-hybrid-kv-cache-manager"):
        planned(MTP_PD, flags=ALL_FLAGS - {"--no-disable-hybrid-kv-cache-manager"})


def test_hub_runs_end_with_a_reference_server_unless_it_is_declined():
    hub = Options(models="hub")
    assert [stage.name for stage in planned(machine=GPU_MACHINE, options=hub).stages] == ["main", "reference"]
    declined = dataclasses.replace(hub, reference="none")
    assert [stage.name for stage in planned(machine=GPU_MACHINE, options=declined).stages] == ["main"]


def test_warm_launch_is_the_default_on_cpu_and_refused_on_an_accelerator():
    assert launch_of(Options(), CPU_MACHINE) == "warm"
    assert launch_of(Options(), GPU_MACHINE) == "spawn"
    with pytest.raises(Misconfigured, match="--launch spawn"):
        launch_of(Options(launch="warm"), GPU_MACHINE)


def test_no_adjust_leaves_the_engine_alone_except_for_the_absent_torchvision():
    assert planned(options=Options(adjust=False)).adjustments == ("torchvision-absent",)
    assert "nixl-progress-delay" in planned().adjustments


def test_inherited_variables_that_would_bend_the_run_are_removed_with_a_reason():
    inherited = {
        "VLLM_PORT": "tcp://10.0.0.1:80",
        "VLLM_USE_V2_MODEL_RUNNER": "1",
        "CUDA_VISIBLE_DEVICES": "7",
        "HTTPS_PROXY": "http://proxy:3128",
        "http_proxy": "http://proxy:3128",
        "LD_PRELOAD": "libiomp5.so",
        "VLLM_CACHE_ROOT": "/cache",
        "PATH": "/bin",
        "UCX_TLS": "all",
    }
    removed = planned(inherited=inherited).stages[0].servers[0].removed
    assert set(removed) == set(inherited) - {"VLLM_CACHE_ROOT", "PATH", "UCX_TLS"}
    assert all(removed.values())


def test_a_variable_passed_on_purpose_is_kept_and_noted():
    plan = planned(inherited={"VLLM_ATTENTION_BACKEND": "X"}, passed=frozenset({"VLLM_ATTENTION_BACKEND"}))
    assert plan.stages[0].servers[0].removed == {}
    assert any("VLLM_ATTENTION_BACKEND" in note for note in plan.notes)


def test_a_found_engine_keeps_its_own_pythonpath_behind_the_plugin():
    found = dataclasses.replace(engine("cuda"), origin="found")
    values = inputs(EAGLE3_PD, machine=GPU_MACHINE)
    environment = engine_environment(
        EAGLE3_PD,
        EAGLE3_PD.roles[0],
        found,
        {"PYTHONPATH": "/site"},
        model_set="tiny",
        devices=GPU_MACHINE.devices[:1],
        side_channel_port=5600,
        plugin_path=values.plugin_path,
        adjustments=(),
        passed=frozenset(),
        extra={},
    )
    assert environment.values["PYTHONPATH"] == "/harness/engine_plugin:/site"


def test_the_router_never_retries_and_names_both_servers():
    plan = planned()
    router = plan.stages[0].router
    assert router is not None
    assert "--disable-retries" in router.argv
    assert "--disable-circuit-breaker" in router.argv
    for server in plan.stages[0].servers:
        assert value_after(router.argv, f"--{server.role}") == server.url
    assert planned(options=Options(router="direct")).stages[0].router is None


def test_a_device_named_twice_is_refused():
    needs = requirements(EAGLE3_PD, Options(), "tiny")
    with pytest.raises(Misconfigured, match="twice"):
        assign_devices(needs, GPU_MACHINE, Options(devices=(0, 0)), "tiny")


@pytest.mark.parametrize("name", sorted(DEPLOYMENTS))
def test_a_plan_prints_every_server_and_survives_json(name):
    plan = planned(DEPLOYMENTS[name])
    text, data = as_text(plan), json.loads(as_json(plan))
    for server in plan.stages[0].servers:
        assert server.name in text
        assert f"port {server.port}" in text
    assert data["deployment"] == name


def test_a_plan_never_prints_a_secret():
    values = inputs(EAGLE3_PD)
    allocation = propose(requirements(EAGLE3_PD, values.options, "tiny"), values.machine, values.options, "tiny")
    canary = "hf_" + "a" * 34
    secret = dataclasses.replace(values, extra_environment={"decode-0": {"HF_TOKEN": canary}})
    plan = build_plan(secret, allocation, "device")
    assert canary not in as_text(plan)
    assert canary not in as_json(plan)


def snapshot_of(plan: Plan) -> str:
    return as_text(plan) + "\n"


@pytest.mark.parametrize(
    ("name", "machine"), [("eagle3-pd", "cpu"), ("mtp-pd", "cpu"), ("eagle3-pd", "gpu"), ("mtp-pd", "gpu")]
)
def test_plans_equal_their_reviewed_snapshots(name, machine, request):
    plan = planned(DEPLOYMENTS[name], machine=CPU_MACHINE if machine == "cpu" else GPU_MACHINE)
    path = request.path.parent / "data" / f"plan-{name}-{machine}.txt"
    assert snapshot_of(plan) == path.read_text("utf-8"), f"review the change, then: python -m tests.unit.refresh {path}"
