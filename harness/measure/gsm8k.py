"""GSM8K answers: the right one out of a solution, and the one that a model arrived at."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

# A base model goes on with a question of its own once it has answered.
_NEXT_QUESTION = re.compile(r"\n\s*Question:")
_MARKED = re.compile(r"####\s*(?P<number>-?[\d,]*\.?\d+)")
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def right_answer(solution: str) -> str | None:
    """The number behind ``####`` at the end of a solution, without thousands separators; None if there is none."""
    found = _MARKED.findall(solution)
    return found[-1].replace(",", "") if found else None


def given_answer(text: str) -> str | None:
    """The number a completion ends on: the marked one, else the last of its own answer; None without any."""
    own = _NEXT_QUESTION.split(text, maxsplit=1)[0]
    numbers = _MARKED.findall(own)[:1] or _NUMBER.findall(own)[-1:]
    return numbers[0].replace(",", "") if numbers else None


def is_right(text: str | None, answer: str) -> bool:
    """Equal as numbers: 5 and 5.00 are one answer."""
    given = given_answer(text or "")
    if given is None:
        return False
    try:
        return Decimal(given) == Decimal(answer)
    except InvalidOperation:
        return False
