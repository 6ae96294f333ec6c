"""What a baseline's tolerance can see, by arithmetic alone: noise of the estimate, false alarms, detectable effect.

One verification step accepts X of k draft tokens. With rates p_i = P(X >= i) by draft position, acceptance length is
1 + sum(p_i) and Var(X) = sum((2 i - 1) p_i) - (sum p_i)^2. n steps give a standard error of sqrt(DESIGN Var / n);
DESIGN is how many drafts of one text count as one independent draft (`checks.stability`). The estimate is a mean over
hundreds of independent drafts, so the normal law holds.

It is the noise between different sets of prompts. Greedy runs of one build over the same prompts differ by far less
(see the spread that soak prints), so for those every figure here is an upper bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from harness.baselines import Entry
from harness.checks.stability import DRAFTS_PER_INDEPENDENT_ONE

POWER = 0.8
_NORMAL = NormalDist()


@dataclass(frozen=True)
class Power:
    """``drafts`` of the whole workload. ``false_alarm``: probability that a right engine is outside the tolerance.

    ``detectable``: the smallest relative loss of acceptance length that is noticed with probability `POWER`;
    ``detectable_at_best``: the same if the tolerance were as narrow as one false alarm in twenty allows.
    """

    key: str
    drafts: int
    standard_error: float
    false_alarm: float
    detectable: float
    detectable_at_best: float


def variance(rates: Sequence[float]) -> float:
    """Var(X) of one step from P(X >= i), i from 1."""
    mean = sum(rates)
    return sum((2 * i - 1) * rate for i, rate in enumerate(rates, start=1)) - mean**2


def power_of(entry: Entry) -> Power | None:
    """None for an exact entry, and for one whose rates by position are neither stated nor implied (k = 1)."""
    length, rtol = entry.acceptance_length, entry.rtol
    if entry.exact or length is None or rtol is None or entry.prompts is None or entry.max_tokens is None:
        return None
    rates = entry.per_position or ((length - 1,) if length <= 2 else None)
    if rates is None:
        return None
    # The first token of each answer comes from prefill; every step after it emits acceptance-length tokens.
    drafts = round(entry.prompts * (entry.max_tokens - 1) / length)
    return power(entry.key, drafts, length, rates, rtol, two_sided=entry.sided == "two")


def power(key: str, drafts: int, length: float, rates: Sequence[float], rtol: float, *, two_sided: bool) -> Power:
    """``drafts`` steps of a drafter with acceptance length ``length``, judged within ``rtol`` of it."""
    error = math.sqrt(DRAFTS_PER_INDEPENDENT_ONE * variance(rates) / drafts)
    margin = rtol * length
    tail = 1 - _NORMAL.cdf(margin / error)
    reach = _NORMAL.inv_cdf(POWER) * error
    narrowest = _NORMAL.inv_cdf(0.975 if two_sided else 0.95) * error
    return Power(
        key=key,
        drafts=drafts,
        standard_error=error,
        false_alarm=2 * tail if two_sided else tail,
        detectable=(margin + reach) / length,
        detectable_at_best=(narrowest + reach) / length,
    )
