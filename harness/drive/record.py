"""From an answer to the facts of one request; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from harness.drive.answers import Answer
from harness.drive.workloads import Prompt
from harness.facts import RequestFacts, RequestStage
from harness.report.redact import redact_text

# Far below the rounding of the engine's own arithmetic, and short in a file of thousands of them.
_DECIMALS = 6


def without_secrets(answer: Answer, secrets: frozenset[str]) -> Answer:
    """The answer with what its errors quote redacted: they go into files that others read."""
    return replace(
        answer,
        error=redact_text(answer.error, secrets) if answer.error else answer.error,
        body_error=redact_text(answer.body_error, secrets) if answer.body_error else answer.body_error,
    )


def to_facts(answer: Answer, index: int, prompt: Prompt, stage: RequestStage, started_at_s: float) -> RequestFacts:
    """What the answer shows; a field that the engine did not send is None, never a default."""
    choice = _choice(answer)
    if answer.ok and choice is None:
        answer = replace(answer, body_error=f"the body of the {answer.status} answer holds no choices")
    choice = choice or {}
    payload = answer.payload or {}
    usage = _mapping(payload.get("usage"))
    speculation = _mapping(_mapping(payload.get("metrics")).get("speculative_decoding"))
    return RequestFacts(
        index=index,
        prompt_id=prompt.prompt_id,
        stage=stage,
        max_tokens=prompt.max_tokens,
        status=answer.status,
        error=answer.error,
        body_error=answer.body_error,
        text=_string(choice.get("text")),
        token_ids=_integers(choice.get("token_ids")),
        prompt_token_ids=_integers(choice.get("prompt_token_ids")),
        prompt_tokens=_integer(usage.get("prompt_tokens")),
        completion_tokens=_integer(usage.get("completion_tokens")),
        finish_reason=_string(choice.get("finish_reason")),
        started_at_s=started_at_s,
        duration_s=answer.duration_s,
        first_hop_s=answer.first_hop_s,
        accepted_per_step=_integers(speculation.get("per_step_accepted")),
        open_ended=prompt.open_ended,
        mode=prompt.mode,
        top_logprobs=_top_logprobs(_mapping(choice.get("logprobs")).get("top_logprobs")),
    )


def _choice(answer: Answer) -> Mapping[str, object] | None:
    choices = (answer.payload or {}).get("choices")
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], Mapping) else None


def _top_logprobs(value: object) -> tuple[tuple[tuple[int, float], ...], ...] | None:
    """``[{"token_id:12": -0.5, ...}, ...]`` by position, likeliest first; None where any of it is something else."""
    if not isinstance(value, list):
        return None
    found = []
    for position in value:
        listed = []
        for name, logprob in _mapping(position).items():
            prefix, _, number = str(name).partition(":")
            if prefix != "token_id" or not number.isdecimal() or not isinstance(logprob, int | float):
                return None
            listed.append((int(number), round(float(logprob), _DECIMALS)))
        found.append(tuple(sorted(listed, key=lambda one: -one[1])))
    return tuple(found)


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _string(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _integers(value: object) -> tuple[int, ...] | None:
    if not isinstance(value, list) or not all(_integer(item) is not None for item in value):
        return None
    return tuple(value)
