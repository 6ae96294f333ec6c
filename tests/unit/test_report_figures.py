from __future__ import annotations

import math

import pytest

from harness.report.figures import figure_rows, number, scalars
from tests.unit.report_inputs import result


def test_lists_become_positions_and_each_is_held_to_the_tolerance() -> None:
    rows = {row.name: row for row in figure_rows(result())}
    assert [(row.tolerance, row.ok) for row in rows.values()] == [
        ("±5 %", False),
        ("±5 %", True),
        ("±5 %", False),
        ("", None),
    ]
    assert list(rows) == ["acceptance_length", "per_position[0]", "per_position[1]", "drafts"]


def test_an_exact_baseline_ignores_a_tolerance_and_counts_are_always_exact() -> None:
    exact = result(figures={"al": 2.6, "n": 30}, expected={"al": 2.61, "n": 30}, baseline={"exact": True, "rtol": 0.05})
    assert [(row.tolerance, row.ok) for row in figure_rows(exact)] == [("exact", False), ("exact", True)]
    counts = result(figures={"n": 31}, expected={"n": 30}, baseline={"rtol": 0.5})
    assert [row.ok for row in figure_rows(counts)] == [False]


def test_a_lower_sided_tolerance_lets_more_acceptance_pass() -> None:
    for measured, ok in ((9.0, True), (2.5, True), (2.4, False)):
        lower = result(figures={"al": measured}, expected={"al": 2.6}, baseline={"rtol": 0.05, "sided": "lower"})
        assert [(row.tolerance, row.ok) for row in figure_rows(lower)] == [("-5 %", ok)]


@pytest.mark.parametrize(
    ("figures", "shown"), [({}, "not measured"), ({"al": None}, "undefined"), ({"al": math.nan}, "nan")]
)
def test_a_value_that_is_not_there_is_never_inside(figures: dict[str, float | None], shown: str) -> None:
    (row,) = figure_rows(result(figures=figures, expected={"al": 2.6}))
    assert (row.measured, row.ok) == (shown, False)


def test_a_long_list_that_nothing_is_expected_of_is_shown_as_its_span() -> None:
    (row,) = figure_rows(result(figures={"windows": [2.0] * 11 + [2.5]}, expected={}))
    assert row.measured == "12 values, 2.0000 to 2.5000"


def test_numbers_are_shown_whole_or_to_four_places() -> None:
    assert [number(value) for value in (30, 2.63333, None, 6491797)] == ["30", "2.6333", "undefined", "6491797"]


def test_only_what_fits_on_a_line_is_a_scalar() -> None:
    assert scalars({"a": 1, "b": None, "c": ["x", "y"], "d": list(range(99)), "e": {"f": 2}, "g": [{"n": "G"}]}) == {
        "a": "1",
        "c": "x, y",
        "e": "f 2",
        "g": "n G",
    }
