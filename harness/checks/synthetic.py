"""Whether the synthetic rejection sampler accepts as much as it was asked to."""

from __future__ import annotations

from harness.checks.against_baseline import measured
from harness.checks.finding import Figures, failed, passed
from harness.facts import CheckResult, RunFacts


def synthetic_acceptance(facts: RunFacts) -> CheckResult:
    """The measured acceptance length lies within the limit around the mean asked for."""
    name = "synthetic_acceptance"
    asked, within = facts.limits.synthetic_length, facts.limits.synthetic_within
    if asked is None or within is None:
        return failed(name, f"{facts.deployment} asks for no synthetic acceptance length", word="misconfigured")
    counts = measured(facts).corrected
    figures: Figures = {
        "synthetic_asked": asked,
        "synthetic_measured": counts.length,
        "synthetic_drafts": counts.drafts,
    }
    if counts.length is None:
        return failed(name, "drafter never fired: acceptance length is undefined", figures)
    text = f"acceptance length {counts.length:.3f} over {counts.drafts} drafts, asked for {asked:g} ± {within:g}"
    return (passed if abs(counts.length - asked) <= within else failed)(name, text, figures)
