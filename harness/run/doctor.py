"""What this machine can run and what stands in the way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from harness.errors import GateError
from harness.locations import Locations
from harness.runtime.devices import discover, memory_used
from harness.runtime.leases import holder_of
from harness.runtime.occupancy import gpu_visible
from harness.runtime.reaping import reap_stale
from harness.runtime.record import read_all


def examine(locations: Locations, environment: Mapping[str, str]) -> Iterator[str]:
    """One line per finding, most useful first. Finishes what killed runs left behind."""
    for run_id, report in reap_stale(locations.state).items():
        yield f"killed run {run_id}: {len(report.terminated) + len(report.killed)} processes ended now"
    live = read_all(locations.state)
    for record in live.records:
        yield f"running: {record.run_id} ({record.deployment}, user {record.user}, pid {record.runner.pid})"
    for path in live.unreadable:
        yield f"unreadable run record {path}: look at it, then remove it"
    platform = "cuda" if gpu_visible() else "cpu"
    try:
        machine = discover("cuda" if platform == "cuda" else "cpu", environment)
    except GateError as error:
        yield str(error)
        return
    used = memory_used([device.key for device in machine.devices])
    leased = {key: record.run_id for record in live.records for key in record.leases}
    for device in machine.devices:
        holder = holder_of(locations.state, device.key)
        if device.key in leased:
            held = f"leased by {leased[device.key]}"
        elif holder is not None:
            held = f"free, last leased by {holder.run_id} (user {holder.user})"
        else:
            held = "free, never leased"
        memory = f", {used[device.key] >> 20} of {device.total_bytes >> 20} MiB in use" if device.key in used else ""
        yield f"device {device.index}: {device.name} ({device.key}){memory}, {held}"
    driver = machine.driver or "none"
    yield f"host {machine.host}: {machine.cores} cores, {machine.memory_bytes >> 30} GiB, driver {driver}"
    yield f"state {locations.state}"
    yield f"cache {locations.cache}"
