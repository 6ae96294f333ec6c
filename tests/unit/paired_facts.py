"""Facts of a run of one server and its reference that passes every check, and ways to spoil one of them."""

from __future__ import annotations

from collections.abc import Sequence

from harness.deployments import PAIRED_CHECKS, Method
from harness.facts import (
    EffectiveConfig,
    ExpectedCounts,
    ExpectedText,
    LimitFacts,
    RequestFacts,
    RequestStage,
    RunFacts,
    Snapshot,
)
from tests.unit import check_facts as cf

SERVER = "http://127.0.0.1:22000"
TOKENS = tuple(range(100, 110))
PROMPTS = 6


def page(accepted: int, drafts: int, prompts: int, engine: str, taken_at_s: float) -> Snapshot:
    """What one engine of a k = 1 drafter has counted so far."""
    counts: cf.Page = {
        ("spec_decode_num_drafts_total", ""): drafts,
        ("spec_decode_num_draft_tokens_total", ""): drafts,
        ("spec_decode_num_accepted_tokens_total", ""): accepted,
        ("spec_decode_num_accepted_tokens_per_pos_total", "position=0"): accepted,
        ("request_success_total", "finished_reason=length"): prompts,
        ("request_success_total", "finished_reason=stop"): 0,
    }
    return cf.snapshot(SERVER, counts, taken_at_s, engine=engine)


def merged(*pages: Snapshot) -> Snapshot:
    """One page of several engines."""
    return pages[0].model_copy(update={"samples": tuple(sample for one in pages for sample in one.samples)})


def configured(method: Method | None, k: int | None) -> dict[str, object]:
    """Asked for, and said by the engine: DP=2 without a transfer, with or without a drafter."""
    requested = cf.server("server-0", "server", SERVER, cf.DECODE_RUN, 1).requested.model_copy(
        update={
            "method": method,
            "k": k,
            "drafter": None,
            "data_parallel": 2,
            "connector": None,
            "kv_buffer_device": None,
            "kv_role": None,
            "load_failure_policy": None,
        }
    )
    return {"requested": requested, "effective": EffectiveConfig(**requested.model_dump(), source="log")}


def answer(
    prompt: int, stage: RequestStage, tokens: Sequence[int] = TOKENS, *, open_ended: bool = True
) -> RequestFacts:
    changes = {
        "prompt_id": f"p{prompt}",
        "stage": stage,
        "token_ids": tuple(tokens),
        "completion_tokens": len(tokens),
        "max_tokens": len(tokens),
        "open_ended": open_ended,
    }
    return cf.request(prompt).model_copy(update=changes)


def passing(*, tiny: bool = True, open_ended: bool = False) -> RunFacts:
    """Two engines, six prompts, the reference's answers equal; tiny as computed, or a hub run with limits."""
    windows = (
        merged(page(0, 0, 0, "0", 0.0), page(0, 0, 0, "1", 0.0)),
        merged(page(8, 20, 3, "0", 10.0), page(12, 20, 3, "1", 10.0)),
    )
    base = cf.server("server-0", "server", SERVER, cf.DECODE_RUN, 1)
    server = base.model_copy(update={"windows": windows, "engines": 2, "ranks": 2} | configured("mtp", 1))
    reference = server.model_copy(
        update={"name": "reference-0", "role": "reference", "stage": "reference"} | configured(None, None)
    )
    return cf.passing().model_copy(
        update={
            "deployment": "dp2",
            "model_set": "tiny" if tiny else "hub",
            "disaggregated": False,
            "method": "mtp",
            "k": 1,
            "prompts": PROMPTS,
            "servers": (server, reference),
            "requests": (
                *(answer(i, "main", open_ended=open_ended) for i in range(PROMPTS)),
                *(answer(i, "reference", open_ended=open_ended) for i in range(PROMPTS)),
            ),
            "router": None,
            "expected_counts": ExpectedCounts(drafts=40, draft_tokens=40, accepted=20, per_position=(20,))
            if tiny
            else None,
            "expected_text": tuple(
                ExpectedText(prompt_id=f"p{i}", token_ids=TOKENS, source="computed") for i in range(PROMPTS)
            )
            if tiny
            else (),
            "reference_mode": "computed" if tiny else "server",
            "baseline": None,
            "checks": PAIRED_CHECKS,
            "limits": LimitFacts(token_match=0.8, identical=0.6, gsm8k=0.6),
        }
    )


def with_answers(facts: RunFacts, stage: RequestStage, answers: Sequence[RequestFacts]) -> RunFacts:
    """``facts`` with the answers of one stage replaced."""
    kept = tuple(request for request in facts.requests if request.stage != stage)
    return facts.model_copy(update={"requests": (*kept, *answers), "prompts": len(answers) or facts.prompts})
