"""Which servers a run compares with, and when they live. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

from harness.deployments import Deployment, ModelSetName, Role
from harness.errors import Misconfigured
from harness.plan.memory import cpu_ranks_that_fit, server_bytes
from harness.plan.types import Device, Machine, Needs, Options, Plan, ServerPlan, Stage

Placement = Literal["none", "beside", "after"]


def roles_of(deployment: Deployment, options: Options, model_set: ModelSetName) -> tuple[Role, ...]:
    """The roles of one run, a reference last. ``--reference none`` declines it.

    A prefill/decode run of hub models gets a standalone server like its decode server; tiny output is computed.
    """
    judged = tuple(role for role in deployment.roles if role.name != "reference")
    if options.reference == "none":
        return judged
    if deployment.transfer is not None and model_set == "hub":
        return (*judged, standalone_reference(deployment))
    return (*judged, *(role for role in deployment.roles if role.name == "reference"))


def standalone_reference(deployment: Deployment) -> Role:
    """The decode server of a pair, without its transfer."""
    decode = deployment.role("decode")
    return Role("reference", decode.parallel, decode.speculation)


def placement(
    needs: Needs, machine: Machine, options: Options, devices: Sequence[Device], model_set: ModelSetName
) -> Placement:
    """When the reference server lives. ``devices``: those that may be used.

    Raises Misconfigured, with the arithmetic, when it was asked for beside servers that leave it no room.
    """
    if not needs.reference:
        return "none"
    judged, reference = sum(needs.judged.values()), sum(needs.reference.values())
    if options.reference == "after":
        return "after"
    if machine.platform == "cpu":
        fits = judged + reference <= cpu_ranks_that_fit(machine.memory_bytes)
    elif options.share_devices:
        need = len(needs.devices_per_server) * server_bytes(model_set)
        # Asked for beside, a server too many is refused with the arithmetic of the device (`check_shared`).
        fits = options.reference == "beside" or all(need <= device.total_bytes for device in devices)
    else:
        fits = judged + reference <= len(devices)
    if options.reference == "beside" and not fits:
        raise Misconfigured(
            f"--reference beside needs {judged} + {reference} = {judged + reference} devices at once and "
            f"{len(devices)} may be used; pass more with --devices, add --share-devices, or use --reference after."
        )
    return "beside" if fits else "after"


def reference_of(plan: Plan) -> ServerPlan | None:
    """The reference server of a plan; None without one."""
    return next((server for stage in plan.stages for server in stage.servers if server.role == "reference"), None)


def judged_only(plan: Plan) -> Plan:
    """The plan without its reference server, whose devices and ports stay leased."""
    stages = tuple(
        dataclasses.replace(stage, servers=tuple(server for server in stage.servers if server.role != "reference"))
        for stage in plan.stages
    )
    return dataclasses.replace(plan, stages=tuple(stage for stage in stages if stage.servers))


def with_reference_after(plan: Plan) -> Plan:
    """The plan with its reference server in a stage of its own, after the judged ones."""
    reference = reference_of(plan)
    last = (Stage("reference", (reference,), None),) if reference is not None else ()
    return dataclasses.replace(plan, stages=(*judged_only(plan).stages, *last))
