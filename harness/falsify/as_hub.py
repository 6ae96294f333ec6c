"""The facts of a tiny run as if its checkpoints came from the hub: no computed counts, a baseline with a tolerance.

What the exact checks of tiny checkpoints see proves nothing about a run on real ones. The same facts judged this way
show which faults the checks of a real run catch, and how large a fault must be. The baseline is the computed standalone
value, so that the tolerance alone decides.
"""

from __future__ import annotations

from harness.facts import BaselineFacts, ExpectedCounts, RunFacts

RTOL = 0.05


def as_hub(facts: RunFacts) -> RunFacts:
    """Raises ValueError for facts without computed counts."""
    if facts.expected_counts is None:
        raise ValueError("only a run with computed counts can be judged as another one")
    return facts.model_copy(
        update={
            "model_set": "hub",
            "expected_counts": None,
            "reference_mode": "server",
            "baseline": _baseline(facts, facts.expected_counts),
            "baseline_error": None,
        }
    )


def _baseline(facts: RunFacts, counts: ExpectedCounts) -> BaselineFacts:
    drafts = counts.drafts - (facts.prompts if facts.disaggregated else 0)
    rates = tuple(count / drafts for count in counts.per_position)
    return BaselineFacts(
        key=f"{facts.deployment}/computed",
        acceptance_length=1 + counts.accepted / drafts,
        # As in baselines.toml: the published value of a one-token drafter has no rates by position.
        per_position=rates if len(rates) > 1 else None,
        rtol=RTOL,
        sided="two",
        exact=False,
        estimator="standalone",
        certificate={"source": "computed by the simulator"},
    )
