"""Answers to the same prompts from two servers, compared token by token."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from harness.facts import LimitFacts, RequestFacts
from harness.measure.matching import Match, match, pooled_ratio


@dataclass(frozen=True)
class Agreement:
    """Matches by prompt id. ``missing``: prompts that only one side answered with token ids."""

    matches: dict[str, Match]
    missing: tuple[str, ...]

    @property
    def ratio(self) -> float | None:
        """Positions with the same token over all positions; None when nothing was compared."""
        return pooled_ratio(self.matches.values())

    @property
    def identical(self) -> int:
        return sum(one.identical for one in self.matches.values())

    @property
    def differing(self) -> list[str]:
        """One line per answer that differs: where, both tokens, and the margin between them if it is known."""
        return [f"{prompt} {one.divergence}" for prompt, one in self.matches.items() if not one.identical]


def agreement(
    expected: Iterable[RequestFacts], actual: Iterable[RequestFacts], compared_tokens: int | None = None
) -> Agreement:
    """``actual`` against ``expected`` by prompt id, over the first ``compared_tokens`` tokens (None: all)."""
    references = {request.prompt_id: request for request in expected}
    left = {prompt: request.token_ids for prompt, request in references.items()}
    right = {request.prompt_id: request.token_ids for request in actual}
    matches: dict[str, Match] = {}
    missing = []
    for prompt in dict.fromkeys((*left, *right)):
        one, other = left.get(prompt), right.get(prompt)
        if one is None or other is None:
            missing.append(prompt)
        else:
            logprobs = references[prompt].top_logprobs
            matches[prompt] = match(one[:compared_tokens], other[:compared_tokens], logprobs)
    return Agreement(matches, tuple(missing))


def reaches(part: int, whole: int, least: float) -> bool:
    """Whether ``part`` of ``whole`` is at least the share ``least``, in whole numbers: 66 of 100 reaches 0.66."""
    return Fraction(part, whole) >= Fraction(str(least)) if whole else False


def within_limits(found: Agreement, limits: LimitFacts, *, exact: bool) -> bool:
    """Whether nothing about this agreement asks for a control. ``exact``: no difference at all is allowed."""
    total = len(found.matches)
    if found.missing or not total:
        return False
    if exact:
        return found.identical == total
    if limits.token_match is not None:
        positions = sum(one.length for one in found.matches.values())
        if not reaches(sum(one.matched for one in found.matches.values()), positions, limits.token_match):
            return False
    return limits.identical is None or reaches(found.identical, total, limits.identical)
