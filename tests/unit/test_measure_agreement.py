"""Shares in whole numbers, rearrangements in a log, and answers to GSM8K problems."""

from __future__ import annotations

import pytest

from harness.facts import LimitFacts
from harness.measure.agreement import agreement, reaches, within_limits
from harness.measure.gsm8k import given_answer, is_right, right_answer
from harness.measure.rearrangements import count_rearrangements
from tests.unit import paired_facts as pf


@pytest.mark.parametrize(
    ("part", "whole", "least", "reached"),
    [(66, 100, 0.66, True), (65, 100, 0.66, False), (29, 100, 0.29, True), (59, 100, 0.6, False), (0, 0, 0.0, False)],
)
def test_a_share_is_reached_in_whole_numbers(part: int, whole: int, least: float, reached: bool) -> None:
    assert reaches(part, whole, least) is reached


def test_a_prompt_that_only_one_side_answered_is_missing() -> None:
    found = agreement([pf.answer(0, "reference"), pf.answer(1, "reference")], [pf.answer(1, "main")])
    assert found.missing == ("p0",)
    assert not within_limits(found, LimitFacts(), exact=False)


def test_nothing_compared_is_within_no_limit() -> None:
    assert not within_limits(agreement([], []), LimitFacts(), exact=False)


def test_an_exact_run_allows_no_difference_and_a_limited_one_its_share() -> None:
    found = agreement([pf.answer(0, "reference")], [pf.answer(0, "main", (*pf.TOKENS[:-1], 7))])
    assert not within_limits(found, LimitFacts(token_match=0.8), exact=True)
    assert within_limits(found, LimitFacts(token_match=0.8), exact=False)
    assert not within_limits(found, LimitFacts(token_match=0.95), exact=False)
    assert not within_limits(found, LimitFacts(identical=0.6), exact=False)


def test_profiling_runs_are_no_rearrangements() -> None:
    log = (
        "(Worker_TP0_EP0 pid=7) INFO 11-30 17:00:00 [eplb_state.py:787] Rearranging experts sync mode (profile)...\n"
        "(Worker_TP0_EP0 pid=7) INFO 11-30 17:00:01 [eplb_state.py:787] Rearranging experts (async mode) ...\n"
        "(Worker_TP0_EP0 pid=7) INFO 11-30 17:00:02 [eplb_state.py:959] Rearranged experts   in 0.02 s.\n"
        "(Worker_TP0_EP0 pid=7) INFO 11-30 17:00:03 [eplb_state.py:787] Rearranging experts sync mode ...\n"
    )
    assert count_rearrangements(log) == 2
    assert count_rearrangements("") == 0


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (" 3 + 4 = 7, so there are 7 apples.", "7"),
        (" She pays $1,234.50 in all.", "1234.50"),
        (" 5 left.\n#### 12\nQuestion: 99", "12"),
        (" It is 8.\n\nQuestion: What is 3?\nAnswer: 4", "8"),
        (" -3", "-3"),
        (" none", None),
    ],
)
def test_the_answer_of_a_completion_is_its_own_last_number(text: str, answer: str | None) -> None:
    assert given_answer(text) == answer


def test_answers_are_compared_as_numbers() -> None:
    assert is_right("the total is 5.00", "5")
    assert not is_right("the total is 6", "5")
    assert not is_right(None, "5")


def test_the_right_answer_stands_behind_its_mark() -> None:
    assert right_answer("2 * 600 = 1,200\n#### 1,200") == "1200"
    assert right_answer("no mark 12") is None
