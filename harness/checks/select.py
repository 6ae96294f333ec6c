"""Which part of the facts a check is about."""

from __future__ import annotations

from harness.errors import EngineFailed
from harness.facts import RequestFacts, RequestStage, RunFacts, ServerFacts
from harness.measure.delta import Delta, whole_run
from harness.measure.metrics import ENGINE, by_label

REQUEST_SUCCESS = "vllm:request_success_total"
# Every other way to finish (abort, error, repetition) is not an answer, though the engine counts it as success.
ANSWERED = ("stop", "length")


def main_requests(facts: RunFacts) -> tuple[RequestFacts, ...]:
    return requests_of(facts, "main")


def requests_of(facts: RunFacts, stage: RequestStage) -> tuple[RequestFacts, ...]:
    return tuple(request for request in facts.requests if request.stage == stage)


def main_servers(facts: RunFacts) -> tuple[ServerFacts, ...]:
    return tuple(server for server in facts.servers if server.stage == "main")


def drafting_servers(facts: RunFacts) -> tuple[ServerFacts, ...]:
    """The servers whose drafter is judged: decode under disaggregation (prefill answers before its first draft).

    Raises `EngineFailed` when there is none: nothing would be judged.
    """
    found = tuple(s for s in main_servers(facts) if s.requested.method is not None and s.role != "prefill")
    if not found:
        raise EngineFailed(f"{facts.deployment} has no server that was asked to speculate, so nothing can be judged")
    return found


def served_by_engine(run: Delta) -> dict[str, int]:
    """Requests that ended with an answer, by ``engine``; `MissingMetric` when the server does not count them."""
    served: dict[str, int] = dict.fromkeys(by_label(run, REQUEST_SUCCESS, ENGINE), 0)
    for reason in ANSWERED:
        for engine, count in by_label(run, REQUEST_SUCCESS, ENGINE, {"finished_reason": reason}).items():
            served[engine] += round(count)
    return served


def padded_drafts_by_engine(facts: RunFacts, run: Delta) -> dict[str, int]:
    """Drafts that the engine counts without the drafter having made them: one per KV-loaded request, where it pads."""
    served = served_by_engine(run)
    return served if facts.disaggregated and facts.pads_loaded_requests else dict.fromkeys(served, 0)


def run_of(server: ServerFacts) -> Delta:
    """What ``server`` counted over the workload; resets and missing pages raise."""
    return whole_run(server.windows)
