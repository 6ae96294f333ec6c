"""One budget per phase: a point on the monotonic clock that stacked waits share."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Deadline:
    """``at_s`` on `time.monotonic`. Pass it down instead of a timeout, so that nested waits cannot add up."""

    at_s: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        return cls(time.monotonic() + seconds)

    def remaining(self) -> float:
        """Seconds left, never negative: safe to hand to any call that takes a timeout."""
        return max(0.0, self.at_s - time.monotonic())

    @property
    def expired(self) -> bool:
        return time.monotonic() >= self.at_s

    def sooner(self, seconds: float) -> Deadline:
        """A deadline for one step of the phase: ``seconds`` from now, or this one if that comes first."""
        return Deadline(min(self.at_s, time.monotonic() + seconds))
