"""One invocation as typed values: parsed once at the edge, passed down unchanged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.deployments import Deployment, KvBuffer, ModelSetName
from harness.engine.info import EngineInfo
from harness.expectations import Expectation
from harness.facts import BaselineFacts
from harness.locations import Locations
from harness.models import Checkpoints
from harness.plan.build import Inputs
from harness.plan.types import Machine, Needs, Options, Plan
from harness.run.workload import Workload
from harness.runtime.identity import ProcessId


def unaltered(plan: Plan) -> Plan:
    return plan


@dataclass(frozen=True)
class Request:
    """What the user asked for and where it happens. ``inherited`` is the harness's own environment."""

    deployment: Deployment
    options: Options
    engine_choice: str
    host_python: Path | None
    locations: Locations
    baselines: Path
    inherited: Mapping[str, str]
    passed: frozenset[str]
    offline: bool
    router_python: Path | None
    lease_timeout_s: float
    # Per-server environment of a trace or a mutation, by server name.
    extra_environment: Mapping[str, Mapping[str, str]]
    # Applied to the finished plan by `harness falsify`; what is *requested* stays the deployment's.
    alter_plan: Callable[[Plan], Plan] = unaltered
    expectations: tuple[Expectation, ...] = ()
    # False: run without one, to record it from the run; such a run never passes.
    baseline_required: bool = True
    # The process that makes several sessions one invocation; None: no reference is shared.
    invocation: ProcessId | None = None


@dataclass(frozen=True)
class Prepared:
    """Everything known before anything is leased; shared by the runs of one session."""

    engine: EngineInfo
    machine: Machine
    model_set: ModelSetName
    checkpoints: Checkpoints
    workload: Workload
    inputs: Inputs
    needs: Needs
    buffers: tuple[KvBuffer | None, ...]
    # None where the deployment names no check that needs one.
    baselines: tuple[BaselineFacts | None, ...]
