"""What became of one mutation, and whether that is what was declared. Pure, apart from reading a finished run."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from harness.checks.registry import judge
from harness.facts import CheckResult, RunFacts
from harness.falsify.as_hub import as_hub
from harness.falsify.mutation import PHASES, Mutation
from harness.files import LARGEST_DATA_BYTES, read_bounded
from harness.result import Result
from harness.run.judge import FACTS_NAME, conclude
from harness.verdict import Verdict

NOTHING: frozenset[str] = frozenset()


class Outcome(BaseModel):
    """``failed`` are the failed checks in their order, ``hub_failed`` those of `as_hub`; None: nothing was judged.

    ``ended_in``: the phase in which the run ended before it was judged.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    verdict: Verdict
    reason: str
    ended_in: str | None
    failed: tuple[str, ...] | None
    hub_verdict: Verdict | None
    hub_failed: tuple[str, ...] | None
    seconds: float
    run: str

    @property
    def catchers(self) -> tuple[str, ...]:
        """Checks, or the phase, that noticed."""
        return (self.ended_in or "",) if self.failed is None else self.failed


def outcome_of(name: str, result: Result, ended_in: str | None, folder: Path, seconds: float) -> Outcome:
    """The outcome of a run in ``folder`` as its own verdict has it."""
    facts = read_facts(folder)
    judged = facts is not None and bool(result.checks)
    hub = judge_all(as_hub(facts), NOTHING) if facts is not None and judged else None
    return Outcome(
        name=name,
        verdict=result.verdict,
        reason=result.reason,
        ended_in=None if judged else ended_in,
        failed=failures(tuple(result.checks)) if judged else None,
        hub_verdict=conclude(as_hub(facts), hub).verdict if facts is not None and hub is not None else None,
        hub_failed=failures(hub) if hub is not None else None,
        seconds=seconds,
        run=folder.name,
    )


def rejudged(outcome: Outcome, folder: Path, weakened: frozenset[str]) -> Outcome:
    """The outcome if the checks ``weakened`` were always true; one that was never judged stays as it is."""
    facts = read_facts(folder)
    if facts is None or outcome.failed is None:
        return outcome
    tiny, hub = judge_all(facts, weakened), judge_all(as_hub(facts), weakened)
    judgement = conclude(facts, tiny)
    return outcome.model_copy(
        update={
            "verdict": judgement.verdict,
            "reason": judgement.reason,
            "failed": failures(tiny),
            "hub_verdict": conclude(as_hub(facts), hub).verdict,
            "hub_failed": failures(hub),
        }
    )


def judge_all(facts: RunFacts, weakened: frozenset[str]) -> tuple[CheckResult, ...]:
    """Every check that the run names; those in ``weakened`` pass whatever they are given."""
    return tuple(
        CheckResult(name=name, ok=True, verdict="pass", summary="always true")
        if name in weakened
        else judge(name, facts)
        for name in facts.checks
    )


def failures(checks: tuple[CheckResult, ...]) -> tuple[str, ...]:
    return tuple(check.name for check in checks if not check.ok)


def read_facts(folder: Path) -> RunFacts | None:
    """The facts of a run; None when it ended before they were written."""
    path = folder / FACTS_NAME
    return RunFacts.model_validate_json(read_bounded(path, LARGEST_DATA_BYTES)) if path.is_file() else None


def problem_of(mutation: Mutation, outcome: Outcome) -> str | None:
    """Why the outcome is not the declared one, in one line; None when it is."""
    if outcome.verdict is not mutation.verdict:
        return f"{outcome.verdict.value} instead of {mutation.verdict.value}: {outcome.reason}"
    if mutation.verdict is Verdict.PASS:
        return None if not outcome.hub_failed else f"as hub: {', '.join(outcome.hub_failed)} failed on a clean run"
    if mutation.caught_by not in outcome.catchers:
        return f"{mutation.caught_by} did not notice; {', '.join(outcome.catchers) or 'nothing'} did: {outcome.reason}"
    if mutation.caught_by in PHASES or outcome.hub_failed is None:
        return None
    wanted = mutation.hub_caught_by
    if not wanted and outcome.hub_failed:
        return f"as hub: {', '.join(outcome.hub_failed)} noticed what was declared to be below the tolerance"
    if wanted and wanted not in outcome.hub_failed:
        return f"as hub: {wanted} did not notice; {', '.join(outcome.hub_failed) or 'nothing'} did"
    return None
