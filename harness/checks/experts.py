"""Whether expert-parallel load balancing did anything, and what acceptance made of it."""

from __future__ import annotations

from itertools import pairwise

from harness.checks.finding import Figures, failed, passed
from harness.checks.select import main_servers, run_of
from harness.facts import CheckResult, RunFacts, ServerFacts
from harness.measure.acceptance import Counts, acceptance, pool
from harness.measure.delta import delta
from harness.measure.metrics import has, total

# The count of this histogram: one entry for each step that computed a token.
_STEPS = "vllm:iteration_tokens_total_count"


def eplb_rearranged(facts: RunFacts) -> CheckResult:
    """Every server with load balancing rearranged its experts while the workload ran; acceptance before and after."""
    name = "eplb_rearranged"
    figures: Figures = {}
    problems: list[str] = []
    notes: list[str] = []
    balanced = [server for server in main_servers(facts) if server.rearranged is not None]
    if not balanced:
        return failed(name, f"{facts.deployment} has no server with load balancing", word="misconfigured")
    for server in balanced:
        counts = server.rearranged or ()
        during = counts[-1] - counts[0] if counts else 0
        figures[f"{server.name}_rearrangements"] = during
        figures[f"{server.name}_rearrangements_before_run"] = counts[0] if counts else 0
        figures[f"{server.name}_engine_steps"] = _steps(server)
        figures[f"{server.name}_first_rearrangement_by_step"] = _first_by_step(server)
        if during <= 0:
            problems.append(
                f"no rearrangement on {server.name} during the run ({server.log} names {counts[0] if counts else 0} "
                f"before it): the step interval never came, so nothing is shown about it"
            )
        elif server.requested.method is not None:
            before, after = _around_first(server)
            figures[f"{server.name}_acceptance_length_before"] = before.length
            figures[f"{server.name}_acceptance_length_after"] = after.length
            notes.append(_around(before, after))
            if after.drafts <= 0:
                problems.append(f"{server.name} drafted nothing after its experts were rearranged ({server.url})")
    if problems:
        return failed(name, problems[0], figures, problems)
    total = sum(int(value or 0) for key, value in figures.items() if key.endswith("_rearrangements"))
    return passed(name, "; ".join((f"{total} rearrangements during the run", *notes)), figures)


def _steps(server: ServerFacts) -> int | None:
    """Engine steps over the run, all engines together; None where the engine does not count them."""
    run = run_of(server)
    return round(total(run, _STEPS)) if has(run, _STEPS) else None


def _first_by_step(server: ServerFacts) -> int | None:
    """The engine's step count, smoke request included, at the first page taken after a rearrangement."""
    for page, seen in zip(server.windows, server.rearranged or (), strict=True):
        if seen and has(page, _STEPS):
            return round(total(page, _STEPS))
    return None


def _around_first(server: ServerFacts) -> tuple[Counts, Counts]:
    """Counts of the windows that ended before the first rearrangement, and of those that began after it.

    A window that holds the first one belongs to neither.
    """
    before: list[Counts] = []
    after: list[Counts] = []
    pages = zip(server.windows, server.rearranged or (), strict=True)
    for (start, seen_at_start), (end, seen_at_end) in pairwise(pages):
        part = acceptance(delta(start, end)).pooled
        if seen_at_end == 0:
            before.append(part)
        elif seen_at_start > 0:
            after.append(part)
    return pool(tuple(before)), pool(tuple(after))


def _around(before: Counts, after: Counts) -> str:
    def show(counts: Counts) -> str:
        return f"{counts.length:.3f} over {counts.drafts} drafts" if counts.length is not None else "no drafts"

    return f"acceptance length {show(before)} before the first, {show(after)} after it"
