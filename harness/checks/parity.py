"""A speculative run against the same servers without a drafter, or against another layout."""

from __future__ import annotations

from collections.abc import Callable

from harness.checks.finding import Figures, failed, passed
from harness.checks.select import main_requests, main_servers, requests_of
from harness.facts import CheckResult, RequestFacts, RunFacts
from harness.measure.agreement import Agreement, agreement, reaches
from harness.measure.matching import match


def more_prompts_than_ranks(facts: RunFacts) -> CheckResult:
    """More than two prompts for each rank: with one prompt all engines but one would be idle, and prove nothing."""
    name = "more_prompts_than_ranks"
    ranks = max((server.ranks for server in main_servers(facts)), default=0)
    text = f"{facts.prompts} prompts for {ranks} ranks"
    if not ranks or facts.prompts <= 2 * ranks:
        return failed(name, f"{text}, more than {2 * ranks} are needed", {"ranks": ranks}, word="misconfigured")
    return passed(name, text, {"ranks": ranks})


def output_as_computed(facts: RunFacts) -> CheckResult:
    """Tiny: every token of the judged servers and of the reference as the simulator computed it."""
    name = "output_as_computed"
    if facts.model_set != "tiny":
        return passed(name, "not applicable: the text of hub models is not known beforehand", {"judged": "no"})
    expected = {text.prompt_id: text.token_ids for text in facts.expected_text}
    sent = (*main_requests(facts), *requests_of(facts, "reference"))
    if not sent or any(request.prompt_id not in expected for request in sent):
        return failed(name, "no computed text for the prompts of this tiny checkpoint", word="misconfigured")
    lines = [
        f"{request.stage} {request.prompt_id} {divergence}"
        for request in sent
        if (divergence := match(expected[request.prompt_id], request.token_ids or ()).divergence) is not None
    ]
    figures: Figures = {"answers": len(sent), "identical": len(sent) - len(lines)}
    if lines:
        return failed(
            name, f"{len(lines)} of {len(sent)} answers differ from the computed text; {lines[0]}", figures, lines
        )
    return passed(name, f"{len(sent)} of {len(sent)} answers equal the computed text", figures)


def token_match(facts: RunFacts) -> CheckResult:
    """Share of positions with the reference's token: at least the limit for hub models, all for tiny ones."""
    name = "token_match"
    least = 1.0 if facts.model_set == "tiny" else facts.limits.token_match
    if least is None:
        return failed(name, f"{facts.deployment} names no least token match", word="misconfigured")

    def enough(found: Agreement) -> bool:
        matched, positions = _positions(found)
        return reaches(matched, positions, least)

    def describe(found: Agreement) -> str:
        matched, positions = _positions(found)
        return f"{matched} of {positions} positions hold the reference's token (at least {least:g} must)"

    return _compared(name, facts, main_requests(facts), None, enough, describe)


def identical_outputs(facts: RunFacts) -> CheckResult:
    """Share of answers that are identical to the reference's over their first tokens; all of them for tiny models."""
    name = "identical_outputs"
    tiny = facts.model_set == "tiny"
    least = 1.0 if tiny else facts.limits.identical
    if least is None:
        return failed(name, f"{facts.deployment} names no least share of identical outputs", word="misconfigured")
    tokens = None if tiny else facts.limits.compared_tokens

    def enough(found: Agreement) -> bool:
        return reaches(found.identical, len(found.matches), least)

    def describe(found: Agreement) -> str:
        over = f" in their first {tokens} tokens" if tokens else ""
        return f"{found.identical} of {len(found.matches)} outputs are identical{over} (at least {least:g} must)"

    return _compared(name, facts, main_requests(facts), tokens, enough, describe)


def deterministic_all_match(facts: RunFacts) -> CheckResult:
    """Prompts that force the next token: every answer is the reference's, whatever the share over all prompts."""
    name = "deterministic_all_match"
    sent = tuple(request for request in main_requests(facts) if not request.open_ended)
    if not sent:
        if facts.model_set == "tiny":
            return failed(name, "a tiny workload without deterministic prompts", word="misconfigured")
        return passed(name, "not judged: random weights force no next token, every prompt is open-ended")

    def describe(found: Agreement) -> str:
        return f"{found.identical} of {len(found.matches)} deterministic prompts answered alike (all must)"

    return _compared(
        name, facts, sent, facts.limits.compared_tokens, lambda found: found.identical == len(found.matches), describe
    )


def _positions(found: Agreement) -> tuple[int, int]:
    return sum(one.matched for one in found.matches.values()), sum(one.length for one in found.matches.values())


def _compared(
    name: str,
    facts: RunFacts,
    sent: tuple[RequestFacts, ...],
    tokens: int | None,
    enough: Callable[[Agreement], bool],
    describe: Callable[[Agreement], str],
) -> CheckResult:
    """``sent`` against the reference, and when that is not enough the reference against itself.

    A reference that does not even agree with itself proves nothing about the drafter: ``infra``.
    """
    if facts.reference_declined:
        return passed(name, "not judged: the run was asked for no reference", {"judged": "no"})
    prompts = {request.prompt_id for request in sent}
    reference = _only(requests_of(facts, "reference"), prompts)
    found = agreement(reference, sent, tokens)
    if found.missing or not found.matches:
        missing = f"{len(found.missing)} of {len(sent)} prompts have no answer to compare"
        return failed(name, missing, None, found.missing, "infra")
    shortest = min(found.matches.values(), key=lambda one: one.common_prefix)
    figures: Figures = {
        "token_match_ratio": None if found.ratio is None else round(found.ratio, 6),
        "identical": found.identical,
        "compared": len(found.matches),
        "shortest_common_prefix": shortest.common_prefix,
    }
    text = describe(found)
    if enough(found):
        return passed(name, text, figures)
    text += f"; first divergence: {found.differing[0]}"
    control = agreement(reference, _only(requests_of(facts, "control"), prompts), tokens)
    if control.missing or not control.matches:
        return failed(name, f"{text}; no control was driven", figures, found.differing)
    figures |= {"control_ratio": control.ratio, "control_identical": control.identical}
    text += f"; control, the reference against itself: {describe(control)}"
    if not enough(control):
        return failed(name, f"inconclusive: {text}", figures, control.differing, "infra")
    return failed(name, text, figures, found.differing)


def _only(requests: tuple[RequestFacts, ...], prompts: set[str]) -> tuple[RequestFacts, ...]:
    return tuple(request for request in requests if request.prompt_id in prompts)
