"""A mutation: one declared way to break a working deployment, and what has to notice it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from harness.plan.types import Plan
from harness.verdict import Verdict
from harness.zoo import ZooModel

Family = Literal["control", "plan", "drafter", "counters", "transfer", "output", "router", "liveness"]
DeploymentName = Literal["eagle3-pd", "mtp-pd", "eagle3-dp2", "deepseek-mtp"]

# Where a run can end before anything is judged; everything else that catches a mutation is a check.
PHASES = ("launch", "ready", "drive")


@dataclass(frozen=True)
class Place:
    """What a change may need beside the plan: the tiny checkpoints, and a folder for damaged copies of them."""

    zoo: ZooModel
    scratch: Path


class Change(Protocol):
    """One alteration of a finished plan. What is requested stays the deployment's unless the change says otherwise."""

    def apply(self, plan: Plan, place: Place) -> Plan: ...


@dataclass(frozen=True)
class Mutation:
    """``caught_by``: the check that must fail, or the phase (`PHASES`) that must end the run.

    ``hub``: the same for the facts judged as those of hub checkpoints would be, by a tolerance and without computed
    counts; None: the same as ``caught_by``, ``""``: such a run passes, the fault is below what a tolerance can see.
    ``prompts``: how many, where the workload's own number lacks the power. All of it is declared, nothing is filled in
    from a run.
    """

    name: str
    family: Family
    deployment: DeploymentName
    what: str
    changes: tuple[Change, ...]
    caught_by: str
    hub: str | None = None
    verdict: Verdict = Verdict.REGRESSION
    prompts: int | None = None
    smoke: bool = False

    @property
    def hub_caught_by(self) -> str:
        return self.caught_by if self.hub is None else self.hub
