"""pytest's ``-k`` and ``-m`` expressions, answered as far as they can be without collecting the tests."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from harness.ci.audit.marks import TestCase

Answer = bool | None


@dataclass(frozen=True)
class Term:
    """A name in an expression; ``negated`` counts the ``not`` in front of it and around it."""

    name: str
    negated: bool


@dataclass(frozen=True)
class _Not:
    inner: Expression


@dataclass(frozen=True)
class _Both:
    kind: str
    parts: tuple[Expression, ...]


@dataclass(frozen=True)
class _Name:
    name: str


Expression = _Not | _Both | _Name


class BadExpression(ValueError):
    """Not an expression that pytest would take."""


def parse(text: str) -> Expression:
    """The expression tree; `BadExpression` for text that pytest itself would refuse."""
    tokens = re.findall(r"\(|\)|[^\s()]+", text)
    expression, rest = _either(tokens)
    if rest:
        raise BadExpression(f"{rest[0]!r} is left over in {text!r}")
    return expression


def _either(tokens: list[str]) -> tuple[Expression, list[str]]:
    return _chain(tokens, "or", lambda rest: _chain(rest, "and", _negation))


def _chain(
    tokens: list[str], word: str, inner: Callable[[list[str]], tuple[Expression, list[str]]]
) -> tuple[Expression, list[str]]:
    first, tokens = inner(tokens)
    parts = [first]
    while tokens and tokens[0] == word:
        part, tokens = inner(tokens[1:])
        parts.append(part)
    return (parts[0] if len(parts) == 1 else _Both(word, tuple(parts))), tokens


def _negation(tokens: list[str]) -> tuple[Expression, list[str]]:
    if not tokens or tokens[0] in (")", "and", "or"):
        raise BadExpression("a name is missing")
    head, rest = tokens[0], tokens[1:]
    if head == "not":
        inner, rest = _negation(rest)
        return _Not(inner), rest
    if head == "(":
        inner, rest = _either(rest)
        if not rest or rest[0] != ")":
            raise BadExpression("a parenthesis is not closed")
        return inner, rest[1:]
    return _Name(head), rest


def terms(expression: Expression, negated: bool = False) -> list[Term]:
    """Every name of the expression, with whether it keeps tests out."""
    match expression:
        case _Name(name):
            return [Term(name, negated)]
        case _Not(inner):
            return terms(inner, not negated)
        case _Both(parts=parts):
            return [term for part in parts for term in terms(part, negated)]


def evaluate(expression: Expression, known: Callable[[str], Answer]) -> Answer:
    match expression:
        case _Name(name):
            return known(name)
        case _Not(inner):
            answer = evaluate(inner, known)
            return None if answer is None else not answer
        case _Both(kind, parts):
            answers = [evaluate(part, known) for part in parts]
            decisive = kind == "or"
            if decisive in answers:
                return decisive
            return None if None in answers else not decisive


def keyword_selects(expression: str, path: str, test: TestCase) -> Answer:
    """Whether ``-k expression`` keeps ``test``; None when that hangs on a parameter id."""
    names = [*path.split("/"), *filter(None, [test.owner]), test.name, *test.marks]

    def known(name: str) -> Answer:
        if any(name.lower() in candidate.lower() for candidate in names):
            return True
        return None if test.parametrized or test.maybe_marks else False

    return _answer(expression, known)


def marker_selects(expression: str, test: TestCase) -> Answer:
    """Whether ``-m expression`` keeps ``test``; None when only some of its parameters carry the mark."""

    def known(name: str) -> Answer:
        if name in test.marks:
            return True
        return None if name in test.maybe_marks else False

    return _answer(expression, known)


def _answer(expression: str, known: Callable[[str], Answer]) -> Answer:
    try:
        return evaluate(parse(expression), known)
    except BadExpression:
        return None
