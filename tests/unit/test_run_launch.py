from __future__ import annotations

from pathlib import Path

import pytest

from harness.deployments import DEPLOYMENTS, RoleName
from harness.plan.assign import propose
from harness.plan.build import build_plan, model_set_of, requirements
from harness.plan.types import LaunchMode, Options, Plan
from harness.run.collect import adjustments_made, start_of_log
from harness.run.launch import importer_spec, router_spec, server_spec
from harness.run.requested import requested_config
from tests.unit.plan_inputs import CPU_MACHINE, engine, inputs
from tests.unit.run_inputs import run_folder

INHERITED = {"PATH": "/bin", "VLLM_PORT": "tcp://10.0.0.1:80", "https_proxy": "http://proxy", "GATE_RUN": "another"}
RUN = Path("/runs/r")


def plan_of(name: str, launch: LaunchMode) -> Plan:
    values = inputs(DEPLOYMENTS[name], options=Options(launch=launch), inherited=INHERITED)
    needs = requirements(values.deployment, values.options, model_set_of(values.options, CPU_MACHINE))
    return build_plan(values, propose(needs, CPU_MACHINE, values.options, "tiny"), "device")


def test_a_spawned_server_is_the_module_under_the_engine_s_python() -> None:
    plan = plan_of("eagle3-pd", "spawn")
    decode = plan.stages[0].server("decode")
    spec = server_spec(decode, plan, engine("cpu"), INHERITED, "mark", RUN)
    assert spec.argv == ("/engine/bin/python", "-m", "vllm.entrypoints.openai.api_server", *decode.argv)
    assert spec.log == RUN / "logs" / "decode-0.log"


def test_a_warm_server_is_only_its_arguments_and_names_what_the_importer_must_forget() -> None:
    plan = plan_of("eagle3-pd", "warm")
    decode = plan.stages[0].server("decode")
    spec = server_spec(decode, plan, engine("cpu"), INHERITED, "mark", RUN)
    assert (spec.launch, spec.argv) == ("warm", decode.argv)
    assert "VLLM_PORT" in spec.unset


@pytest.mark.parametrize("launch", ["spawn", "warm"])
def test_every_process_carries_the_mark_and_nothing_that_bends_the_run(launch: LaunchMode) -> None:
    plan = plan_of("mtp-pd", launch)
    stage = plan.stages[0]
    assert stage.router is not None
    specs = [
        importer_spec(stage.servers[0], engine("cpu"), INHERITED, "mark", RUN),
        router_spec(stage.router, INHERITED, "mark", RUN),
    ]
    if launch == "spawn":
        specs += [server_spec(server, plan, engine("cpu"), INHERITED, "mark", RUN) for server in stage.servers]
    for spec in specs:
        assert spec.environment["GATE_RUN"] == "mark"
        assert spec.environment["SPT_NOENV"] == "1"
        assert spec.environment["PATH"] == "/bin"
        assert not {"VLLM_PORT", "https_proxy"} & spec.environment.keys()


def test_what_was_requested_of_each_role_can_be_compared_with_what_it_says() -> None:
    plan = plan_of("eagle3-pd", "warm")
    roles: tuple[RoleName, RoleName] = ("prefill", "decode")
    prefill, decode = (
        requested_config(DEPLOYMENTS["eagle3-pd"], plan, plan.stages[0].server(role), "cpu") for role in roles
    )
    assert (prefill.kv_role, prefill.k) == ("kv_producer", 1)
    assert (decode.kv_role, decode.k) == ("kv_consumer", 3)
    assert {prefill.load_failure_policy, decode.load_failure_policy} == {"fail"}
    assert (decode.connector, decode.kv_buffer_device, decode.method) == ("NixlConnector", "cpu", "eagle3")


def test_adjustments_are_those_that_the_engine_reports_each_once(tmp_path: Path) -> None:
    run = run_folder(tmp_path)
    decode = plan_of("eagle3-pd", "warm").stages[0].server("decode")
    assert adjustments_made(decode, run) == []
    (run / "logs" / "decode-0.log").write_text(
        "INFO x\ngate-plugin pid=1 applied nixl-progress-delay pthrDelay=5000us\n"
        "gate-plugin pid=2 applied nixl-progress-delay pthrDelay=5000us\n"
        "gate-plugin pid=2 not-applicable shm-wakeup no such module\nINFO gate-plugin pid=3 applied in the middle\n",
        "utf-8",
    )
    assert adjustments_made(decode, run) == [
        "applied nixl-progress-delay pthrDelay=5000us",
        "not-applicable shm-wakeup no such module",
    ]


def test_only_the_start_of_a_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_bytes(b"\xff\xfe" + b"a" * (5 << 20))
    assert len(start_of_log(log)) == 4 << 20
