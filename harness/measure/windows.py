"""Acceptance by window of the run, so that a collapse in the middle is not averaged away."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from harness.facts import Snapshot
from harness.measure.acceptance import Counts, acceptance
from harness.measure.delta import delta


@dataclass(frozen=True)
class Window:
    """Counts between two neighbouring snapshots; ``index`` from 0 in time order."""

    index: int
    duration_s: float
    counts: Counts


def windows(snapshots: tuple[Snapshot, ...]) -> tuple[Window, ...]:
    """One window per neighbouring pair; empty for fewer than two snapshots."""
    return tuple(
        Window(index, (difference := delta(before, after)).duration_s, acceptance(difference).pooled)
        for index, (before, after) in enumerate(pairwise(snapshots))
    )
