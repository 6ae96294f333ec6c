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
    nothing = _solves_nothing(facts, least)
    if facts.gsm8k_through == "lm-eval":
        return _through_lm_eval(name, facts, least, nothing)
    if nothing is not None:
        return passed(name, f"not judged: {nothing}", {"judged": "no"})
    main, control = _score(facts, main_requests(facts)), _score(facts, requests_of(facts, "reference"))
    if not main[1]:
        return failed(name, "no GSM8K question was asked", word="misconfigured")
    return _judged(name, main, control, least)


def _solves_nothing(facts: RunFacts, least: float) -> str | None:
    if facts.model_set == "tiny":
        return "tiny checkpoints solve nothing, their text is computed"
    return "random weights solve nothing (least accuracy 0)" if least == 0 else None


def _through_lm_eval(name: str, facts: RunFacts, least: float, nothing: str | None) -> CheckResult:
    """The same over what lm-eval counted, which must be there even where it is not judged."""
    found = {one.stage: one for one in facts.evaluations}
    main, control = found.get("main"), found.get("reference")
    if main is None or not main.asked:
        return failed(name, "lm-eval was asked for and evaluated nothing", word="infra")
    by = f"lm-eval {main.lm_eval_version}, {main.task}"
    figures: Figures = {"exact_match": main.exact_match, "exact_match_strict": main.exact_match_strict}
    if nothing is not None:
        said = f"{by}: {main.right} of {main.asked} questions answered right, not judged: {nothing}"
        return passed(name, said, figures | {"judged": "no"})
    result = _judged(name, (main.right, main.asked), (control.right, control.asked) if control else (0, 0), least)
    return result.model_copy(update={"summary": f"{by}: {result.summary}", "figures": result.figures | figures})


def _judged(name: str, main: tuple[int, int], control: tuple[int, int], least: float) -> CheckResult:
    """``main`` and ``control``: right answers, and questions asked."""
    figures: Figures = {"gsm8k_right": main[0], "gsm8k_asked": main[1], "gsm8k_reference_right": control[0]}
    shown = f"control, without a drafter: {control[0]} of {control[1]}" if control[1] else "no control was driven"
    text = f"{main[0]} of {main[1]} questions answered right, {least:g} of them must be; {shown}"
    if reaches(*main, least):
        return passed(name, text, figures)
    if control[1] and not reaches(*control, least):
        return failed(name, f"{text}, so it is not the drafter", figures)
    return failed(name, text, figures)


def _score(facts: RunFacts, requests: tuple[RequestFacts, ...]) -> tuple[int, int]:
    """Right answers, and questions asked."""
    asked = [request for request in requests if request.prompt_id in facts.expected_answers]
    return sum(is_right(request.text, facts.expected_answers[request.prompt_id]) for request in asked), len(asked)
