"""What a soak counts and prints."""

from __future__ import annotations

import io
from collections import Counter

from rich.console import Console

from harness.falsify.soak import Soaked, print_soak
from harness.verdict import Verdict
from tests.unit.test_baselines import SHIPPED


def shown(soaked: Soaked) -> str:
    stream = io.StringIO()
    print_soak(soaked, SHIPPED, Console(file=stream, width=200))
    return stream.getvalue()


def test_nothing_run_is_not_clean():
    assert not Soaked("mtp-pd").clean


def test_one_alarm_among_passes_is_reported_with_its_reason():
    soaked = Soaked("mtp-pd")
    for _ in range(3):
        soaked.count(Verdict.PASS, "All checks passed.", {"drafts": 289.0})
    assert soaked.clean
    soaked.count(Verdict.REGRESSION, "kv_moved: nothing moved", {"drafts": 273.0})
    assert not soaked.clean
    text = shown(soaked)
    assert "3 pass, 1 regression" in text
    assert "kv_moved: nothing moved" in text
    assert soaked.figures["drafts"] == [289.0, 289.0, 289.0, 273.0]


def test_the_spread_of_a_figure_is_relative_to_its_median():
    soaked = Soaked("mtp-pd", verdicts=Counter({Verdict.PASS: 3}), figures={"median_s": [0.2, 0.25, 0.3]})
    (row,) = [line for line in shown(soaked).splitlines() if "median_s" in line]
    assert row.split() == ["median_s", "3", "0.2", "0.25", "0.3", "40.00"]


def test_every_baseline_is_shown_with_what_it_can_see():
    text = shown(Soaked("mtp-pd", verdicts=Counter({Verdict.PASS: 1})))
    assert "eagle3-pd/hub" in text
    assert "mtp-pd/tiny" in text
