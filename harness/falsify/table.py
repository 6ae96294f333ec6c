"""The outcomes as tables: for the terminal, and as Markdown for docs/falsify.md."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.falsify.catalogue import NOT_EXPRESSIBLE
from harness.falsify.mutation import Mutation
from harness.falsify.outcome import Outcome, problem_of
from harness.falsify.session import BY_NAME
from harness.falsify.weaken import Weakened

_HEAD = ("mutation", "deployment", "expected", "caught by", "as hub", "verdict", "s", "")
_WEAK_HEAD = ("check", "falsify then reports", "caught by it alone", "alone, as hub")
_SHOWN = 2


def print_outcomes(outcomes: Sequence[Outcome], console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), highlight=False)
    for head in _HEAD:
        table.add_column(head, overflow="fold")
    for row in _rows(outcomes):
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
    console.print(Text(summary(outcomes)), soft_wrap=True)
    for outcome in outcomes:
        if (problem := problem_of(BY_NAME[outcome.name], outcome)) is not None:
            console.print(Text(f"{outcome.name}: {problem} ({outcome.run})"), soft_wrap=True)


def print_weakened(weakened: Sequence[Weakened], console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), highlight=False)
    for head in _WEAK_HEAD:
        table.add_column(head, overflow="fold")
    for one in weakened:
        table.add_row(*(Text(cell) for cell in _weak_row(one)))
    console.print(table)
    uncovered = [one.check for one in weakened if not one.noticed]
    text = f"Not covered: {', '.join(uncovered)}" if uncovered else "Each check, made always true, makes falsify fail."
    console.print(Text(text))


def summary(outcomes: Sequence[Outcome]) -> str:
    mutations = [outcome for outcome in outcomes if BY_NAME[outcome.name].family != "control"]
    right = sum(problem_of(BY_NAME[outcome.name], outcome) is None for outcome in mutations)
    controls = [outcome for outcome in outcomes if BY_NAME[outcome.name].family == "control"]
    passed = sum(problem_of(BY_NAME[outcome.name], outcome) is None for outcome in controls)
    seconds = sum(outcome.seconds for outcome in outcomes)
    return (
        f"{right} of {len(mutations)} mutations caught as declared, {passed} of {len(controls)} clean controls passed, "
        f"{seconds:.0f} s"
    )


def as_markdown(outcomes: Sequence[Outcome], weakened: Sequence[Weakened]) -> str:
    """The measured part of docs/falsify.md."""
    lines = [summary(outcomes), "", "| " + " | ".join(("what is broken", *_HEAD[:-1])) + " |"]
    lines.append("|" + "---|" * len(_HEAD))
    for outcome, row in zip(outcomes, _rows(outcomes), strict=True):
        lines.append("| " + " | ".join((BY_NAME[outcome.name].what, f"`{row[0]}`", *row[1:-1])) + " |")
    lines += ["", "| " + " | ".join(_WEAK_HEAD) + " |", "|" + "---|" * len(_WEAK_HEAD)]
    lines += ["| " + " | ".join(_weak_row(one)) + " |" for one in weakened]
    lines += ["", "| not expressible here | why |", "|---|---|"]
    lines += [f"| {what} | {why} |" for what, why in NOT_EXPRESSIBLE]
    return "\n".join(lines) + "\n"


def _rows(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    return [
        (
            outcome.name,
            BY_NAME[outcome.name].deployment,
            BY_NAME[outcome.name].caught_by or "pass",
            _list(outcome.catchers, BY_NAME[outcome.name].caught_by) or "-",
            "not judged"
            if outcome.hub_failed is None
            else _list(outcome.hub_failed, BY_NAME[outcome.name].hub_caught_by) or "passes",
            outcome.verdict.value,
            f"{outcome.seconds:.1f}",
            "" if problem_of(BY_NAME[outcome.name], outcome) is None else "WRONG",
        )
        for outcome in outcomes
    ]


def _weak_row(one: Weakened) -> tuple[str, ...]:
    return one.check, _list(one.noticed) or "NOTHING", _list(one.alone) or "-", _list(one.alone_as_hub) or "-"


def _list(names: Sequence[str], expected: str = "") -> str:
    """A few of ``names``, the expected one first."""
    shown = sorted(names, key=lambda name: name != expected)[:_SHOWN]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" (+{more})" if more else "")


def print_catalogue(mutations: Sequence[Mutation], console: Console) -> None:
    for mutation in mutations:
        expected = mutation.caught_by or "must pass"
        text = f"{mutation.name} ({mutation.deployment}, {mutation.family}): {mutation.what}. Caught by {expected}."
        console.print(Text(text), soft_wrap=True)
