"""Where a deployment cannot run whatever its engine does: missing models, versions, devices. Pure."""

from __future__ import annotations

from packaging.version import Version

from harness.deployments import Deployment, Gate, ModelSetName
from harness.engine.info import EngineInfo
from harness.errors import Misconfigured, Unsupported
from harness.plan.types import Machine


def check_gates(deployment: Deployment, engine: EngineInfo, machine: Machine, model_set: ModelSetName) -> None:
    """Raises Misconfigured when there are no checkpoints of this set or no NIXL, Unsupported when a gate is closed."""
    if model_set == "tiny" and deployment.models.tiny is None:
        raise Misconfigured(
            f"{deployment.name} has no tiny checkpoint ({deployment.models.target.repo} is of a family without an "
            f"analytic one), and tiny models are the default where no accelerator is visible; run it with "
            f"--models hub. It needs {deployment.needs}."
        )
    if deployment.transfer is not None and engine.nixl_version is None:
        # The servers would die of it a minute later, and the engine would get the blame.
        raise Misconfigured(
            f"{deployment.name} moves KV over NIXL, which {engine.python} cannot import; install nixl there (on CUDA "
            "with only the nixl-cuNN of torch's CUDA) or give another --engine."
        )
    for gate in deployment.gates:
        if gate.models in (None, model_set) and (found := _closed(gate, engine, machine)):
            raise Unsupported(f"{deployment.name} cannot run here: {gate.reason}; found {found}.")


def _closed(gate: Gate, engine: EngineInfo, machine: Machine) -> str | None:
    """What was found in the way; None when the gate is open."""
    if gate.transformers is not None and Version(engine.transformers_version) < Version(gate.transformers):
        return f"transformers {engine.transformers_version}"
    if gate.not_capability is not None:
        for device in machine.devices:
            if device.capability is not None and device.capability[0] == gate.not_capability:
                return f"{device.name}, compute capability {device.capability[0]}.{device.capability[1]}"
    return None
