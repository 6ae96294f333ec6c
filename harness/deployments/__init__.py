"""The registry: every deployment the gate knows, as plain data. Standard library only, so `nox --list` needs nox alone.

A `Deployment` says what production would run. What that becomes on one machine with one engine (argv, environment,
devices, ports) is decided in `harness.plan`; nothing here looks at the machine.
"""

from __future__ import annotations

from harness.deployments.correctness import CORRECTNESS
from harness.deployments.disaggregated import EAGLE3_PD, MTP_PD, PD_CHECKS
from harness.deployments.parallel import EPLB, PAIRED_CHECKS, PARALLEL
from harness.deployments.types import (
    Deployment,
    EngineSettings,
    Eplb,
    Gate,
    HubModel,
    KvBuffer,
    Limits,
    Method,
    ModelSet,
    ModelSetName,
    Parallel,
    Role,
    RoleName,
    Speculation,
    Timeouts,
    Transfer,
    WorkloadName,
    ZooName,
)

DEPLOYMENTS: dict[str, Deployment] = {d.name: d for d in (EAGLE3_PD, MTP_PD, *PARALLEL, *CORRECTNESS)}

__all__ = [
    "DEPLOYMENTS",
    "EAGLE3_PD",
    "EPLB",
    "MTP_PD",
    "PAIRED_CHECKS",
    "PD_CHECKS",
    "Deployment",
    "EngineSettings",
    "Eplb",
    "Gate",
    "HubModel",
    "KvBuffer",
    "Limits",
    "Method",
    "ModelSet",
    "ModelSetName",
    "Parallel",
    "Role",
    "RoleName",
    "Speculation",
    "Timeouts",
    "Transfer",
    "WorkloadName",
    "ZooName",
]
