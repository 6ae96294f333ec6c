"""Measured acceptance against the selected baseline entry."""

from __future__ import annotations

from dataclasses import dataclass

from harness.checks.finding import Figures, failed, passed
from harness.checks.select import drafting_servers, padded_drafts_by_engine, run_of
from harness.facts import BaselineFacts, CheckResult, RunFacts
from harness.measure.acceptance import Counts, acceptance, pool


@dataclass(frozen=True)
class Measured:
    """Counts as the engine shows them, and with the padded draft of each KV-loaded request taken out."""

    raw: Counts
    corrected: Counts
    padded: int

    def judged(self, estimator: str) -> tuple[str, Counts]:
        """A standalone baseline is compared with corrected counts, one recorded as counted with raw ones."""
        return ("raw", self.raw) if estimator == "as-counted" else ("corrected", self.corrected)


def measured(facts: RunFacts) -> Measured:
    """Pooled over all engines of all drafting servers."""
    runs = [run_of(server) for server in drafting_servers(facts)]
    raw = pool(tuple(acceptance(run).pooled for run in runs))
    padded = sum(sum(padded_drafts_by_engine(facts, run).values()) for run in runs)
    return Measured(raw, raw.without_padding(padded), padded)


def acceptance_length(facts: RunFacts) -> CheckResult:
    """Acceptance length against the baseline; tiny checkpoints against the computed counts, without tolerance."""
    name = "acceptance_length"
    baseline = facts.baseline
    if baseline is None:
        return _no_baseline(name, facts)
    found = measured(facts)
    which, counts = found.judged(baseline.estimator)
    figures: Figures = {
        "acceptance_length_raw": found.raw.length,
        "acceptance_length_corrected": found.corrected.length,
        "acceptance_rate_raw": found.raw.rate,
        "drafts_raw": found.raw.drafts,
        "padded_drafts": found.padded,
        "judged": which,
        "expected": baseline.acceptance_length,
        "baseline": baseline.key,
    }
    if counts.length is None:
        return failed(name, "drafter never fired: acceptance length is undefined", figures)
    if baseline.exact:
        return _exact_length(name, facts, found.raw, figures)
    if baseline.acceptance_length is None or baseline.rtol is None:
        return failed(
            name, f"baseline {baseline.key} has no acceptance length or no tolerance", figures, word="misconfigured"
        )
    text = (
        f"acceptance length {counts.length:.3f} ({which}), expected {baseline.acceptance_length:.3f} "
        f"{_tolerance(baseline)} ({baseline.key})"
    )
    if not _within(counts.length, baseline.acceptance_length, baseline):
        return failed(name, text, figures)
    return passed(name, text, figures)


def acceptance_per_position(facts: RunFacts) -> CheckResult:
    """Accepted per draft at each draft position, against the baseline's rates where it has any."""
    name = "acceptance_per_position"
    baseline = facts.baseline
    if baseline is None:
        return _no_baseline(name, facts)
    found = measured(facts)
    which, counts = found.judged(baseline.estimator)
    rates = counts.position_rates
    if rates is None:
        return failed(name, "drafter never fired: the rates by draft position are undefined", {"judged": which})
    figures: Figures = {"judged": which, "baseline": baseline.key}
    figures.update({f"position_{position}": round(rate, 6) for position, rate in enumerate(rates)})
    if baseline.exact:
        return _exact_positions(name, facts, found.raw, figures)
    if baseline.per_position is None:
        return passed(name, f"the baseline {baseline.key} has no rates by draft position", figures | {"judged": "no"})
    if len(rates) != len(baseline.per_position):
        return failed(
            name,
            f"{len(rates)} draft positions measured, baseline {baseline.key} has {len(baseline.per_position)}",
            figures,
            word="misconfigured",
        )
    lines = [
        f"position {position}: {rate:.4f} ({which}), expected {wanted:.4f} {_tolerance(baseline)}"
        for position, (rate, wanted) in enumerate(zip(rates, baseline.per_position, strict=True))
        if not _within(rate, wanted, baseline)
    ]
    if lines:
        return failed(name, lines[0], figures, lines)
    shown = " / ".join(f"{rate:.4f}" for rate in rates)
    return passed(name, f"per position {shown} ({which}), all {_tolerance(baseline)} of {baseline.key}", figures)


def _exact_length(name: str, facts: RunFacts, raw: Counts, figures: Figures) -> CheckResult:
    expected = facts.expected_counts
    if expected is None:
        return failed(name, "the baseline is exact but no counts were computed", figures, word="misconfigured")
    figures["expected"] = 1 + expected.accepted / expected.drafts if expected.drafts else None
    figures["judged"] = "raw"
    text = (
        f"acceptance length 1 + {raw.accepted}/{raw.drafts}, computed 1 + {expected.accepted}/{expected.drafts} "
        f"(raw counts, padding computed too)"
    )
    # Cross-multiplied: equal as fractions, whatever floats make of them.
    if raw.accepted * expected.drafts != expected.accepted * raw.drafts:
        return failed(name, text, figures)
    return passed(name, text, figures)


def _exact_positions(name: str, facts: RunFacts, raw: Counts, figures: Figures) -> CheckResult:
    expected = facts.expected_counts
    if expected is None:
        return failed(name, "the baseline is exact but no counts were computed", figures, word="misconfigured")
    figures["judged"] = "raw"
    text = f"accepted per position {list(raw.per_position)}, computed {list(expected.per_position)}"
    if raw.per_position != expected.per_position:
        return failed(name, text, figures)
    return passed(name, text, figures)


def _no_baseline(name: str, facts: RunFacts) -> CheckResult:
    reason = facts.baseline_error or f"no baseline entry fits {facts.deployment} ({facts.model_set})"
    return failed(name, f"nothing to judge against: {reason}", word="misconfigured")


def _within(value: float, expected: float, baseline: BaselineFacts) -> bool:
    margin = abs(expected) * (baseline.rtol or 0.0)
    return value >= expected - margin and (baseline.sided == "lower" or value <= expected + margin)


def _tolerance(baseline: BaselineFacts) -> str:
    percent = f"{100 * (baseline.rtol or 0.0):g} %"
    return f"± {percent}" if baseline.sided == "two" else f"- {percent} (lower bound only)"
