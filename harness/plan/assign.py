"""Which devices each server gets. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from harness.deployments import ModelSetName
from harness.errors import Misconfigured
from harness.plan.reference import placement
from harness.plan.types import Allocation, Device, Machine, Needs, Options

# First port of the proposals of a dry run; a real run takes free ones from the registry.
_PROPOSED_FIRST_PORT = 21000


def assign_devices(
    needs: Needs, machine: Machine, options: Options, model_set: ModelSetName
) -> dict[str, tuple[Device, ...]]:
    """Devices by server, in role order. Raises Misconfigured, naming what there is, when they do not suffice.

    A reference server gets devices of its own where it lives beside the others, else the first ones again.
    """
    pool = usable(machine, options)
    judged = needs.judged
    wanted = max(judged.values()) if options.share_devices else sum(judged.values())
    if machine.platform == "cpu":
        # Cores are shared: a server is one busy thread, and two servers on one core are slow but right.
        wanted = min(wanted, len(pool)) or 1
    if wanted > len(pool) or not pool:
        raise Misconfigured(
            f"{wanted} devices are needed ({', '.join(f'{name} {count}' for name, count in judged.items())}) and "
            f"{len(pool)} may be used; pass more with --devices{_or_share(judged, len(pool))}."
        )
    beside = placement(needs, machine, options, pool, model_set) == "beside"
    assigned: dict[str, tuple[Device, ...]] = {}
    taken = 0
    for name, count in needs.devices_per_server.items():
        apart = not options.share_devices and (beside or name in judged)
        first = taken if apart else 0
        assigned[name] = tuple(pool[(first + offset) % len(pool)] for offset in range(count))
        taken += count
    return assigned


def usable(machine: Machine, options: Options) -> list[Device]:
    """The devices that the user allows. Raises Misconfigured for one that does not exist or is named twice."""
    if options.devices is None:
        return list(machine.devices)
    known = {device.index: device for device in machine.devices}
    for index in options.devices:
        if index not in known:
            raise Misconfigured(
                f"Device {index} was asked for, but this machine has {len(known)} ({_range(known)}); "
                "pass --devices with indices from that list."
            )
    if len(set(options.devices)) != len(options.devices):
        raise Misconfigured(f"--devices {','.join(map(str, options.devices))} names a device twice.")
    return [known[index] for index in options.devices]


def _or_share(judged: Mapping[str, int], devices: int) -> str:
    # The ranks of one server cannot share: a collective needs a device for each of them.
    return ", or let servers share them with --share-devices" if max(judged.values()) <= devices else ""


def _range(known: Mapping[int, Device]) -> str:
    return ", ".join(str(index) for index in sorted(known)) or "none"


def propose(needs: Needs, machine: Machine, options: Options, model_set: ModelSetName) -> Allocation:
    """What a lease would give on an idle machine; for ``--dry-run``."""
    ports: dict[str, int] = {}
    port = _PROPOSED_FIRST_PORT
    for run in needs.ports:
        ports[run.purpose] = port
        port += run.length
    return Allocation(devices=assign_devices(needs, machine, options, model_set), ports=ports)
