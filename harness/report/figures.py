"""The figures table that every report shows: measured, expected, tolerance, inside or not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.report.plaintext import one_line
from harness.result import Result

# Counts computed in a different order may differ in the last bit; that is still exact.
_EXACT_RTOL = 1e-9
_LONGEST_LIST = 8


@dataclass(frozen=True)
class FigureRow:
    """One line of the table, as text. ``ok`` None: shown, but nothing was expected of it."""

    name: str
    measured: str
    expected: str
    tolerance: str
    ok: bool | None


@dataclass(frozen=True)
class _Tolerance:
    rtol: float | None
    lower_only: bool

    def __str__(self) -> str:
        if self.rtol is None:
            return "exact"
        return f"{'-' if self.lower_only else '±'}{100 * self.rtol:g} %"

    def accepts(self, measured: float, expected: float) -> bool:
        if self.lower_only and measured >= expected:
            return True
        return math.isclose(measured, expected, rel_tol=0, abs_tol=abs(expected) * (self.rtol or _EXACT_RTOL))


def figure_rows(result: Result) -> tuple[FigureRow, ...]:
    """The rows of ``result``, in the order of its figures; expected values that were never measured come last.

    Lists become ``name[0]``, mappings ``name.key``. A float is held to the baseline's ``rtol`` and ``sided``; an
    integer, or anything under an ``exact`` baseline, to equality. The table illustrates; the checks decide.
    """
    expected = _flat(result.expected)
    measured = _flat(result.figures, keep_whole=frozenset(result.figures) - frozenset(result.expected))
    names = [*measured, *(name for name in expected if name not in measured)]
    return tuple(_row(name, measured, expected, result.baseline) for name in names)


def number(value: object) -> str:
    """A figure as text: integers whole, floats to four places, None as ``undefined`` (it is not 0)."""
    if value is None:
        return "undefined"
    if isinstance(value, float):
        return f"{value:.4f}" if abs(value) < 10_000 else f"{value:.6g}"
    return one_line(str(value))


def facts_line(values: Mapping[str, Any]) -> str:
    """``vllm_version 0.32.0 · platform cpu``: the scalar entries of a mapping on one line."""
    return " · ".join(f"{name} {one_line(str(value))}" for name, value in scalars(values).items())


def scalars(values: Mapping[str, Any]) -> dict[str, str]:
    """The entries of a mapping that fit on a line, as text: scalars, and short lists of them. None is left out."""
    shown: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, str | int | float):
            shown[one_line(name)] = number(value)
        elif isinstance(value, list | tuple) and 0 < len(value) <= _LONGEST_LIST:
            if all(isinstance(item, str | int | float) for item in value):
                shown[one_line(name)] = ", ".join(number(item) for item in value)
            elif all(isinstance(item, Mapping) for item in value):
                shown[one_line(name)] = "; ".join(facts_line(item) for item in value)
        elif isinstance(value, Mapping) and value:
            shown[one_line(name)] = facts_line(value)
    return {name: text for name, text in shown.items() if text}


def _flat(values: Mapping[str, Any], keep_whole: frozenset[str] = frozenset()) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{key}": item for key, item in _flat(value).items()}
        elif isinstance(value, list | tuple):
            if name in keep_whole and len(value) > _LONGEST_LIST:
                flat[name] = _span(value)
            else:
                flat |= _flat({f"{name}[{index}]": item for index, item in enumerate(value)})
        else:
            flat[name] = value
    return flat


def _span(values: list[Any] | tuple[Any, ...]) -> str:
    numbers = [value for value in values if isinstance(value, int | float)]
    if len(numbers) < len(values):
        return f"{len(values)} values"
    return f"{len(values)} values, {number(min(numbers))} to {number(max(numbers))}"


def _row(name: str, measured: Mapping[str, Any], expected: Mapping[str, Any], baseline: Mapping[str, Any]) -> FigureRow:
    found = number(measured[name]) if name in measured else "not measured"
    if expected.get(name) is None:
        return FigureRow(one_line(name), found, "", "", None)
    want = expected[name]
    tolerance = _tolerance(want, baseline)
    return FigureRow(one_line(name), found, number(want), str(tolerance), _inside(measured.get(name), want, tolerance))


def _tolerance(expected: object, baseline: Mapping[str, Any]) -> _Tolerance:
    rtol = baseline.get("rtol")
    if not isinstance(expected, float) or baseline.get("exact") or not isinstance(rtol, int | float):
        return _Tolerance(None, lower_only=False)
    return _Tolerance(float(rtol), lower_only=baseline.get("sided") == "lower")


def _inside(measured: object, expected: object, tolerance: _Tolerance) -> bool:
    if isinstance(measured, int | float) and isinstance(expected, int | float):
        return tolerance.accepts(measured, expected)
    return measured == expected
