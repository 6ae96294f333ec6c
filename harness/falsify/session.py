"""`harness falsify`: run the catalogue, or read a finished run of it again, and say what went as declared."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from harness.deployments import DEPLOYMENTS, Timeouts
from harness.errors import Misconfigured
from harness.falsify.bench import Bench
from harness.falsify.catalogue import CONTROLS, MUTATIONS
from harness.falsify.mutation import Mutation, Place
from harness.falsify.outcome import Outcome, outcome_of, problem_of, rejudged
from harness.files import LARGEST_DATA_BYTES, read_bounded, write_atomically
from harness.locations import make_usable
from harness.plan.types import Plan
from harness.run.request import Request
from harness.verdict import Verdict
from harness.zoo import build

OUTCOMES_NAME = "outcomes.json"
_OUTCOMES: TypeAdapter[tuple[Outcome, ...]] = TypeAdapter(tuple[Outcome, ...])
BY_NAME: dict[str, Mutation] = {mutation.name: mutation for mutation in (*CONTROLS, *MUTATIONS)}

# A mutated server may hang. Warm, a pair is ready in 3 s (11 s with two ranks) and a request takes a third of one; a
# clean control may be the first start on this machine.
TIMEOUTS = Timeouts(ready_s=20, drive_s=90, request_s=10, stop_s=12, settle_s=1.5)
COLD = replace(TIMEOUTS, ready_s=300, request_s=60)

# More than a run has by default, to be done sooner; what is computed does not depend on it.
_CONCURRENCY = 4

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Selection:
    """What to run: all of it, a ``smoke`` subset, one ``family`` or single ``names``. Controls are always run."""

    smoke: bool = False
    family: str | None = None
    names: tuple[str, ...] = ()


def select(selection: Selection) -> tuple[Mutation, ...]:
    """The controls of every deployment concerned, then the mutations. Raises Misconfigured for an unknown name."""
    unknown = [name for name in selection.names if name not in BY_NAME]
    if unknown:
        raise Misconfigured(f"There is no mutation {unknown[0]!r}; known are {', '.join(sorted(BY_NAME))}.")
    families = {mutation.family for mutation in BY_NAME.values()}
    if selection.family is not None and selection.family not in families:
        raise Misconfigured(f"There is no family {selection.family!r}; known are {', '.join(sorted(families))}.")
    chosen = [
        mutation
        for mutation in MUTATIONS
        if (not selection.smoke or mutation.smoke)
        and selection.family in (None, mutation.family)
        and (not selection.names or mutation.name in selection.names)
    ]
    concerned = {mutation.deployment for mutation in chosen}
    controls = [
        control
        for control in CONTROLS
        if control.name in selection.names
        or (control.deployment in concerned and (control.name.endswith("clean") or not selection.smoke))
    ]
    # By deployment, so that what they share is found out once.
    return tuple(sorted((*controls, *chosen), key=lambda one: (one.family != "control", one.deployment)))


def run_catalogue(request: Request, mutations: Sequence[Mutation], tell: Tell) -> tuple[Path, tuple[Outcome, ...]]:
    """Run every mutation in its turn and write down each outcome at once; stops at an interrupt.

    A control that does not pass ends the session: on a deployment that is broken anyway nothing can be shown.
    """
    folder = request.locations.runs / f"falsify-{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(2)}"
    make_usable(folder, "falsify", "choose another one with --runs-dir", mode=0o700)
    outcomes: list[Outcome] = []
    with Bench(folder / "bench", request.locations.state) as bench:
        for mutation in mutations:
            ran = bench.run(_mutated(request, mutation, folder), tell)
            outcome = outcome_of(mutation.name, ran.result, ran.ended_in, ran.folder, ran.seconds)
            outcomes.append(outcome)
            write_atomically(folder / OUTCOMES_NAME, _OUTCOMES.dump_json(tuple(outcomes), indent=1).decode())
            problem = problem_of(mutation, outcome)
            seen = "as declared" if problem is None else f"WRONG: {problem}"
            tell(f"{len(outcomes)}/{len(mutations)} {mutation.name} {outcome.seconds:.1f} s {seen}")
            if outcome.verdict is Verdict.INTERRUPTED or (mutation.family == "control" and problem is not None):
                break
    return folder, tuple(outcomes)


def read_again(folders: Sequence[Path], weakened: frozenset[str]) -> tuple[Outcome, ...]:
    """The outcomes of finished falsify runs, judged again from their facts; a later folder replaces an earlier one.

    Raises Misconfigured naming a folder that holds none.
    """
    found: dict[str, Outcome] = {}
    for folder in folders:
        try:
            outcomes = _OUTCOMES.validate_json(read_bounded(folder / OUTCOMES_NAME, LARGEST_DATA_BYTES))
        except (OSError, ValidationError) as error:
            raise Misconfigured(f"{folder} holds no outcomes of a falsify run: {str(error).splitlines()[0]}") from error
        for outcome in outcomes:
            # What was interrupted was not judged; what was renamed or dropped since is of no interest.
            if outcome.name in BY_NAME and outcome.verdict is not Verdict.INTERRUPTED:
                run = folder / outcome.run
                found[outcome.name] = rejudged(outcome, run, weakened).model_copy(update={"run": str(run)})
    return tuple(found[name] for name in BY_NAME if name in found)


def _mutated(request: Request, mutation: Mutation, folder: Path) -> Request:
    deployment = replace(DEPLOYMENTS[mutation.deployment], timeouts=COLD if mutation.family == "control" else TIMEOUTS)
    tiny = deployment.models.tiny
    if tiny is None:
        raise ValueError(f"{deployment.name} has no tiny checkpoint to mutate")

    def alter(plan: Plan) -> Plan:
        zoo = build(tiny, request.locations.cache / "zoo")
        place = Place(zoo, folder / "checkpoints")
        for change in mutation.changes:
            plan = change.apply(plan, place)
        return plan

    return replace(
        request,
        deployment=deployment,
        options=replace(
            request.options, prompts=mutation.prompts, concurrency=_CONCURRENCY, launch="warm", models="tiny"
        ),
        locations=replace(request.locations, runs=folder),
        alter_plan=alter,
    )


def exit_code(mutations: Sequence[Mutation], outcomes: Sequence[Outcome]) -> int:
    """0 when everything that was to be run was, and went as declared."""
    if any(outcome.verdict is Verdict.INTERRUPTED for outcome in outcomes):
        return Verdict.INTERRUPTED.exit_code
    missing = {mutation.name for mutation in mutations} - {outcome.name for outcome in outcomes}
    wrong = [outcome for outcome in outcomes if problem_of(BY_NAME[outcome.name], outcome) is not None]
    return 1 if missing or wrong or not outcomes else 0


def as_json(outcomes: Sequence[Outcome]) -> str:
    """Every outcome beside what was declared."""
    return json.dumps(
        [
            {
                "name": outcome.name,
                "family": BY_NAME[outcome.name].family,
                "deployment": BY_NAME[outcome.name].deployment,
                "what": BY_NAME[outcome.name].what,
                "expected": BY_NAME[outcome.name].caught_by,
                "expected_as_hub": BY_NAME[outcome.name].hub_caught_by,
                "problem": problem_of(BY_NAME[outcome.name], outcome),
                **outcome.model_dump(mode="json", exclude={"name"}),
            }
            for outcome in outcomes
        ],
        indent=1,
    )
