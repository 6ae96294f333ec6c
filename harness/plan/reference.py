"""Which servers a run compares with, and when they live. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from harness.deployments import Deployment, ModelSetName, Role
from harness.errors import Misconfigured
from harness.plan.memory import cpu_ranks_that_fit, server_bytes
from harness.plan.types import Device, Machine, Needs, Options

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
