"""Servers with a reference without a drafter beside them: two engines behind one, a family of models behind another."""

from __future__ import annotations

from harness.falsify.changes import EngineFault
from harness.falsify.mutation import Family, Mutation
from harness.verdict import Verdict


def _server(
    name: str, family: Family, what: str, fault: str, caught_by: str, hub: str | None = None, smoke: bool = False
) -> Mutation:
    changes = (EngineFault("server", fault),)
    return Mutation(name, family, "eagle3-dp2", what, changes, caught_by, hub=hub, smoke=smoke)


REFERENCED = (
    _server(
        "draft-never-on-one-rank",
        "drafter",
        "no draft of the second of two engines reaches its scheduler",
        "draft-suppressed:0@1",
        "drafts_on_every_engine",
        smoke=True,
    ),
    _server(
        "metrics-of-one-rank",
        "counters",
        "the second of two engines does not count its speculation",
        "metrics-engine-hidden:1",
        "drafts_on_every_engine",
    ),
    _server(
        "diverged-from-reference",
        "output",
        "with speculation the 12th output token is another one than without",
        "output-diverged:11",
        "token_match",
        # One token of an answer is within the share of positions that may differ.
        hub="deterministic_all_match",
    ),
    _server(
        "drafts-unchecked-on-every-rank",
        "output",
        "the rejection sampler accepts every draft token, the reference has none",
        "output-unchecked",
        "deterministic_all_match",
    ),
    Mutation(
        "diverged-with-reference",
        "output",
        "eagle3-dp2",
        "the 12th output token is another one, with speculation and without",
        (EngineFault("server", "output-diverged:11"), EngineFault("reference", "output-diverged:11")),
        "output_as_computed",
        # What a real checkpoint should have said is not known.
        hub="",
    ),
    Mutation(
        "diverged-early",
        "output",
        "deepseek-mtp",
        "with speculation the 6th output token is another one than without",
        (EngineFault("server", "output-diverged:5"),),
        "identical_outputs",
    ),
    Mutation(
        "prompts-too-few",
        "plan",
        "eagle3-dp2",
        "four prompts for two engines",
        (),
        "more_prompts_than_ranks",
        verdict=Verdict.MISCONFIGURED,
        prompts=4,
    ),
)
