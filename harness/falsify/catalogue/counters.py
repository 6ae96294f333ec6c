"""Engines that work and count wrongly, and pages that show too little."""

from __future__ import annotations

from harness.falsify.changes import EngineFault, MetricsFrom
from harness.falsify.mutation import DeploymentName, Mutation


def _count(
    name: str, what: str, fault: str, caught_by: str, on: DeploymentName = "eagle3-pd", hub: str | None = None
) -> Mutation:
    return Mutation(name, "counters", on, what, (EngineFault("decode", fault),), caught_by, hub=hub)


COUNTERS = (
    _count(
        "positions-swapped",
        "first and last draft position are counted as each other",
        "count-positions-swapped",
        "acceptance_identity",
    ),
    _count(
        "positions-shifted",
        "some of position 0 is counted as position 1: sums and order stay",
        "count-positions-shifted:3",
        "acceptance_per_position",
    ),
    _count(
        "positions-short",
        "each fourth step is not counted by position",
        "count-positions-short:4",
        "acceptance_identity",
        "mtp-pd",
    ),
    _count("accepted-doubled", "accepted tokens count twice", "count-accepted-doubled", "acceptance_length", "mtp-pd"),
    _count(
        "draft-tokens-short",
        "each fifth step counts one draft token too few",
        "count-draft-tokens-short:5",
        "exact_counts",
        hub="",
    ),
    _count(
        "phantom-engine",
        "half of the counts appear under an engine that does not exist",
        "count-phantom-engine",
        "drafts_on_every_engine",
    ),
    _count(
        "counters-reset",
        "the counters start again from 0 in the middle of the run",
        "count-reset:100",
        "drafts_on_every_engine",
    ),
    _count(
        "metrics-missing",
        "the counters of speculation are not on the page",
        "metrics-hidden",
        "drafts_on_every_engine",
    ),
    _count(
        "metrics-positions-missing",
        "the counts by draft position are not on the page",
        "metrics-positions-hidden",
        "acceptance_per_position",
    ),
    _count("metrics-renamed", "the counters have new names", "metrics-renamed", "acceptance_length", "mtp-pd"),
    _count(
        "metrics-transfer-missing",
        "failed and expired transfers are not on the page",
        "metrics-transfer-hidden",
        "kv_moved",
    ),
    Mutation(
        "metrics-of-prefill",
        "counters",
        "eagle3-pd",
        "what is read as decode's page is that of prefill",
        (MetricsFrom("decode", "prefill"),),
        "drafts_on_every_engine",
    ),
    Mutation(
        "metrics-of-router",
        "counters",
        "eagle3-pd",
        "what is read as decode's page is that of the router",
        (MetricsFrom("decode", None),),
        "drafts_on_every_engine",
    ),
)
