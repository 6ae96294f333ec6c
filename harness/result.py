"""result.json: what a run leaves behind, always, whatever ended it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from harness.deployments import KvBuffer, ModelSetName
from harness.facts import CheckResult
from harness.files import LARGEST_DATA_BYTES, read_bounded, write_atomically
from harness.verdict import Verdict

RESULT_NAME = "result.json"


class Phase(BaseModel):
    """One phase of the run and its wall time in seconds; ``open``: the run ended inside it."""

    model_config = ConfigDict(frozen=True)

    name: str
    seconds: float
    state: Literal["done", "failed", "open"]


class Result(BaseModel):
    """One run. ``figures`` are measured, ``expected`` what they were judged against; empty if nothing was measured.

    ``root_line`` quotes the first cause from the log of the process to blame, ``log`` is that log. ``launch`` says how
    the servers were started, ``adjustments`` what the engine plugin changed (speed only), by server.
    """

    model_config = ConfigDict(extra="forbid")

    run_id: str
    deployment: str
    verdict: Verdict
    reason: str
    root_line: str | None = None
    log: str | None = None
    next_step: str | None = None
    model_set: ModelSetName | None = None
    models: list[str] = []
    kv_buffer: KvBuffer | None = None
    launch: str | None = None
    router: str | None = None
    reference: str | None = None
    # The run of the same invocation whose reference answers these were compared with; None: its own.
    reference_from: str | None = None
    workload: dict[str, str | int] = {}
    figures: dict[str, Any] = {}
    expected: dict[str, Any] = {}
    baseline: dict[str, Any] = {}
    engine: dict[str, Any] = {}
    hardware: dict[str, Any] = {}
    adjustments: dict[str, list[str]] = {}
    phases: list[Phase] = []
    checks: list[CheckResult] = []
    cleanup: dict[str, Any] = {}
    retried: bool = False
    not_judged: list[str] = []
    # What the plan says of itself: shared devices, batch-invariant kernels on or off.
    notes: list[str] = []
    # Number of vLLM files by server and process, of a run with --trace.
    trace: dict[str, int] = {}
    # What is wrong with the table of expected refusals; the reason alone would not say that it is the table.
    finding: str | None = None
    started_at: str
    wall_seconds: float = 0.0
    harness_version: str
    run_dir: str


def write_result(run_dir: Path, result: Result) -> Path:
    """Write result.json into ``run_dir`` and return its path."""
    path = run_dir / RESULT_NAME
    write_atomically(path, json.dumps(result.model_dump(mode="json"), indent=1) + "\n")
    return path


def read_result(run_dir: Path) -> Result:
    """The result of a finished run. Raises OSError, Misconfigured or pydantic.ValidationError."""
    return Result.model_validate_json(read_bounded(run_dir / RESULT_NAME, LARGEST_DATA_BYTES))
