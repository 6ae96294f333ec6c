"""Changes alter the plan they are given and nothing that was requested, unless they say so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.deployments import EAGLE3_PD, MTP_PD
from harness.falsify.changes import (
    Argument,
    DrafterWeights,
    EngineFault,
    JsonArgument,
    MetricsFrom,
    RouterBackends,
    StandIn,
    TargetWeights,
    Variable,
    on_server,
)
from harness.falsify.mutation import Place
from harness.plan.types import Plan
from harness.zoo import build
from tests.unit.test_plan import planned, value_after


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Place:
    folder = tmp_path_factory.mktemp("falsify")
    return Place(build("llama-eagle3", folder / "zoo"), folder / "checkpoints")


def argv(plan: Plan, role: str) -> tuple[str, ...]:
    return next(server.argv for server in plan.stages[0].servers if server.role == role)


def test_an_argument_is_replaced_left_out_or_added_on_one_server_only(place):
    plan = planned()
    changed = Argument("decode", "--max-model-len", "1024").apply(plan, place)
    assert value_after(argv(changed, "decode"), "--max-model-len") == "1024"
    assert argv(changed, "decode").count("--max-model-len") == 1
    assert argv(changed, "prefill") == argv(plan, "prefill")
    assert "--kv-transfer-config" not in argv(
        Argument("decode", "--kv-transfer-config", None).apply(plan, place), "decode"
    )
    assert argv(Argument("decode", "--enforce-eager", None).apply(plan, place), "decode") == tuple(
        part for part in argv(plan, "decode") if part != "--enforce-eager"
    )


def test_keys_of_a_json_argument_are_merged_and_none_takes_one_away(place):
    change = JsonArgument("decode", "--speculative-config", (("num_speculative_tokens", 2), ("model", None)))
    before = json.loads(value_after(argv(planned(), "decode"), "--speculative-config"))
    after = json.loads(value_after(argv(change.apply(planned(), place), "decode"), "--speculative-config"))
    assert before["num_speculative_tokens"] == 3
    assert after == {key: value for key, value in before.items() if key != "model"} | {"num_speculative_tokens": 2}


def test_an_engine_fault_is_a_variable_of_one_server(place):
    changed = EngineFault("decode", "kv-zeroed:1").apply(planned(), place)
    assert [server.environment.get("GATE_MUTATE") for server in changed.stages[0].servers] == [None, "kv-zeroed:1"]
    removed = Variable("decode", "GATE_MUTATE", None).apply(changed, place)
    assert "GATE_MUTATE" not in removed.stages[0].server("decode").environment


def test_a_role_that_the_plan_lacks_is_an_error_because_nothing_would_be_broken():
    with pytest.raises(ValueError, match="no server server"):
        on_server(planned(), "server", lambda server: server)


def test_a_damaged_drafter_is_what_was_asked_for_unless_it_was_swapped_in(place):
    plan = planned()
    asked = DrafterWeights("zero").apply(plan, place)
    swapped = DrafterWeights("zero", swapped_in=True).apply(plan, place)
    used = json.loads(value_after(argv(asked, "decode"), "--speculative-config"))["model"]
    assert asked.models.drafter == Path(used)
    assert swapped.models.drafter == plan.models.drafter
    assert json.loads(value_after(argv(swapped, "decode"), "--speculative-config"))["model"] == used


def test_a_damaged_target_goes_to_both_servers_or_to_decode_alone(place):
    both = TargetWeights("other").apply(planned(), place)
    assert value_after(argv(both, "prefill"), "--model") == value_after(argv(both, "decode"), "--model")
    alone = TargetWeights("other", decode_only=True).apply(planned(), place)
    assert value_after(argv(alone, "prefill"), "--model") != value_after(argv(alone, "decode"), "--model")


def test_the_stand_in_router_takes_the_place_and_the_ports_of_the_router(place):
    router = planned(MTP_PD).stages[0].router
    changed = StandIn("honest").apply(planned(MTP_PD), place).stages[0].router
    assert router is not None
    assert changed is not None
    assert (changed.port, changed.metrics_port) == (router.port, router.metrics_port)
    assert value_after(changed.argv, "--port") == str(router.port)
    assert Path(changed.argv[1]).is_file()


def test_the_real_router_can_be_told_the_wrong_backends(place):
    stage = RouterBackends(prefill="decode", decode="prefill").apply(planned(), place).stages[0]
    assert stage.router is not None
    assert value_after(stage.router.argv, "--prefill") == stage.server("decode").url
    assert value_after(stage.router.argv, "--decode") == stage.server("prefill").url


def test_a_page_can_be_read_from_another_server_or_from_the_router(place):
    stage = MetricsFrom("decode", "prefill").apply(planned(EAGLE3_PD), place).stages[0]
    assert stage.server("decode").metrics_url == stage.server("prefill").metrics_url
    stage = MetricsFrom("decode", None).apply(planned(EAGLE3_PD), place).stages[0]
    assert stage.router is not None
    assert str(stage.router.metrics_port) in stage.server("decode").metrics_url
