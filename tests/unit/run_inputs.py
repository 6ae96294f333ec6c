"""What the tests of harness.run start from: a request on a laptop without an engine, the folder of a finished run."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from harness.checks.registry import judge
from harness.deployments import DEPLOYMENTS
from harness.facts import CheckResult, RunFacts
from harness.locations import Locations
from harness.plan.types import Options
from harness.report.terminal import Progress
from harness.result import Result, write_result
from harness.run.journal import Journal
from harness.run.judge import FACTS_NAME
from harness.run.request import Request
from harness.verdict import Verdict
from tests.unit.check_facts import passing

PROJECT = Path(__file__).resolve().parents[2]


def locations(folder: Path) -> Locations:
    return Locations(cache=folder / "cache", state=folder / "state", runs=folder / "runs")


def request(folder: Path, options: Options | None = None, **changes: Any) -> Request:
    values: dict[str, Any] = {
        "deployment": DEPLOYMENTS["eagle3-pd"],
        "options": options or Options(),
        "engine_choice": "auto",
        "host_python": None,
        "locations": locations(folder),
        "baselines": PROJECT / "baselines.toml",
        "inherited": {},
        "passed": frozenset(),
        "offline": True,
        "router_python": Path("/venv/bin/python"),
        "lease_timeout_s": 1.0,
        "extra_environment": {},
    }
    return Request(**(values | changes))


def quiet() -> Console:
    return Console(file=io.StringIO(), width=120)


def journal(folder: Path) -> Journal:
    return Journal(folder, Progress(quiet()))


def run_folder(folder: Path) -> Path:
    run = folder / "run"
    (run / "logs").mkdir(parents=True)
    return run


def result_of(folder: Path, **changes: Any) -> Result:
    values: dict[str, Any] = {
        "run_id": "20250101T120000-eagle3-pd-ab12cd",
        "deployment": "eagle3-pd",
        "verdict": Verdict.PASS,
        "reason": "All 14 checks passed over 8 requests.",
        "model_set": "tiny",
        "kv_buffer": "device",
        "engine": {"vllm": "0.32.0"},
        "hardware": {"devices": ["0 CPU core 0", "1 CPU core 1"]},
        "workload": {"name": "tiny", "hash": "a" * 64},
        "started_at": "2025-01-01T12:00:00Z",
        "harness_version": "0.1.0",
        "run_dir": str(folder),
    }
    return Result(**(values | changes))


def finished_run(folder: Path, facts: RunFacts | None = None, **changes: Any) -> Path:
    """A run folder with facts.json and result.json."""
    run = run_folder(folder)
    (run / FACTS_NAME).write_text((facts or passing()).model_dump_json(), "utf-8")
    write_result(run, result_of(run, **changes))
    return run


def checks_in_process(_: Path, facts: RunFacts) -> tuple[CheckResult, ...]:
    """What `run_assertions` finds, without a pytest of its own (`test_run_judge` has that one)."""
    return tuple(judge(name, facts) for name in facts.checks)


def only_result(runs: Path) -> dict[str, Any]:
    """The result.json of the single run below ``runs``."""
    (path,) = runs.glob("*/result.json")
    loaded: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return loaded
