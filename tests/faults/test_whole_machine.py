"""A machine that goes wrong around a run: locks, records, ports, disks, devices, the clock; and many runs in a row."""

from __future__ import annotations

import dataclasses
import functools
import gc
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.deployments.types import Timeouts
from harness.plan.types import Plan, ServerPlan
from harness.run import blame, execute
from harness.run.launch import server_spec
from harness.run.stage import observe
from harness.runtime import state_folder
from harness.runtime.deadline import Deadline
from harness.runtime.devices import wait_released
from harness.runtime.identity import ProcessId, host_identity
from harness.runtime.leases import Holder, lease
from harness.runtime.record import RunRecord, record_path, save
from harness.verdict import Verdict
from tests.faults.fake_run import eventually
from tests.faults.whole_run import ROOT, Outcome, Whole

pytestmark = pytest.mark.whole_run

PASS, REGRESSION, INFRA, MISCONFIGURED = Verdict.PASS, Verdict.REGRESSION, Verdict.INFRA, Verdict.MISCONFIGURED
MIB = 1 << 20


def judged(outcome: Outcome, verdict: Verdict, reason: str = "") -> None:
    assert outcome.shown.verdict is verdict, outcome.shown.reason
    assert reason in outcome.shown.reason
    if outcome.result is not None:
        assert (outcome.result.verdict, outcome.result.reason) == (verdict, outcome.shown.reason)


def in_drive(patch: pytest.MonkeyPatch, act: Callable[[Path], object]) -> None:
    """Do ``act(run folder)`` when every server is ready and the workload is about to be sent."""

    def observed(*arguments: Any) -> Any:
        act(arguments[3])
        return observe(*arguments)

    patch.setattr(execute, "observe", observed)


# Locks, records and the registry of ports


def test_lock_files_removed_while_they_are_held(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    def remove(_: Path) -> None:
        for path in (whole.locations.state / "leases").iterdir():
            path.unlink()
        holder = Holder("second", os.getpid(), "tester", "other", time.time())
        with (
            pytest.raises(Exception, match="is held by"),
            lease(whole.keys, whole.locations.state, holder, deadline=Deadline.after(0)),
        ):
            pytest.fail("two holders")

    in_drive(monkeypatch, remove)
    judged(whole.run(), PASS)


def test_the_state_folder_removed_under_a_run(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    in_drive(monkeypatch, lambda _: shutil.rmtree(whole.locations.state))
    outcome = whole.run()
    assert outcome.shown.verdict in (PASS, INFRA), outcome.shown.reason


def test_the_run_record_removed_under_a_run(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    whole.faults(decode={"ignore_sigterm": True, "double_fork": True})
    in_drive(monkeypatch, lambda run: record_path(whole.locations.state, run.name).unlink())
    judged(whole.run(), PASS)


def test_the_run_record_overwritten_under_a_run(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    in_drive(monkeypatch, lambda run: record_path(whole.locations.state, run.name).write_text("{half a rec"))
    judged(whole.run(), PASS)


def test_the_port_registry_removed_under_a_run(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    in_drive(monkeypatch, lambda _: (whole.locations.state / "ports.json").unlink())
    judged(whole.run(), PASS)


def test_a_port_registry_that_is_half_written(whole: Whole) -> None:
    whole.locations.state.mkdir()
    registry = whole.locations.state / "ports.json"
    registry.write_text('[{"run_id": "r')
    judged(whole.run(), INFRA, f"the port registry {registry} cannot be read")
    registry.unlink()


def test_a_lease_that_another_run_holds(whole: Whole) -> None:
    whole.budgets = with_lease_s(whole, 0.3)
    holder = Holder("first", os.getpid(), "somebody", "mtp-pd", time.time())
    with lease(whole.keys[:1], whole.locations.state, holder, deadline=Deadline.after(1)):
        judged(whole.run(), INFRA, "is held by run first (mtp-pd, user somebody")


def with_lease_s(whole: Whole, seconds: float) -> Timeouts:
    return dataclasses.replace(whole.budgets, lease_s=seconds)


HOLD = """
import os, sys, time
from pathlib import Path
from harness.runtime.deadline import Deadline
from harness.runtime.leases import Holder, lease
with lease(sys.argv[2:], Path(sys.argv[1]), Holder("dead", os.getpid(), "x", "x", 0), deadline=Deadline.after(9)):
    sys.stdout.write("held\\n")
    sys.stdout.flush()
    time.sleep(600)
"""


def test_a_lock_whose_holder_was_killed(whole: Whole) -> None:
    argv = [sys.executable, "-c", HOLD, str(whole.locations.state), *whole.keys]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=ROOT) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        holder.kill()
    judged(whole.run(), PASS)


def stale(whole: Whole, **values: Any) -> RunRecord:
    own = {
        "run_id": "old",
        "marker": "old.0",
        "runner": ProcessId(2**22 - 1, 1),
        "host": host_identity(),
        "user": "tester",
        "run_dir": "/nowhere",
        "started_at": 0.0,
        "leases": tuple(whole.keys),
    }
    record = RunRecord(**{**own, **values})
    save(whole.locations.state, record)
    return record


def test_a_record_whose_runner_is_dead(whole: Whole) -> None:
    stale(whole)
    outcome = whole.run()
    judged(outcome, PASS)
    assert "finished what the killed run old left behind" in outcome.output


def test_a_record_whose_pids_now_belong_to_strangers(whole: Whole, strangers: list[ProcessId]) -> None:
    reused = ProcessId(strangers[0].pid, strangers[0].create_time - 1)
    stale(whole, runner=reused, supervisor=reused, descendants=(ProcessId(strangers[1].pid, 1),))
    # That the strangers still run is what the fixture asserts.
    judged(whole.run(), PASS)


def test_a_record_of_another_boot(whole: Whole, strangers: list[ProcessId]) -> None:
    stale(whole, host="another-boot/pid:[1]", descendants=tuple(strangers))
    judged(whole.run(), PASS)


def test_a_record_of_another_container_on_the_same_devices(whole: Whole) -> None:
    whole.budgets = with_lease_s(whole, 0.3)
    boot = host_identity().partition("/")[0]
    record = stale(whole, host=f"{boot}/pid:[1]")
    judged(whole.run(), INFRA, "another container")
    record_path(whole.locations.state, record.run_id).unlink()


def test_a_record_that_cannot_be_read_is_kept(whole: Whole) -> None:
    path = record_path(whole.locations.state, "broken")
    path.parent.mkdir(parents=True)
    path.write_text('{"run_id": "bro')
    judged(whole.run(), PASS)
    assert path.read_text() == '{"run_id": "bro'
    path.unlink()


def test_a_state_folder_on_a_network_file_system(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_folder, "file_system_of", lambda *_: ("/mnt/home", "nfs4"))
    judged(whole.run(), MISCONFIGURED, "network file system (nfs4 at /mnt/home)")


def test_a_file_in_place_of_the_state_folder(whole: Whole) -> None:
    whole.locations.state.write_text("")
    judged(whole.run(), MISCONFIGURED, "SPEC_GATE_STATE")
    whole.locations.state.unlink()


# Ports


def port_of(plan: Plan, name: str) -> int:
    (server,) = [one for stage in plan.stages for one in stage.servers if one.name == name]
    return server.port


def test_a_stranger_on_a_port_before_the_start(whole: Whole) -> None:
    with ExitStack() as held:

        def take(plan: Plan) -> Plan:
            held.enter_context(socket.create_server(("127.0.0.1", port_of(plan, "decode-0"))))
            return plan

        judged(whole.run(take), INFRA, f"already in use by pid {os.getpid()}")


def test_a_stranger_that_takes_the_port_between_the_check_and_the_start(
    whole: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as held:

        def take(server: ServerPlan, *rest: Any) -> Any:
            if server.name == "decode-0":
                held.enter_context(socket.create_server((server.host, server.port)))
            return server_spec(server, *rest)

        monkeypatch.setattr(execute, "server_spec", take)
        judged(whole.run(), INFRA, f"already in use by pid {os.getpid()}")


def test_a_server_that_takes_its_siblings_port(whole: Whole) -> None:
    def swap(plan: Plan) -> Plan:
        whole.faults(prefill={"steals": port_of(plan, "decode-0")}, decode={"delay_s": 0.7})
        return plan

    judged(whole.run(swap), REGRESSION, "Address already in use")


# Disks


@contextmanager
def small_disk(folder: Path, options: str) -> Iterator[Path]:
    """A file system of its own at ``folder``; skips where that is not allowed."""
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, check=False
    )
    if made.returncode != 0:
        pytest.skip(f"needs a small disk, and mounting one is not allowed here: {made.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_runs_folder_that_is_read_only(whole: Whole) -> None:
    with small_disk(whole.locations.runs, "ro"):
        outcome = whole.run()
    assert outcome.result is None
    judged(outcome, MISCONFIGURED, "choose another one with --runs-dir")


def test_a_file_in_place_of_the_runs_folder(whole: Whole) -> None:
    whole.locations.runs.write_text("")
    judged(whole.run(), MISCONFIGURED, "choose another one with --runs-dir")


def test_a_state_folder_that_is_read_only(whole: Whole) -> None:
    with small_disk(whole.locations.state, "ro"):
        judged(whole.run(), MISCONFIGURED, "SPEC_GATE_STATE")


def test_a_disk_that_is_full_before_the_start(whole: Whole) -> None:
    with small_disk(whole.locations.runs, "size=8m"):
        judged(whole.run(), MISCONFIGURED, "MiB of free space")


def fill(run: Path) -> None:
    with (run.parent / "somebody-elses").open("wb", buffering=0) as stream:
        for size in (MIB, 4096):
            try:
                while stream.write(bytes(size)) == size:
                    pass
            except OSError:
                continue


def test_a_disk_that_somebody_fills_in_mid_run(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    in_drive(monkeypatch, fill)
    with small_disk(whole.locations.runs, "size=80m"):
        outcome = whole.run()
        assert outcome.result is not None
        judged(outcome, INFRA, "No space left on device")


def test_a_disk_that_the_engines_own_log_fills(whole: Whole) -> None:
    whole.faults(decode={"log_mib": 256})
    with small_disk(whole.locations.runs, "size=80m"):
        outcome = whole.run()
        assert outcome.result is not None
        judged(outcome, INFRA, "is full")


def test_the_run_folder_removed_under_a_run(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    in_drive(monkeypatch, shutil.rmtree)
    outcome = whole.run()
    assert outcome.result is None
    judged(outcome, INFRA)


def test_a_folder_in_place_of_a_file_of_the_run(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    in_drive(monkeypatch, lambda run: (run / "requests.jsonl").mkdir())
    judged(whole.run(), INFRA, "requests.jsonl cannot be written")


def test_a_result_that_was_left_half_written(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    def tear(run: Path) -> None:
        (run / ".result.json.1.new").write_text('{"verdict": "pa')
        (run / "result.json").write_text('{"verdict": "pa')

    in_drive(monkeypatch, tear)
    judged(whole.run(), PASS)


def test_a_gigabyte_of_log(whole: Whole) -> None:
    whole.faults(decode={"log_mib": 1024})
    outcome = whole.run()
    judged(outcome, PASS)
    assert sum(path.stat().st_size for path in whole.folders()[0].rglob("*") if path.is_file()) < 16 * MIB


def test_a_long_log_before_a_failure(whole: Whole) -> None:
    whole.faults(decode={"log_mib": 128, "dies_at": 3, "dies": "exit"})
    outcome = whole.run()
    judged(outcome, REGRESSION, "the engine gave up")
    shutil.rmtree(whole.folders()[0])


# Devices


def test_device_memory_that_is_not_released(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    def holds(used_bytes: int) -> dict[str, int]:
        return dict.fromkeys(whole.keys, used_bytes)

    monkeypatch.setattr(execute, "memory_used", lambda _: holds(0))
    monkeypatch.setattr(execute, "wait_released", functools.partial(wait_released, used=lambda _: holds(40 << 30)))
    monkeypatch.setattr(execute, "_RELEASE_S", 0.3)
    judged(whole.run(), INFRA, "device memory was not released")


def test_device_memory_that_is_released_late(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    left = iter([40 << 30, 20 << 30, 0])
    monkeypatch.setattr(execute, "memory_used", lambda _: dict.fromkeys(whole.keys, 0))
    used = lambda keys: dict.fromkeys(keys, next(left))  # noqa: E731
    monkeypatch.setattr(execute, "wait_released", functools.partial(wait_released, used=used))
    judged(whole.run(), PASS)


def test_a_device_that_a_stranger_uses(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    whole.budgets = with_lease_s(whole, 0.3)
    monkeypatch.setattr(execute, "busy_with_strangers", lambda keys: f"device {keys[0]} has 40960 MiB in use")
    judged(whole.run(), INFRA, "40960 MiB in use")


def test_a_device_that_a_stranger_gives_back(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: Iterator[str | None] = iter(["device has 40960 MiB in use", "device has 2049 MiB in use", None])

    def busy(_: Sequence[str]) -> str | None:
        return next(looks)

    monkeypatch.setattr(execute, "busy_with_strangers", busy)
    judged(whole.run(), PASS)


OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 14.96 GiB."


@pytest.mark.parametrize(("held", "verdict"), [(40 << 30, INFRA), (0, REGRESSION)], ids=["stranger", "nobody"])
def test_a_device_taken_during_the_start(
    whole: Whole, monkeypatch: pytest.MonkeyPatch, held: int, verdict: Verdict
) -> None:
    """Out of memory is the engine's fault only when nobody else holds the memory once the engine is gone."""
    whole.faults(decode={"say": OUT_OF_MEMORY, "exit": 1})
    used = lambda keys: dict.fromkeys(keys, held)  # noqa: E731
    monkeypatch.setattr(execute, "memory_used", lambda keys: dict.fromkeys(keys, 0))
    monkeypatch.setattr(blame, "wait_released", functools.partial(wait_released, used=used))
    monkeypatch.setattr(blame, "_FREED_WITHIN_S", 0.3)
    judged(whole.run(), verdict, "out of memory")


# The clock

JUMP = """
import os, time
real = time.time
def jumped():
    return real() + (float(open({path!r}).read()) if os.path.exists({path!r}) else 0.0)
time.time = jumped
"""


@pytest.mark.parametrize("seconds", [86400.0, -86400.0], ids=["a day ahead", "a day back"])
def test_a_clock_that_jumps_in_mid_run(whole: Whole, seconds: float) -> None:
    """Wall clock of runner and supervisor; every wait is on the monotonic one."""
    jump, folder = whole.folder / "jump", whole.folder / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(JUMP.format(path=str(jump)))
    whole.extra = {"PYTHONPATH": str(folder)}
    whole.faults(decode={"slow_s": 0.2, "double_fork": True})
    with whole.started() as command:
        command.reach("drive")
        jump.write_text(str(seconds))
        code, result = command.finish()
    assert (code, result.verdict) == (0, PASS), result.reason
    assert result.wall_seconds < 60


# Many runs

MANY = 6


def census() -> dict[str, int]:
    gc.collect()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "children": sum(1 for task in os.listdir("/proc/self/task") for _ in children_of(task)),
        "segments": sum(1 for path in Path("/dev/shm").iterdir() if path.name.startswith(("psm_own", "sem.mp-own"))),
    }


def children_of(task: str) -> list[str]:
    return Path(f"/proc/self/task/{task}/children").read_text().split()


def test_many_runs_in_a_row_leave_no_more_than_one(whole: Whole) -> None:
    """Two hundred by hand: MANY = 200."""
    whole.faults(decode={"engine_process": True, "shared_memory": [f"psm_own_{whole.token}"], "ignore_sigterm": False})
    judged(whole.run(), PASS)
    before, state = census(), sorted(path.name for path in whole.locations.state.rglob("*"))
    for _ in range(MANY):
        judged(whole.run(), PASS)
        assert not whole.left()
    eventually(lambda: census() == before, f"no growth: {before} before, {census()} now")
    assert sorted(path.name for path in whole.locations.state.rglob("*")) == state
    assert json.loads((whole.locations.state / "ports.json").read_text()) == []
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
