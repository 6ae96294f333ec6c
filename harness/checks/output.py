"""Whether the text is right."""

from __future__ import annotations

from harness.checks.finding import Figures, failed, passed
from harness.checks.select import main_requests, requests_of
from harness.facts import CheckResult, RunFacts
from harness.measure.matching import Match, match, pooled_ratio

# A real checkpoint in 16-bit arithmetic does not repeat itself to the last of 256 tokens when batches differ, but lost
# or foreign KV shows in the first tokens of nearly every answer: those are judged.
EARLY_TOKENS = 16
EARLY_SHARE = 0.8


def output_matches_reference(facts: RunFacts) -> CheckResult:
    """Tiny: every token as computed. Hub: the first 16 tokens of at least 80 % of the answers as the reference's."""
    name = "output_matches_reference"
    if facts.reference_mode == "none":
        return passed(name, "not judged: the run was asked for no reference", {"judged": "no"})
    expected = {text.prompt_id: text.token_ids for text in facts.expected_text}
    sent = main_requests(facts)
    missing = [request.prompt_id for request in sent if request.prompt_id not in expected]
    if missing or not sent:
        return failed(name, f"{len(missing)} of {len(sent)} prompts have no reference output", None, missing, "infra")
    unknown = [request.prompt_id for request in sent if request.token_ids is None]
    if unknown:
        return failed(name, f"{len(unknown)} of {len(sent)} answers have no token ids", None, unknown)
    logprobs = {request.prompt_id: request.top_logprobs for request in requests_of(facts, "reference")}
    matches = {
        prompt: match(expected[prompt], request.token_ids or (), logprobs.get(prompt))
        for prompt, request in ((request.prompt_id, request) for request in sent)
    }
    identical = sum(one.identical for one in matches.values())
    early = sum(_agrees_early(one) for one in matches.values())
    figures: Figures = {
        "identical": identical,
        "agree_early": early,
        "answers": len(sent),
        "token_match_ratio": pooled_ratio(matches.values()),
        "judged": "all tokens" if facts.model_set == "tiny" else f"first {EARLY_TOKENS} tokens",
    }
    differing = [f"{prompt} {one.divergence}" for prompt, one in matches.items() if not one.identical]
    if facts.model_set == "tiny":
        if differing:
            return failed(
                name,
                f"{len(differing)} of {len(sent)} answers differ from the computed text; {differing[0]}",
                figures,
                differing,
            )
        return passed(name, f"{identical} of {len(sent)} answers equal the computed text", figures)
    text = f"{early} of {len(sent)} answers agree with the reference in their first {EARLY_TOKENS} tokens"
    if early < EARLY_SHARE * len(sent):
        return failed(name, f"{text}, {EARLY_SHARE:.0%} must", figures, differing)
    return passed(name, f"{text}, {identical} to the end", figures)


def _agrees_early(one: Match) -> bool:
    return one.identical or one.common_prefix >= EARLY_TOKENS
