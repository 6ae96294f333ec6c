"""Whether the answers are right, with a drafter and without."""

from __future__ import annotations

from harness.checks.finding import Figures, failed, passed
from harness.checks.select import main_requests, requests_of
from harness.facts import CheckResult, RequestFacts, RunFacts
from harness.measure.agreement import reaches
from harness.measure.gsm8k import is_right


def gsm8k_threshold(facts: RunFacts) -> CheckResult:
    """The share of GSM8K questions answered right reaches the limit; what the reference reaches is the control."""
    name = "gsm8k_threshold"
    least = facts.limits.gsm8k
    if least is None:
        return failed(name, f"{facts.deployment} names no least GSM8K accuracy", word="misconfigured")
    if facts.model_set == "tiny":
        return passed(name, "not applicable: tiny checkpoints solve nothing, their text is computed", {"judged": "no"})
    if least == 0:
        return passed(name, "not judged: random weights solve nothing (least accuracy 0)", {"judged": "no"})
    right, asked = _score(facts, main_requests(facts))
    if not asked:
        return failed(name, "no GSM8K question was asked", word="misconfigured")
    control, control_asked = _score(facts, requests_of(facts, "reference"))
    figures: Figures = {"gsm8k_right": right, "gsm8k_asked": asked, "gsm8k_reference_right": control}
    shown = f"control, without a drafter: {control} of {control_asked}" if control_asked else "no control was driven"
    text = f"{right} of {asked} questions answered right, {least:g} of them must be; {shown}"
    if reaches(right, asked, least):
        return passed(name, text, figures)
    if control_asked and not reaches(control, control_asked, least):
        return failed(name, f"{text}, so it is not the drafter", figures)
    return failed(name, text, figures)


def _score(facts: RunFacts, requests: tuple[RequestFacts, ...]) -> tuple[int, int]:
    """Right answers, and questions asked."""
    asked = [request for request in requests if request.prompt_id in facts.expected_answers]
    return sum(is_right(request.text, facts.expected_answers[request.prompt_id]) for request in asked), len(asked)
