"""The checks of one server against its reference: each passes on a good run and fails on the fault that it is for."""

from __future__ import annotations

import pytest

from harness.checks.registry import CHECKS, judge
from harness.deployments import DEPLOYMENTS, PAIRED_CHECKS
from harness.facts import CheckResult, EvaluationFacts, ExpectedText, LimitFacts, RequestFacts, RunFacts, Sample
from tests.unit import check_facts as cf
from tests.unit import paired_facts as pf

OTHER = (7, *pf.TOKENS[1:])
FOREIGN = tuple(range(10))


def fails(name: str, facts: RunFacts, *words: str, verdict: str = "regression") -> CheckResult:
    result = judge(name, facts)
    told = " ".join((result.summary, *result.evidence))
    assert not result.ok, told
    assert result.verdict == verdict, told
    for word in words:
        assert word in told, told
    return result


def hub(
    total: int,
    alike: int,
    *,
    control_alike: int | None = None,
    token_match: float | None = None,
    identical: float | None = None,
) -> RunFacts:
    """A hub run in which ``alike`` of ``total`` open-ended answers are the reference's; the others share nothing."""
    facts = pf.passing(tiny=False)
    main = [pf.answer(i, "main", pf.TOKENS if i < alike else FOREIGN) for i in range(total)]
    facts = pf.with_answers(facts, "main", main)
    facts = pf.with_answers(facts, "reference", [pf.answer(i, "reference") for i in range(total)])
    if control_alike is not None:
        control = [pf.answer(i, "control", pf.TOKENS if i < control_alike else FOREIGN) for i in range(total)]
        facts = pf.with_answers(facts, "control", control)
    return facts.model_copy(update={"limits": LimitFacts(token_match=token_match, identical=identical)})


def test_every_check_that_a_deployment_names_exists() -> None:
    for deployment in DEPLOYMENTS.values():
        assert set(deployment.checks) <= set(CHECKS), deployment.name


@pytest.mark.parametrize("name", PAIRED_CHECKS)
@pytest.mark.parametrize("tiny", [True, False], ids=["tiny", "hub"])
def test_a_good_run_passes_every_check(name: str, tiny: bool) -> None:
    result = judge(name, pf.passing(tiny=tiny))
    assert result.ok, result.summary


def test_a_reference_that_drafts_is_none() -> None:
    drafts = pf.configured("mtp", 1)["effective"]
    fails(
        "effective_config", cf.with_server(pf.passing(), "reference-0", effective=drafts), "reference-0", "runs 'mtp'"
    )


def test_a_run_that_asked_for_model_runner_v2_and_got_the_first_one_is_no_pass() -> None:
    facts = pf.passing()
    server = facts.servers[0]
    asked = server.requested.model_copy(update={"model_runner_v2": True})
    got = {flag: server.effective.model_copy(update={"model_runner_v2": flag}) for flag in (True, False)}
    assert judge("effective_config", cf.with_server(facts, "server-0", requested=asked, effective=got[True])).ok
    first = cf.with_server(facts, "server-0", requested=asked, effective=got[False])
    fails("effective_config", first, "server-0 was asked for model_runner_v2 = True and runs False")


def test_an_engine_whose_drafter_is_off_is_named_although_the_other_drafts() -> None:
    idle = pf.merged(pf.page(4, 10, 3, "0", 10.0), pf.page(0, 0, 3, "1", 10.0))
    first = pf.passing().servers[0].windows[0]
    facts = cf.with_server(pf.passing(), "server-0", windows=(first, idle))
    fails("drafts_on_every_engine", facts, "server-0 engine 1", "0 drafts")
    fails("exact_counts", facts, "computed 40 drafts")


def test_an_engine_that_shows_no_counters_at_all_is_missed() -> None:
    alone = (pf.page(0, 0, 0, "0", 0.0), pf.page(4, 10, 6, "0", 10.0))
    fails("drafts_on_every_engine", cf.with_server(pf.passing(), "server-0", windows=alone), "shows 1 engines, 2 were")


@pytest.mark.parametrize("prompts", [2, 4])
def test_no_more_prompts_than_two_for_each_rank_prove_nothing(prompts: int) -> None:
    facts = pf.passing().model_copy(update={"prompts": prompts})
    fails("more_prompts_than_ranks", facts, f"{prompts} prompts for 2 ranks", verdict="misconfigured")


@pytest.mark.parametrize("stage", ["main", "reference"])
def test_one_wrong_token_of_a_tiny_answer_is_noticed_in_either_run(stage: str) -> None:
    answers = [pf.answer(i, stage, OTHER if i == 3 else pf.TOKENS) for i in range(pf.PROMPTS)]  # type: ignore[arg-type]
    facts = pf.with_answers(pf.passing(), stage, answers)  # type: ignore[arg-type]
    fails("output_as_computed", facts, f"{stage} p3 at position 0: expected token 100, got token 7")


def test_a_tiny_run_must_match_its_reference_to_the_last_token() -> None:
    answers = [pf.answer(i, "main", (*pf.TOKENS[:-1], 7)) for i in range(pf.PROMPTS)]
    facts = pf.with_answers(pf.passing(), "main", answers)
    result = fails("token_match", facts, "54 of 60 positions", "at position 9: expected token 109, got token 7")
    assert result.figures["shortest_common_prefix"] == 9


def test_a_divergence_shows_the_margin_of_a_reference_that_gave_one() -> None:
    def listed(request: RequestFacts) -> RequestFacts:
        likeliest = tuple(((token, -0.5), (token + 1, -0.75)) for token in request.token_ids or ())
        return request.model_copy(update={"top_logprobs": likeliest})

    facts = pf.with_answers(
        hub(10, 10, token_match=0.99), "main", [pf.answer(i, "main", (100, 102)) for i in range(10)]
    )
    facts = pf.with_answers(facts, "reference", [listed(pf.answer(i, "reference", (100, 101))) for i in range(10)])
    said = "p0 at position 1: expected token 101, got token 102; margin of the reference 0.2500 nats"
    fails("token_match", facts, said)
    texts = tuple(
        ExpectedText(prompt_id=f"p{i}", token_ids=(100, 101), source="reference") for i in range(facts.prompts)
    )
    again = facts.model_copy(update={"expected_text": texts})
    fails("output_matches_reference", again, "margin of the reference 0.2500 nats")


def test_a_hub_run_may_stray_as_far_as_its_limit() -> None:
    assert judge("token_match", hub(10, 8, token_match=0.8)).ok
    fails("token_match", hub(10, 7, token_match=0.8), "70 of 100 positions", "p7 at position 0")


def test_66_of_100_reach_a_threshold_of_0_66() -> None:
    result = judge("identical_outputs", hub(100, 66, identical=0.66))
    assert result.ok, result.summary


def test_59_of_100_do_not_reach_0_60_and_the_control_is_printed() -> None:
    facts = hub(100, 59, control_alike=97, identical=0.60)
    fails("identical_outputs", facts, "59 of 100 outputs", "control, the reference against itself: 97 of 100")


def test_a_reference_that_does_not_agree_with_itself_is_inconclusive_and_no_regression() -> None:
    facts = hub(100, 59, control_alike=40, identical=0.60)
    fails("identical_outputs", facts, "inconclusive", "40 of 100", verdict="infra")


def test_a_control_that_was_not_driven_is_said_and_never_excuses_the_run() -> None:
    fails("identical_outputs", hub(100, 59, identical=0.60), "no control was driven")


def test_only_the_first_tokens_of_an_answer_are_compared_where_the_deployment_says_so() -> None:
    late = [pf.answer(i, "main", (*pf.TOKENS[:-1], 7)) for i in range(10)]
    facts = pf.with_answers(hub(10, 10, identical=0.6), "main", late)
    fails("identical_outputs", facts, "0 of 10")
    limits = LimitFacts(identical=0.6, compared_tokens=9)
    assert judge("identical_outputs", facts.model_copy(update={"limits": limits})).ok


def test_all_deterministic_prompts_must_match_whatever_the_total() -> None:
    facts = hub(100, 100, identical=0.6)
    main = [pf.answer(i, "main", OTHER if i == 5 else pf.TOKENS, open_ended=i > 9) for i in range(100)]
    facts = pf.with_answers(facts, "main", main)
    assert judge("identical_outputs", facts).ok
    fails("deterministic_all_match", facts, "9 of 10 deterministic prompts", "p5 at position 0")


def test_a_declined_reference_is_said_and_judged_by_nobody() -> None:
    facts = pf.with_answers(pf.passing(), "reference", []).model_copy(update={"reference_declined": True})
    assert judge("token_match", facts).figures["judged"] == "no"


def test_a_reference_that_is_missing_without_being_declined_is_no_pass() -> None:
    kept = tuple(request for request in pf.passing().requests if request.stage == "main")
    fails("token_match", pf.passing().model_copy(update={"requests": kept}), "have no answer", verdict="infra")


def balanced(*rearranged: int) -> RunFacts:
    pages = (
        pf.page(0, 0, 0, "0", 0.0),
        pf.page(10, 20, 3, "0", 10.0),
        pf.page(20, 40, 5, "0", 20.0),
        pf.page(22, 60, 6, "0", 30.0),
    )
    return cf.with_server(pf.passing(), "server-0", windows=pages, rearranged=rearranged)


def test_rearrangements_are_counted_and_acceptance_is_told_apart_around_the_first() -> None:
    result = judge("eplb_rearranged", balanced(0, 0, 1, 4))
    assert result.ok, result.summary
    assert result.figures["server-0_rearrangements"] == 4
    assert result.figures["server-0_acceptance_length_before"] == 1.5
    assert result.figures["server-0_acceptance_length_after"] == 1.1


def test_the_step_of_the_first_rearrangement_comes_from_the_engines_own_count_of_steps() -> None:
    steps = [
        page.model_copy(update={"samples": (*page.samples, sample(50 + 40 * index))})
        for index, page in enumerate(balanced(0, 0, 1, 4).servers[0].windows)
    ]
    facts = cf.with_server(balanced(0, 0, 1, 4), "server-0", windows=tuple(steps))
    figures = judge("eplb_rearranged", facts).figures
    assert figures["server-0_engine_steps"] == 120
    assert figures["server-0_first_rearrangement_by_step"] == 130


def sample(steps: int) -> Sample:
    return Sample(name="vllm:iteration_tokens_total_count", labels={"engine": "0"}, value=steps)


def test_rearrangements_before_the_run_leave_nothing_to_compare_with() -> None:
    result = judge("eplb_rearranged", balanced(2, 3, 4, 5))
    assert result.ok
    assert "no drafts before the first" in result.summary


@pytest.mark.parametrize("counts", [(0, 0, 0, 0), (3, 3, 3, 3)])
def test_a_step_interval_that_never_comes_is_no_pass(counts: tuple[int, ...]) -> None:
    fails("eplb_rearranged", balanced(*counts), "no rearrangement on server-0", f"names {counts[0]} before it")


def test_a_run_without_load_balancing_cannot_show_a_rearrangement() -> None:
    fails("eplb_rearranged", pf.passing(), "no server with load balancing", verdict="misconfigured")


def solved(right: int, reference_right: int, asked: int = 100) -> RunFacts:
    def answers(stage: str, good: int) -> list[object]:
        return [
            pf.answer(i, stage).model_copy(update={"text": f" so it is {7 if i < good else 8}.\nQuestion: 9"})  # type: ignore[arg-type]
            for i in range(asked)
        ]

    facts = pf.with_answers(pf.passing(tiny=False), "main", answers("main", right))  # type: ignore[arg-type]
    facts = pf.with_answers(facts, "reference", answers("reference", reference_right))  # type: ignore[arg-type]
    return facts.model_copy(update={"expected_answers": {f"p{i}": "7" for i in range(asked)}})


def test_the_share_of_solved_problems_is_judged_and_the_control_is_printed() -> None:
    assert judge("gsm8k_threshold", solved(60, 70)).ok
    result = fails("gsm8k_threshold", solved(59, 70), "59 of 100", "control, without a drafter: 70 of 100")
    assert "not the drafter" not in result.summary
    fails("gsm8k_threshold", solved(59, 50), "so it is not the drafter")


def through_lm_eval(right: int, reference_right: int | None = None, **limits: float) -> RunFacts:
    counted = {"main": right} | ({} if reference_right is None else {"reference": reference_right})
    evaluations = tuple(
        EvaluationFacts(
            stage=stage,  # type: ignore[arg-type]
            task="local_gsm8k",
            right=count,
            asked=100,
            exact_match=count / 100,
            exact_match_strict=0.0,
            lm_eval_version="0.4.13",
            output="results.json",
        )
        for stage, count in counted.items()
    )
    changes = {"gsm8k_through": "lm-eval", "evaluations": evaluations, "limits": LimitFacts(**limits)}
    return pf.passing(tiny=False).model_copy(update=changes)


def test_what_lm_eval_counted_is_held_to_the_same_threshold() -> None:
    result = judge("gsm8k_threshold", through_lm_eval(60, gsm8k=0.6))
    assert result.ok
    assert "lm-eval 0.4.13, local_gsm8k: 60 of 100 questions" in result.summary
    assert result.figures["exact_match"] == 0.6
    fails("gsm8k_threshold", through_lm_eval(59, 70, gsm8k=0.6), "59 of 100", "control, without a drafter: 70 of 100")
    fails("gsm8k_threshold", through_lm_eval(59, 50, gsm8k=0.6), "so it is not the drafter")


@pytest.mark.parametrize(("tiny", "limit"), [(False, 0.0), (True, 0.6)])
def test_what_can_solve_nothing_is_counted_by_lm_eval_and_not_judged(tiny: bool, limit: float) -> None:
    facts = through_lm_eval(0, gsm8k=limit).model_copy(update={"model_set": "tiny" if tiny else "hub"})
    result = judge("gsm8k_threshold", facts)
    assert result.ok
    assert "0 of 100 questions answered right, not judged" in result.summary
    assert result.figures["judged"] == "no"


def test_an_evaluation_that_was_asked_for_and_is_not_there_is_no_pass() -> None:
    facts = through_lm_eval(60, gsm8k=0.0).model_copy(update={"evaluations": ()})
    fails("gsm8k_threshold", facts, "evaluated nothing", verdict="infra")


def test_a_threshold_of_zero_is_said_to_judge_nothing() -> None:
    facts = pf.passing(tiny=False).model_copy(update={"limits": LimitFacts(gsm8k=0.0)})
    assert judge("gsm8k_threshold", facts).figures["judged"] == "no"


def test_a_run_that_asked_no_question_is_no_pass() -> None:
    fails("gsm8k_threshold", pf.passing(tiny=False), "no GSM8K question", verdict="misconfigured")


@pytest.mark.parametrize(("asked", "ok"), [(1.5, True), (1.36, True), (1.64, True), (1.34, False), (1.66, False)])
def test_the_synthetic_sampler_must_come_within_its_limit(asked: float, ok: bool) -> None:
    limits = LimitFacts(synthetic_length=asked, synthetic_within=0.15)
    result = judge("synthetic_acceptance", pf.passing().model_copy(update={"limits": limits}))
    assert result.ok is ok, result.summary
