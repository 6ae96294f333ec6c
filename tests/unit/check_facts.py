"""Facts of a run that passes every check, and ways to spoil one of them."""

from __future__ import annotations

from harness.deployments import PD_CHECKS, RoleName
from harness.facts import (
    BaselineFacts,
    EffectiveConfig,
    ExpectedCounts,
    ExpectedText,
    RequestedConfig,
    RequestFacts,
    RouterFacts,
    RunFacts,
    Sample,
    ServerFacts,
    Snapshot,
)

PROMPTS = 4
PROMPT_TOKENS = 20
PREFILL = "http://127.0.0.1:21000"
DECODE = "http://127.0.0.1:21001"
Page = dict[tuple[str, str], float]

# Counted over the run by the decode server; keys are (metric without prefix, second label).
DECODE_RUN: Page = {
    ("spec_decode_num_drafts_total", ""): 14,
    ("spec_decode_num_draft_tokens_total", ""): 42,
    ("spec_decode_num_accepted_tokens_total", ""): 15,
    ("spec_decode_num_accepted_tokens_per_pos_total", "position=0"): 8,
    ("spec_decode_num_accepted_tokens_per_pos_total", "position=1"): 4,
    ("spec_decode_num_accepted_tokens_per_pos_total", "position=2"): 3,
    ("request_success_total", "finished_reason=length"): PROMPTS,
    ("request_success_total", "finished_reason=stop"): 0,
    ("request_success_total", "finished_reason=abort"): 0,
    ("prompt_tokens_total", ""): PROMPTS * PROMPT_TOKENS,
    ("prompt_tokens_by_source_total", "source=local_compute"): 0,
    ("prompt_tokens_by_source_total", "source=local_cache_hit"): 0,
    ("prompt_tokens_by_source_total", "source=external_kv_transfer"): PROMPTS * PROMPT_TOKENS,
    ("nixl_bytes_transferred_sum", ""): 4096.0 * PROMPTS,
    ("nixl_bytes_transferred_count", ""): PROMPTS,
    ("nixl_num_failed_transfers_total", ""): 0,
    ("nixl_num_failed_notifications_total", ""): 0,
    ("nixl_num_kv_expired_reqs_total", ""): 0,
}
PREFILL_RUN: Page = {key: 0.0 for key in DECODE_RUN if "position" not in key[1] or key[1] == "position=0"} | {
    ("request_success_total", "finished_reason=length"): PROMPTS,
    ("prompt_tokens_total", ""): PROMPTS * PROMPT_TOKENS,
    ("prompt_tokens_by_source_total", "source=local_compute"): PROMPTS * PROMPT_TOKENS,
}


def snapshot(url: str, page: Page, taken_at_s: float = 0.0, offset: float = 3.0, engine: str = "0") -> Snapshot:
    """A page that shows ``page`` on top of ``offset`` (what the smoke request left) for one engine."""
    return Snapshot(
        url=f"{url}/metrics",
        taken_at_s=taken_at_s,
        samples=tuple(
            Sample(
                name=f"vllm:{name}",
                labels={"engine": engine, "model_name": "m"} | dict([label.split("=")] if label else []),
                value=value + offset,
            )
            for (name, label), value in page.items()
        ),
    )


def two_pages(url: str, page: Page) -> tuple[Snapshot, Snapshot]:
    """Before and after the run."""
    return snapshot(url, dict.fromkeys(page, 0.0)), snapshot(url, page, 10.0)


def server(name: str, role: RoleName, url: str, page: Page, k: int) -> ServerFacts:
    kv_role = "kv_producer" if role == "prefill" else "kv_consumer"
    return ServerFacts(
        name=name,
        role=role,
        stage="main",
        url=url,
        log=f"logs/{name}.log",
        engines=1,
        ranks=1,
        requested=RequestedConfig(
            model="/models/t",
            method="eagle3",
            k=k,
            drafter="/models/d",
            tensor_parallel=1,
            data_parallel=1,
            pipeline_parallel=1,
            expert_parallel=False,
            connector="NixlConnector",
            kv_buffer_device="cpu",
            kv_role=kv_role,
            load_failure_policy="fail",
            block_size=32,
            max_model_len=1024,
        ),
        effective=EffectiveConfig(
            model="/models/t",
            method="eagle3",
            k=k,
            drafter="/models/d",
            tensor_parallel=1,
            data_parallel=1,
            pipeline_parallel=1,
            expert_parallel=False,
            connector="NixlConnector",
            kv_buffer_device="cpu",
            kv_role=kv_role,
            load_failure_policy="fail",
            block_size=32,
            max_model_len=1024,
            source="log",
        ),
        windows=two_pages(url, page),
        answered_after_run=True,
        after_error=None,
    )


def request(index: int) -> RequestFacts:
    return RequestFacts(
        index=index,
        prompt_id=f"p{index}",
        stage="main",
        max_tokens=3,
        status=200,
        error=None,
        body_error=None,
        text="abc",
        token_ids=(5, 6, 7),
        prompt_token_ids=(1, *range(10, 10 + PROMPT_TOKENS - 1)),
        prompt_tokens=PROMPT_TOKENS,
        completion_tokens=3,
        finish_reason="length",
        started_at_s=float(index),
        duration_s=0.3,
        first_hop_s=None,
        accepted_per_step=None,
    )


def passing(decode: Page | None = None, prefill: Page | None = None) -> RunFacts:
    """A tiny run with everything as it should be, but for the counts given."""
    return RunFacts(
        deployment="eagle3-pd",
        model_set="tiny",
        platform="cpu",
        disaggregated=True,
        method="eagle3",
        k=3,
        bos_token_id=1,
        add_bos_expected=True,
        prompts=PROMPTS,
        servers=(
            server("prefill-0", "prefill", PREFILL, PREFILL_RUN | (prefill or {}), 1),
            server("decode-0", "decode", DECODE, DECODE_RUN | (decode or {}), 3),
        ),
        requests=tuple(request(index) for index in range(PROMPTS)),
        router=RouterFacts(mode="vllm-router", served=PROMPTS, failed=0, per_worker={PREFILL: 4, DECODE: 4}),
        expected_counts=ExpectedCounts(drafts=14, draft_tokens=42, accepted=15, per_position=(8, 4, 3)),
        expected_text=tuple(
            ExpectedText(prompt_id=f"p{index}", token_ids=(5, 6, 7), source="computed") for index in range(PROMPTS)
        ),
        reference_mode="computed",
        baseline=baseline(exact=True),
        baseline_error=None,
        checks=PD_CHECKS,
    )


def baseline(*, exact: bool = False, length: float | None = None, sided: str = "two") -> BaselineFacts:
    """An entry; the corrected acceptance length of `passing` is 1 + 15 / 10 = 2.5."""
    return BaselineFacts(
        key="eagle3-pd/x",
        acceptance_length=None if exact else length or 2.5,
        per_position=None if exact else (0.8, 0.4, 0.3),
        rtol=None if exact else 0.05,
        sided="two" if sided == "two" else "lower",
        exact=exact,
        estimator="as-counted" if exact else "standalone",
        certificate={},
    )


def hub() -> RunFacts:
    """`passing` as a hub run: judged by a baseline instead of computed counts."""
    return passing().model_copy(update={"model_set": "hub", "expected_counts": None, "baseline": baseline()})


def with_server(facts: RunFacts, name: str, **changes: object) -> RunFacts:
    servers = tuple(s.model_copy(update=changes) if s.name == name else s for s in facts.servers)
    return facts.model_copy(update={"servers": servers})


def with_request(facts: RunFacts, index: int, **changes: object) -> RunFacts:
    requests = tuple(r.model_copy(update=changes) if r.index == index else r for r in facts.requests)
    return facts.model_copy(update={"requests": requests})
