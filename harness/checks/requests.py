"""What came back for each request."""

from __future__ import annotations

from harness.checks.finding import failed, passed
from harness.checks.select import main_requests
from harness.facts import CheckResult, RequestFacts, RunFacts


def requests_succeeded(facts: RunFacts) -> CheckResult:
    """Every prompt has exactly one answer, with a 2xx status and no error hidden in its body."""
    name = "requests_succeeded"
    sent = main_requests(facts)
    if facts.prompts < 1 or len(sent) != facts.prompts:
        return failed(name, f"{len(sent)} requests were recorded for {facts.prompts} prompts")
    problems = [f"{r.stage} {r.prompt_id}: {problem}" for r in facts.requests if (problem := _problem(r))]
    if problems:
        return failed(
            name, f"{len(problems)} of {len(facts.requests)} requests failed; the first: {problems[0]}", None, problems
        )
    slowest_s = max(request.duration_s for request in sent)
    return passed(
        name,
        f"{len(sent)} of {facts.prompts} requests answered, the slowest in {slowest_s:.2f} s",
        {
            "requests": len(sent),
            "median_s": round(sorted(request.duration_s for request in sent)[len(sent) // 2], 4),
            "slowest_s": round(slowest_s, 4),
        },
    )


def _problem(request: RequestFacts) -> str | None:
    if request.error is not None or request.body_error is not None:
        return request.error or request.body_error
    if request.status is None or not 200 <= request.status < 300:
        return f"status {request.status}"
    return None


def token_counts(facts: RunFacts) -> CheckResult:
    """Each answer holds the tokens asked for; a hub model may stop early, and then says ``stop``."""
    name = "token_counts"
    sent = main_requests(facts)
    problems = [f"{r.prompt_id}: {problem}" for r in sent if (problem := _wrong_count(r, facts.model_set == "hub"))]
    if problems or not sent:
        return failed(
            name,
            f"{len(problems)} of {len(sent)} answers have the wrong number of tokens"
            + (f"; the first: {problems[0]}" if problems else ""),
            None,
            problems,
        )
    tokens = sum(request.completion_tokens or 0 for request in sent)
    early = sum(request.finish_reason == "stop" for request in sent)
    return passed(
        name,
        f"{tokens} tokens in {len(sent)} answers" + (f", {early} of them ended by the model itself" if early else ""),
        {"tokens": tokens, "stopped_early": early},
    )


def _wrong_count(request: RequestFacts, may_stop: bool) -> str | None:
    count, ids = request.completion_tokens, request.token_ids
    if count is None or ids is None:
        return "the answer names no token count or no token ids"
    if len(ids) != count:
        return f"the answer counts {count} tokens and lists {len(ids)}"
    if count == request.max_tokens and request.finish_reason in ("length", "stop"):
        return None
    if may_stop and request.finish_reason == "stop" and 0 < count < request.max_tokens:
        return None
    return f"{count} of {request.max_tokens} tokens, finish reason {request.finish_reason!r}"


def one_bos(facts: RunFacts) -> CheckResult:
    """No prompt starts with two BOS tokens (costs about 5 % acceptance), nor with none where the model wants one."""
    name = "one_bos"
    bos = facts.bos_token_id
    if bos is None:
        if facts.add_bos_expected:
            return failed(name, "the tokenizer is said to add a BOS but names none", word="misconfigured")
        return passed(name, "the tokenizer has no BOS token", {"bos_token_id": None})
    sent = main_requests(facts)
    unknown = [request.prompt_id for request in sent if request.prompt_token_ids is None]
    if unknown or not sent:
        return failed(name, f"the engine reported no prompt token ids for {len(unknown)} of {len(sent)} requests")
    leading = {request.prompt_id: _leading(request.prompt_token_ids or (), bos) for request in sent}
    doubled = [f"{prompt}: {count} BOS" for prompt, count in leading.items() if count > 1]
    if doubled:
        return failed(
            name, f"{len(doubled)} of {len(sent)} prompts start with more than one BOS ({bos})", None, doubled
        )
    bare = [prompt for prompt, count in leading.items() if count == 0]
    if facts.add_bos_expected and bare:
        return failed(
            name, f"{len(bare)} of {len(sent)} prompts lack the BOS ({bos}) that the model expects", None, bare
        )
    added = [f"{prompt}: {count} BOS" for prompt, count in leading.items() if count]
    if facts.model_set == "tiny" and not facts.add_bos_expected and added:
        # The prompts of tiny checkpoints are known to hold none: somebody adds special tokens who should not.
        return failed(
            name, f"{len(added)} of {len(sent)} prompts start with a BOS ({bos}) that nobody asked for", None, added
        )
    most = max(leading.values())
    return passed(name, f"at most {most} BOS in front of each of {len(sent)} prompts", {"most_bos": most})


def _leading(token_ids: tuple[int, ...], bos: int) -> int:
    count = 0
    for token in token_ids:
        if token != bos:
            break
        count += 1
    return count
