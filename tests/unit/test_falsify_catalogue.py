"""The catalogue declares what exists: checks, phases, faults, behaviours; and covers every check."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from typing import Any

import pytest

from harness.checks.registry import CHECKS
from harness.deployments import DEPLOYMENTS
from harness.engine.interpreter import ENGINE_PLUGIN
from harness.errors import Misconfigured
from harness.falsify.catalogue import CONTROLS, MUTATIONS
from harness.falsify.catalogue.drafter import DEGRADED
from harness.falsify.changes import EngineFault
from harness.falsify.mutation import PHASES, Mutation
from harness.falsify.session import Selection, select
from harness.falsify.weaken import judged_checks
from harness.verdict import Verdict
from harness.zoo import Chain, chain_of, simulate, tiny_prompts, tokenize

sys.path.append(str(ENGINE_PLUGIN))

gate_mutations: Any = importlib.import_module("gate_mutations")
gate_fault_drafter: Any = importlib.import_module("gate_fault_drafter")
gate_replace: Any = importlib.import_module("gate_replace")


def test_there_are_at_least_forty_mutations_with_names_of_their_own():
    names = [mutation.name for mutation in (*CONTROLS, *MUTATIONS)]
    assert len(MUTATIONS) >= 40
    assert len(names) == len(set(names))


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_what_must_catch_a_mutation_is_judged_in_its_deployment(mutation: Mutation):
    judged = {*DEPLOYMENTS[mutation.deployment].checks, *PHASES}
    assert mutation.caught_by in judged
    assert mutation.hub_caught_by in {*judged, ""}
    assert mutation.verdict is not Verdict.PASS
    # Fewer prompts are a change, too.
    assert mutation.changes or mutation.prompts


def test_every_check_of_the_deployments_is_declared_by_a_mutation():
    declared = {mutation.caught_by for mutation in MUTATIONS}
    known = {mutation.name: mutation for mutation in MUTATIONS}
    assert set(judged_checks(known)) - declared == set()
    assert set(judged_checks(known)) <= set(CHECKS)


def test_only_checks_that_need_what_is_not_here_are_left_out_of_the_catalogue():
    known = {mutation.name: mutation for mutation in MUTATIONS}
    assert set(CHECKS) - set(judged_checks(known)) == {"eplb_rearranged", "gsm8k_threshold", "synthetic_acceptance"}


def test_every_engine_fault_of_the_catalogue_exists_and_every_one_that_exists_is_used():
    asked = {
        change.fault.partition(":")[0]
        for mutation in MUTATIONS
        for change in mutation.changes
        if isinstance(change, EngineFault)
    }
    assert asked == set(gate_mutations.FAULTS)


def test_an_unknown_fault_ends_the_engine():
    with pytest.raises(ValueError, match="no such fault"):
        gate_mutations.apply("kv-zeored:1")


def test_a_method_is_replaced_once_however_often_the_plugin_is_loaded():
    class Engine:
        def step(self) -> int:
            return 1

    def make(step: Any) -> Any:
        return lambda self: step(self) + 1

    gate_replace.replace_method(Engine, "step", make)
    gate_replace.replace_method(Engine, "step", make)
    assert Engine().step() == 2


def test_a_fault_whose_place_is_gone_is_an_error():
    with pytest.raises(AttributeError):
        gate_replace.replace_method(int, "no_such_method", lambda original: original)


def test_the_smoke_subset_is_small_and_holds_a_control_of_each_deployment():
    chosen = select(Selection(smoke=True))
    mutations = [one for one in chosen if one.family != "control"]
    assert 5 <= len(mutations) <= 6
    assert {one.deployment for one in chosen if one.family == "control"} == {one.deployment for one in mutations}
    assert chosen[0].family == "control"


def test_an_unknown_name_or_family_is_refused_by_name():
    with pytest.raises(Misconfigured, match="no mutation 'kv-zeored'"):
        select(Selection(names=("kv-zeored",)))
    with pytest.raises(Misconfigured, match="no family 'kv'"):
        select(Selection(family="kv"))


def forgetful(chain: Chain, per_mille: int) -> Chain:
    class Forgetful(Chain):
        def draft(self, token, modes):
            guess = super().draft(token, modes)
            lost = gate_fault_drafter.forgets(guess, per_mille)
            return gate_fault_drafter.NEVER_RIGHT if lost else guess

    return Forgetful(**{field.name: getattr(chain, field.name) for field in dataclasses.fields(chain)})


@pytest.mark.parametrize(
    ("deployment", "percent"), [(name, percent) for name, shares in DEGRADED.items() for percent in shares]
)
def test_the_degraded_drafters_lose_the_acceptance_that_their_names_say(deployment, percent):
    model = DEPLOYMENTS[deployment].models.tiny
    speculation = DEPLOYMENTS[deployment].role("decode").speculation
    assert speculation is not None

    def length(chain: Chain) -> float:
        runs = [simulate(chain, tokenize(p.text), p.max_tokens, speculation.k) for p in tiny_prompts(model)]
        return 1 + sum(one.accepted for one in runs) / sum(one.drafts for one in runs)

    whole = chain_of(model)
    lost = 100 * (1 - length(forgetful(whole, DEGRADED[deployment][percent])) / length(whole))
    assert lost == pytest.approx(percent, abs=0.9)
