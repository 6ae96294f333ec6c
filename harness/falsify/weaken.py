"""Each check in turn replaced by "always true" over the facts of a falsify run: does falsify notice? No engine needed.

Two answers for each check. ``declared``: mutations whose own check it is; without it falsify fails. ``alone``:
mutations that nothing else catches, so that the run itself would have passed; counted for the tiny judgement, whose
exact counts see nearly everything, and for the judgement of a hub run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.deployments import DEPLOYMENTS
from harness.falsify.mutation import Mutation
from harness.falsify.outcome import Outcome, problem_of, rejudged
from harness.verdict import Verdict


@dataclass(frozen=True)
class Weakened:
    """What falsify finds with ``check`` always true; ``noticed`` are mutations it then reports as wrong."""

    check: str
    noticed: tuple[str, ...]
    alone: tuple[str, ...]
    alone_as_hub: tuple[str, ...]


def weaken_each(mutations: Mapping[str, Mutation], outcomes: tuple[Outcome, ...], runs: Path) -> tuple[Weakened, ...]:
    """One entry for each check of `judged_checks`. Only mutations that were caught as declared can be missed."""
    caught = [outcome for outcome in outcomes if problem_of(mutations[outcome.name], outcome) is None]
    return tuple(_weaken(check, mutations, caught, runs) for check in judged_checks(mutations))


# Named by a deployment of the catalogue, and judges nothing with tiny models: none of them solves a problem.
_UNJUDGED = frozenset({"gsm8k_threshold"})


def judged_checks(mutations: Mapping[str, Mutation]) -> tuple[str, ...]:
    """Every check that judges something in a deployment of the catalogue. Others need what cannot run here."""
    named = (name for mutation in mutations.values() for name in DEPLOYMENTS[mutation.deployment].checks)
    return tuple(name for name in dict.fromkeys(named) if name not in _UNJUDGED)


def _weaken(check: str, mutations: Mapping[str, Mutation], caught: list[Outcome], runs: Path) -> Weakened:
    noticed, alone, alone_as_hub = [], [], []
    for outcome in caught:
        if not {check} & {*(outcome.failed or ()), *(outcome.hub_failed or ())}:
            continue
        weaker = rejudged(outcome, runs / outcome.run, frozenset({check}))
        if problem_of(mutations[outcome.name], weaker) is not None:
            noticed.append(outcome.name)
        if outcome.verdict is not Verdict.PASS and weaker.verdict is Verdict.PASS:
            alone.append(outcome.name)
        if outcome.hub_verdict is not Verdict.PASS and weaker.hub_verdict is Verdict.PASS:
            alone_as_hub.append(outcome.name)
    return Weakened(check, tuple(noticed), tuple(alone), tuple(alone_as_hub))
