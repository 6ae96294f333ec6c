"""The arithmetic of tolerances."""

from __future__ import annotations

import pytest

from harness.baselines import load
from harness.falsify.power import power, power_of, variance
from tests.unit.test_baselines import SHIPPED


def test_one_draft_token_is_a_coin():
    assert variance([0.7]) == pytest.approx(0.7 * 0.3)


def test_a_drafter_that_is_always_or_never_right_has_no_noise():
    assert variance([1, 1, 1]) == pytest.approx(0)
    assert variance([0, 0, 0]) == 0


def test_the_variance_of_three_positions_is_that_of_their_distribution():
    # P(0) = 0.3, P(1) = 0.2, P(2) = 0.1, P(3) = 0.4
    mean = 0.2 + 2 * 0.1 + 3 * 0.4
    assert variance([0.7, 0.5, 0.4]) == pytest.approx(0.2 + 4 * 0.1 + 9 * 0.4 - mean**2)


def test_four_times_the_drafts_halve_the_error_and_see_smaller_effects():
    few = power("k", 1000, 1.8, [0.8], 0.05, two_sided=True)
    many = power("k", 4000, 1.8, [0.8], 0.05, two_sided=True)
    assert many.standard_error == pytest.approx(few.standard_error / 2)
    assert many.false_alarm < few.false_alarm
    assert many.detectable < few.detectable


def test_nothing_smaller_than_the_tolerance_is_detectable():
    assert power("k", 10**9, 1.8, [0.8], 0.05, two_sided=True).detectable == pytest.approx(0.05, abs=1e-3)


def test_every_hub_baseline_in_the_file_has_its_power_and_exact_ones_need_none():
    for entry in load(SHIPPED):
        found = power_of(entry)
        assert (found is None) == (entry.exact or (entry.per_position is None and (entry.acceptance_length or 0) > 2))
        if found is not None:
            assert 0.05 < found.detectable < 0.1
            assert found.false_alarm < 0.05
