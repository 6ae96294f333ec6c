"""The figures, expectations and descriptions of result.json. No I/O.

``expected`` uses the names of ``figures``, so a report can lay one beside the other.
"""

from __future__ import annotations

from typing import Any

from harness.checks.against_baseline import measured
from harness.deployments import KvBuffer
from harness.engine.info import EngineInfo
from harness.errors import GateError
from harness.facts import CheckResult, RunFacts
from harness.plan.types import Machine
from harness.result import Result
from harness.run.request import Prepared, Request

# Checks that say nothing without a reference server.
_COMPARING = ("output_matches_reference", "token_match", "identical_outputs", "deterministic_all_match")

# Said by the checks in words of their own, or laid out below.
_LEFT_OUT = frozenset({"judged", "baseline", "expected", "drafts", "draft_tokens", "accepted", "per_position"})


def describe_engine(engine: EngineInfo) -> dict[str, Any]:
    return {
        "vllm": engine.vllm_version,
        "distribution": engine.vllm_distribution,
        "platform": engine.platform,
        "torch": engine.torch_version,
        "cuda": engine.cuda_version,
        "nixl": engine.nixl_version,
        "transformers": engine.transformers_version,
        "python": engine.python_version,
        "interpreter": str(engine.python),
        "origin": engine.origin,
        "lock": engine.lock,
        "fingerprint": engine.fingerprint,
    }


def describe_hardware(machine: Machine) -> dict[str, Any]:
    return {
        "host": machine.host,
        "platform": machine.platform,
        "devices": [f"{device.index} {device.name} {device.total_bytes >> 30} GiB" for device in machine.devices],
        "cores": machine.cores,
        "memory_gib": machine.memory_bytes >> 30,
        "driver": machine.driver,
    }


def describe_run(result: Result, request: Request, prepared: Prepared, buffer: KvBuffer | None) -> None:
    """Write what is run, and what is left out on purpose, into ``result``."""
    options, workload = request.options, prepared.workload
    result.engine = describe_engine(prepared.engine)
    result.hardware = describe_hardware(prepared.machine)
    result.model_set = prepared.model_set
    result.models = list(prepared.checkpoints.paths.provenance)
    result.kv_buffer = buffer
    result.router = options.router if request.deployment.transfer else None
    result.reference = "computed" if workload.texts else options.reference
    result.workload = {
        "name": workload.name,
        "prompts": len(workload.prompts),
        "hash": workload.hash,
        "concurrency": workload.concurrency,
    }
    if options.reference == "none":
        result.not_judged += [
            f"{name}: declined with --reference none"
            for name in request.deployment.checks
            if name in _COMPARING and not (name == "output_matches_reference" and workload.texts)
        ]


def figures_of(facts: RunFacts, checks: tuple[CheckResult, ...]) -> dict[str, Any]:
    """What was measured: acceptance first, as it was judged, then what the checks counted."""
    figures: dict[str, Any] = {}
    try:
        found = measured(facts)
    except GateError:
        # The check that needs the metric says which one is missing, and where.
        found = None
    if found is not None:
        exact = facts.expected_counts is not None
        counts = found.raw if exact else found.judged(facts.baseline.estimator if facts.baseline else "standalone")[1]
        figures |= {
            "drafts": counts.drafts,
            "draft_tokens": counts.draft_tokens,
            "accepted": counts.accepted,
            "acceptance_length": counts.length,
        }
        # Counts where they were computed, rates where a baseline holds rates.
        figures["per_position"] = list(counts.per_position) if exact else list(counts.position_rates or ())
    for check in checks:
        figures |= {
            name: value
            for name, value in check.figures.items()
            if name not in _LEFT_OUT and value is not None and name not in figures
        }
    return figures


def expected_of(facts: RunFacts) -> dict[str, Any]:
    """What the figures were judged against: computed counts, or the baseline's values."""
    counts, baseline = facts.expected_counts, facts.baseline
    if counts is not None:
        return {
            "drafts": counts.drafts,
            "draft_tokens": counts.draft_tokens,
            "accepted": counts.accepted,
            "acceptance_length": 1 + counts.accepted / counts.drafts if counts.drafts else None,
            "per_position": list(counts.per_position),
        }
    if baseline is None:
        return {}
    expected: dict[str, Any] = {}
    if baseline.acceptance_length is not None:
        expected["acceptance_length"] = baseline.acceptance_length
    if baseline.per_position is not None:
        expected["per_position"] = list(baseline.per_position)
    return expected
