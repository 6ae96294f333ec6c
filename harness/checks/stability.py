"""Whether acceptance held over the whole run."""

from __future__ import annotations

import math

from harness.checks.finding import Figures, failed, passed
from harness.checks.select import drafting_servers
from harness.facts import CheckResult, RunFacts
from harness.measure.acceptance import Counts, pool
from harness.measure.windows import Window, windows

# Prompts differ (code drafts well, role play badly), so a window of a few requests may well lie 30 % off the mean.
# A collapse is a window that accepts less than half of what the rest of the run accepts per draft, ...
COLLAPSE_SHARE = 0.5
# ... by more than chance allows: Hoeffding's bound for values in [0, k], one false alarm in a million windows, with
# eight drafts counted as one because the drafts of one request are not independent.
FALSE_ALARM = 1e-6
DRAFTS_PER_INDEPENDENT_ONE = 8
MIN_DRAFTS_PER_WINDOW = 200


def acceptance_windows(facts: RunFacts) -> CheckResult:
    """No window of the run collapsed. Windows under 200 drafts are not judged; `exact_counts` covers tiny runs."""
    name = "acceptance_windows"
    figures: Figures = {}
    judged = 0
    for server in drafting_servers(facts):
        parts = windows(server.windows)
        large = [window for window in parts if window.counts.drafts >= MIN_DRAFTS_PER_WINDOW]
        drafts = sum(window.counts.drafts for window in parts)
        lengths = [window.counts.length for window in parts]
        figures[f"{server.name}_windows"] = " ".join("-" if length is None else f"{length:.3f}" for length in lengths)
        if len(large) < 2:
            if drafts >= 4 * MIN_DRAFTS_PER_WINDOW:
                return failed(
                    name,
                    f"{server.name} made {drafts} drafts but was read only {len(server.windows)} times: a collapse in "
                    f"the middle of the run could not be seen",
                    figures,
                    word="infra",
                )
            continue
        judged += len(large)
        for window in large:
            rest = pool(tuple(other.counts for other in parts if other.index != window.index))
            if collapsed(window.counts, rest):
                return failed(name, _describe(server.name, window, len(parts), rest), figures)
    figures["windows_judged"] = judged
    if not judged:
        return passed(name, f"not judged: no two windows with {MIN_DRAFTS_PER_WINDOW} drafts or more", figures)
    return passed(name, f"acceptance held in {judged} windows", figures)


def collapsed(window: Counts, rest: Counts) -> bool:
    """Whether ``window`` accepts under half of what ``rest`` accepts per draft, beyond chance; see the constants."""
    if window.drafts <= 0 or rest.drafts <= 0:
        return False
    here, there = window.accepted / window.drafts, rest.accepted / rest.drafts
    independent = window.drafts / DRAFTS_PER_INDEPENDENT_ONE
    bound = len(window.per_position) * math.sqrt(math.log(1 / FALSE_ALARM) / (2 * independent))
    return here < COLLAPSE_SHARE * there and there - here > bound


def _describe(server: str, window: Window, count: int, rest: Counts) -> str:
    return (
        f"acceptance collapsed on {server} in window {window.index + 1} of {count}: length {window.counts.length:.3f} "
        f"over {window.counts.drafts} drafts, {rest.length:.3f} in the rest of the run"
    )
