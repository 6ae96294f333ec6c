"""Rewrite the reviewed plan snapshots: ``python -m tests.unit.refresh``, then read the diff."""

from __future__ import annotations

from pathlib import Path

from harness.deployments import DEPLOYMENTS
from harness.plan.assign import propose
from harness.plan.build import build_plan, kv_buffers, model_set_of, requirements
from harness.plan.render import as_text
from tests.unit.plan_inputs import CPU_MACHINE, GPU_MACHINE, inputs


def main() -> None:
    for name, machine in (
        (name, machine) for name in ("eagle3-pd", "mtp-pd") for machine in (CPU_MACHINE, GPU_MACHINE)
    ):
        values = inputs(DEPLOYMENTS[name], machine=machine)
        model_set = model_set_of(values.options, machine)
        needs = requirements(values.deployment, values.options, model_set)
        allocation = propose(needs, machine, values.options, model_set)
        plan = build_plan(values, allocation, kv_buffers(values.deployment, values.options, machine)[0])
        label = "cpu" if machine is CPU_MACHINE else "gpu"
        (Path(__file__).parent / "data" / f"plan-{name}-{label}.txt").write_text(as_text(plan) + "\n", "utf-8")


if __name__ == "__main__":
    main()
