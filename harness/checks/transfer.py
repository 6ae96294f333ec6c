"""Whether KV really moved from prefill to decode."""

from __future__ import annotations

from harness.checks.finding import Figures, failed, passed
from harness.checks.select import main_servers, run_of, served_by_engine
from harness.facts import CheckResult, RunFacts, ServerFacts
from harness.measure.delta import Delta
from harness.measure.metrics import Page, has, total

BYTES = "vllm:nixl_bytes_transferred_sum"
TRANSFERS = "vllm:nixl_bytes_transferred_count"
BY_SOURCE = "vllm:prompt_tokens_by_source_total"
EXTERNAL_HITS = "vllm:external_prefix_cache_hits_total"
LOCAL_HITS = "vllm:prefix_cache_hits_total"
PROMPT_TOKENS = "vllm:prompt_tokens_total"
# All are born at start-up with value 0, so a missing one is an error. Expiry is counted on the prefill side.
FAILURES = (
    "vllm:nixl_num_failed_transfers_total",
    "vllm:nixl_num_failed_notifications_total",
    "vllm:nixl_num_kv_expired_reqs_total",
)
# Newer engines only.
LATE_NOTIFICATIONS = "vllm:nixl_num_notifications_after_expiry_total"


def kv_moved(facts: RunFacts) -> CheckResult:
    """Every request's prompt reached decode as KV: a silent local prefill gives the right text and fails here.

    Decode computes at most the tail that it must: one token per request for a hybrid model (the state after the last
    token is rebuilt), up to k with k MTP modules. Whatever else it computed itself is a prompt whose KV did not arrive.
    """
    name = "kv_moved"
    decoders = [server for server in main_servers(facts) if server.role == "decode"]
    if not decoders:
        return failed(name, "there is no decode server whose transfers could be counted")
    figures: Figures = {}
    problems: list[str] = []
    for server in decoders:
        problems += _arrived(facts, server, figures)
    for server in main_servers(facts):
        problems += _failures(server)
    if problems:
        return failed(name, "; ".join(problems[:2]), figures, problems)
    return passed(
        name,
        f"{figures['bytes']} bytes in {figures['transfers']} transfers, {figures['external_tokens']} prompt tokens "
        f"came as KV, none failed or expired",
        figures,
    )


def _arrived(facts: RunFacts, server: ServerFacts, figures: Figures) -> list[str]:
    run = run_of(server)
    moved, transfers = round(total(run, BYTES)), round(total(run, TRANSFERS))
    requests = sum(served_by_engine(run).values())
    external, local_hits, computed = _sources(run)
    prompt_tokens = round(total(run, PROMPT_TOKENS))
    figures.update(
        bytes=moved,
        transfers=transfers,
        external_tokens=external,
        local_hit_tokens=local_hits,
        computed_tokens=computed,
        prompt_tokens=prompt_tokens,
        requests=requests,
    )
    problems = []
    if moved <= 0:
        problems.append(f"no KV was moved to {server.name}: {moved} bytes in {transfers} transfers ({server.url})")
    if external <= 0:
        problems.append(f"{server.name} took no prompt token from the transfer ({server.url})")
    # A prompt that the local prefix cache holds to the last block needs no bytes; without such hits each request does.
    if transfers < requests and not local_hits:
        problems.append(f"{server.name} answered {requests} requests with {transfers} transfers")
    if requests < facts.prompts:
        problems.append(f"{server.name} answered {requests} of {facts.prompts} requests")
    allowed = requests * (max(1, server.requested.k or 1) if server.requested.method == "mtp" else 1)
    if computed > allowed:
        problems.append(
            f"{server.name} computed {computed} of {prompt_tokens} prompt tokens itself, at most {allowed} "
            f"for {requests} requests may be"
        )
    return problems


def _sources(run: Page) -> tuple[int, int, int]:
    """Prompt tokens that came by transfer, from the local prefix cache, and by computing them."""
    if has(run, BY_SOURCE):
        external, local_hits, computed = (
            round(total(run, BY_SOURCE, {"source": source}))
            for source in ("external_kv_transfer", "local_cache_hit", "local_compute")
        )
        return external, local_hits, computed
    external, local_hits = round(total(run, EXTERNAL_HITS)), round(total(run, LOCAL_HITS))
    return external, local_hits, round(total(run, PROMPT_TOKENS)) - external - local_hits


def _failures(server: ServerFacts) -> list[str]:
    run: Delta = run_of(server)
    counted = {name: round(total(run, name)) for name in FAILURES}
    if has(run, LATE_NOTIFICATIONS):
        counted[LATE_NOTIFICATIONS] = round(total(run, LATE_NOTIFICATIONS))
    return [f"{server.name} counts {name} = {count} ({server.url})" for name, count in counted.items() if count]
