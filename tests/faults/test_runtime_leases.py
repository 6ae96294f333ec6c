"""One holder per device, whatever is removed or killed. Every contender is a process of its own."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from harness.errors import Infra
from harness.runtime.deadline import Deadline
from harness.runtime.leases import Holder, Lease, holder_of, lease
from tests.faults.fake_run import name_is_bound, new_run, soon
from tests.faults.test_runtime_supervisor import everything, nothing_left, separate_runner

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os, sys, time
from pathlib import Path
from harness.runtime.deadline import Deadline
from harness.runtime.leases import Holder, lease
state_dir, run_id, key = sys.argv[1:]
holder = Holder(run_id, os.getpid(), "tester", "mtp-pd", time.time())
def say(word):
    sys.stdout.write(word + "\\n")
    sys.stdout.flush()
with lease([key], Path(state_dir), holder, deadline=Deadline.after(30), on_wait=lambda why: say("waits: " + why)):
    say(f"holds {time.monotonic_ns()}")
    sys.stdin.read()
    say(f"lets go {time.monotonic_ns()}")
"""


class Contender:
    """A process that takes the lease, says so, and holds it until its stdin ends."""

    def __init__(self, state_dir: Path, run_id: str, key: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(state_dir), run_id, key],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def let_go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def __enter__(self) -> Contender:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def key() -> str:
    return f"test-device-{os.getpid()}-{time.monotonic_ns()}"


def here(state_dir: Path, key: str, deadline: Deadline) -> AbstractContextManager[Lease]:
    return lease([key], state_dir, Holder("second", os.getpid(), "me", "eagle3-pd", time.time()), deadline=deadline)


def test_the_second_waits_for_the_first_and_names_it(tmp_path: Path, key: str) -> None:
    with Contender(tmp_path, "first", key) as first:
        assert first.says().startswith("holds")
        with Contender(tmp_path, "second", key) as second:
            assert "held by run first (mtp-pd, user tester" in second.says()
            first.let_go()
            assert second.says().startswith("holds")


def test_at_the_deadline_the_holder_is_named(tmp_path: Path, key: str) -> None:
    with Contender(tmp_path, "first", key) as first:
        assert first.says().startswith("holds")
        with (
            pytest.raises(Infra, match=r"held by run first \(mtp-pd, user tester"),
            here(tmp_path, key, Deadline.after(0)),
        ):
            pytest.fail("two holders")


def test_removing_the_lock_file_while_held_still_leaves_one_holder(tmp_path: Path, key: str) -> None:
    with Contender(tmp_path, "first", key) as first:
        assert first.says().startswith("holds")
        (tmp_path / "leases" / f"{key}.lock").unlink()
        with pytest.raises(Infra, match="held by run first"), here(tmp_path, key, Deadline.after(0)):
            pytest.fail("two holders")
        for path in (tmp_path / "leases").iterdir():
            path.unlink()
        with pytest.raises(Infra, match="left no note"), here(tmp_path, key, Deadline.after(0)):
            pytest.fail("two holders")
        first.let_go()
        assert first.says().startswith("lets go")
        first.process.wait()
    with here(tmp_path, key, soon()):
        pass


def test_another_state_folder_is_no_way_around_a_lease(tmp_path: Path, key: str) -> None:
    with Contender(tmp_path / "one", "first", key) as first:
        assert first.says().startswith("holds")
        with pytest.raises(Infra, match="held by"), here(tmp_path / "two", key, Deadline.after(0)):
            pytest.fail("two holders")


def test_an_old_note_does_not_pass_for_the_holder(tmp_path: Path, key: str) -> None:
    with Contender(tmp_path / "one", "ended", key) as ended:
        assert ended.says().startswith("holds")
        ended.let_go()
        ended.process.wait()
    with Contender(tmp_path / "two", "elsewhere", key) as elsewhere:
        assert elsewhere.says().startswith("holds")
        with (
            pytest.raises(Infra, match=r"run ended .*, which has ended, or by a run with another state folder"),
            here(tmp_path / "one", key, Deadline.after(0)),
        ):
            pytest.fail("two holders")


def test_a_killed_holder_frees_its_lease(tmp_path: Path, key: str) -> None:
    with Contender(tmp_path, "first", key) as first:
        assert first.says().startswith("holds")
        first.process.kill()
        with here(tmp_path, key, soon()):
            assert (holder := holder_of(tmp_path, key)) is not None
            assert holder.run_id == "second"


def test_all_or_nothing_gives_the_first_device_back(tmp_path: Path, key: str) -> None:
    with Contender(tmp_path, "first", f"{key}-b") as first:
        assert first.says().startswith("holds")
        holder = Holder("second", os.getpid(), "me", "eagle3-pd", time.time())
        with (
            pytest.raises(Infra),
            lease([f"{key}-b", f"{key}-a"], tmp_path, holder, deadline=Deadline.after(0)),
        ):
            pytest.fail("two holders")
        with here(tmp_path, f"{key}-a", Deadline.after(0)):
            pass


def test_a_device_that_something_else_uses_is_not_leased(tmp_path: Path, key: str) -> None:
    holder = Holder("second", os.getpid(), "me", "eagle3-pd", time.time())
    with (
        pytest.raises(Infra, match="40 GiB in use"),
        lease([key], tmp_path, holder, deadline=Deadline.after(0), busy=lambda _: "40 GiB in use by pid 7"),
    ):
        pytest.fail("leased a busy device")


def test_the_lease_of_a_killed_runner_lasts_until_its_servers_are_gone(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    key = f"test-device-{run.marker}"
    with separate_runner(run, "spawn", "--ignore-sigterm", "--engine-process") as (runner, _):
        known = everything(run)
        runner.kill()
        runner.wait()
        assert name_is_bound(key), "the lease was free while servers lived"
        with here(run.state_dir, key, soon()):
            assert not run.processes()
    nothing_left(run, known)


def test_with_runner_and_supervisor_killed_the_next_lease_first_ends_what_they_left(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    key = f"test-device-{run.marker}"
    with separate_runner(run, "spawn", "--engine-process") as (runner, pids):
        known = everything(run)
        for pid in (pids["supervisor"], runner.pid):
            os.kill(pid, signal.SIGKILL)
        runner.wait()
        with here(run.state_dir, key, soon()):
            assert not run.processes()
    nothing_left(run, known)


def test_a_record_that_cannot_be_judged_from_here_blocks_the_device(tmp_path: Path, key: str) -> None:
    run = new_run(tmp_path)
    live = run.state_dir / "live"
    live.mkdir(parents=True)
    record = json.loads(run.record(leases=(key,)).to_json())
    boot = record["host"].partition("/")[0]
    (live / "r1.json").write_text(json.dumps({**record, "host": f"{boot}/pid:[1]"}))
    with pytest.raises(Infra, match="another container"), here(run.state_dir, key, Deadline.after(0)):
        pytest.fail("leased on hope")
    (live / "r1.json").write_text(json.dumps({**record, "host": "another-boot/pid:[1]"}))
    with here(run.state_dir, key, soon()):
        pass


def test_contenders_never_overlap(tmp_path: Path, key: str) -> None:
    with Contender(tmp_path, "a", key) as a, Contender(tmp_path, "b", key) as b, Contender(tmp_path, "c", key) as c:
        spans = []
        for contender in (a, b, c):
            contender.let_go()
        for contender in (a, b, c):
            times: list[int] = []
            while len(times) < 2:
                line = contender.says()
                assert line, "a contender ended without its turn"
                if not line.startswith("waits"):
                    times.append(int(line.split()[-1]))
            spans.append(times)
    spans.sort()
    assert all(earlier[1] <= later[0] for earlier, later in itertools.pairwise(spans))
