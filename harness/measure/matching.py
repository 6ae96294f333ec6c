"""How far two token sequences agree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# The likeliest tokens at one position and their log probabilities, at each position of an answer.
TopLogprobs = Sequence[Sequence[tuple[int, float]]]


@dataclass(frozen=True)
class Margin:
    """By how much the reference preferred its token to the other one. ``beyond``: the other one is not among the
    likeliest so many, so that ``nats`` is the least it can be."""

    nats: float
    beyond: int | None = None

    def __str__(self) -> str:
        if self.beyond is not None:
            return f"beyond the top {self.beyond}, over {self.nats:.4f} nats"
        return f"{self.nats:.4f} nats"


@dataclass(frozen=True)
class Divergence:
    """The first position that differs; None is the end of that side. ``margin`` None: not known."""

    position: int
    expected: int | None
    actual: int | None
    margin: Margin | None = None

    def __str__(self) -> str:
        def show(token: int | None) -> str:
            return "its end" if token is None else f"token {token}"

        said = f"at position {self.position}: expected {show(self.expected)}, got {show(self.actual)}"
        return said if self.margin is None else f"{said}; margin of the reference {self.margin}"


@dataclass(frozen=True)
class Match:
    """One output against its reference. ``length`` is the longer of both, so a short output cannot look complete."""

    matched: int
    length: int
    common_prefix: int
    divergence: Divergence | None

    @property
    def identical(self) -> bool:
        return self.divergence is None

    @property
    def ratio(self) -> float:
        """Positions with the same token; 1.0 for two empty sequences."""
        return self.matched / self.length if self.length else 1.0


def match(expected: Sequence[int], actual: Sequence[int], logprobs: TopLogprobs | None = None) -> Match:
    """Position by position, no alignment: after an insertion nothing matches, as for a reader of the text.

    ``logprobs``: those of ``expected``, where its server was asked for them.
    """
    length = max(len(expected), len(actual))
    pairs = [
        (expected[i] if i < len(expected) else None, actual[i] if i < len(actual) else None) for i in range(length)
    ]
    first = next((i for i, (left, right) in enumerate(pairs) if left != right), None)
    return Match(
        matched=sum(left == right for left, right in pairs),
        length=length,
        common_prefix=length if first is None else first,
        divergence=None if first is None else Divergence(first, *pairs[first], _margin(logprobs, first, *pairs[first])),
    )


def _margin(logprobs: TopLogprobs | None, position: int, expected: int | None, actual: int | None) -> Margin | None:
    if logprobs is None or position >= len(logprobs) or expected is None or actual is None:
        return None
    listed = dict(logprobs[position])
    if expected not in listed:
        return None
    if actual in listed:
        return Margin(listed[expected] - listed[actual])
    return Margin(listed[expected] - min(listed.values()), beyond=len(listed))


def pooled_ratio(matches: Iterable[Match]) -> float | None:
    """Matching positions over all positions; None when nothing was compared."""
    pairs = [(one.matched, one.length) for one in matches]
    length = sum(length for _, length in pairs)
    return sum(matched for matched, _ in pairs) / length if length else None
