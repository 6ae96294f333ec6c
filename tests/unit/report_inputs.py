"""A run to report on, with everything in it that a report can show."""

from __future__ import annotations

from typing import Any

from harness.facts import CheckResult, RequestFacts
from harness.result import Phase, Result
from harness.verdict import Verdict

RUN_DIR = "/srv/gate/runs/20250101-120000-eagle3-pd-ab12"
# Markup of every kind that a report is written in, and the escape sequences of a terminal.
HOSTILE = (
    "[bold]x[/bold] [/nope] <script>alert(1)</script> {{ 7 * 7 }} | `a` [l](http://e) \x1b[31mred\x1b[0m \x07\x9b2J"
)
CANARY = "hf_CANARYcanaryCANARYcanaryCANARYcanary"

PASSED = ("requests_succeeded", "token_counts", "one_bos", "roles_served_all", "kv_moved", "answers_after_run")


def failed_check(**changes: Any) -> CheckResult:
    values: dict[str, Any] = {
        "name": "acceptance_length",
        "ok": False,
        "verdict": "regression",
        "summary": "acceptance length 2.3100, expected 2.6000 within 5 %; it was low from the first window on",
        "figures": {"measured": 2.31, "expected": 2.6},
        "evidence": ("decode-0: 12345 drafts, 16172 accepted",),
    }
    return CheckResult(**(values | changes))


def result(**changes: Any) -> Result:
    """A regression of eagle3-pd; ``changes`` replace fields of `Result`."""
    values: dict[str, Any] = {
        "run_id": "20250101-120000-eagle3-pd-ab12",
        "deployment": "eagle3-pd",
        "verdict": Verdict.REGRESSION,
        "reason": "Acceptance length 2.31 is 11.2 % below the baseline 2.60 (tolerance 5 %).",
        "root_line": "(EngineCore_DP0) ValueError: layer 78 weights missing from checkpoint",
        "log": f"{RUN_DIR}/logs/decode-0.log",
        "next_step": "python -m harness run eagle3-pd --models hub --devices 0,1 --router direct --launch spawn",
        "model_set": "hub",
        "models": [
            "meta-llama/Llama-3.1-8B-Instruct@0e9e39f",
            "RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3@1a2b3c",
        ],
        "kv_buffer": "device",
        "launch": "spawn",
        "router": "vllm-router",
        "workload": {"name": "mt-bench", "prompts": 80, "max_tokens": 256},
        "figures": {"acceptance_length": 2.31, "per_position": [0.7296, 0.42], "drafts": 12345},
        "expected": {"acceptance_length": 2.6, "per_position": [0.7296, 0.5208]},
        "baseline": {"rtol": 0.05, "sided": "two", "exact": False},
        "engine": {"vllm_version": "0.33.0", "platform": "cuda", "fingerprint": "f00d"},
        "hardware": {"host": "box", "devices": ["GPU A", "GPU A"]},
        "adjustments": {"decode-0": ["import trace"]},
        "phases": [
            Phase(name="lease", seconds=0.1, state="done"),
            Phase(name="ready", seconds=38.5, state="done"),
            Phase(name="drive", seconds=61.2, state="failed"),
        ],
        "checks": [
            *(CheckResult(name=name, ok=True, verdict="pass", summary="80 of 80") for name in PASSED),
            failed_check(),
        ],
        "started_at": "2025-01-01T12:00:00Z",
        "wall_seconds": 104.2,
        "harness_version": "0.1.0",
        "run_dir": RUN_DIR,
    }
    return Result(**(values | changes))


def request(**changes: Any) -> RequestFacts:
    """A request that was served in full; ``changes`` replace fields of `RequestFacts`."""
    values: dict[str, Any] = {
        "index": 0,
        "prompt_id": "mt-81",
        "stage": "main",
        "max_tokens": 256,
        "status": 200,
        "error": None,
        "body_error": None,
        "text": "Aloha",
        "token_ids": (1, 2, 3),
        "prompt_token_ids": None,
        "prompt_tokens": 31,
        "completion_tokens": 256,
        "finish_reason": "length",
        "started_at_s": 1.0,
        "duration_s": 0.4,
        "first_hop_s": 0.05,
        "accepted_per_step": (3, 2, 2),
    }
    return RequestFacts(**(values | changes))
