"""One simple command to what it runs: the arguments of pytest, python, find and xargs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

RUNNERS = frozenset({"python", "python3", "torchrun", "coverage"})
PYTESTS = frozenset({"pytest", "py.test"})
WRAPPERS = frozenset({"if", "!", "then", "else", "do", "time", "exec", "nice", "command", "nohup", "stdbuf"})
# pytest options whose value is the next word; without the list, `-k expr` would read as a path.
VALUE_OPTIONS = frozenset(
    (
        *("-k", "-m", "-p", "-n", "-c", "-o", "-W", "-r", "--tb", "--shard-id", "--num-shards", "--dist"),
        *("--durations", "--maxfail", "--timeout", "--rootdir", "--junitxml", "--junit-xml", "--ignore"),
        *("--ignore-glob", "--deselect", "--splits", "--group", "--confcutdir", "--models", "--config-list-file"),
    )
)
XARGS_VALUE_OPTIONS = frozenset({"-n", "-L", "-P", "-s", "-I", "-d", "-E"})
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


@dataclass(frozen=True)
class FindExpression:
    """``find ROOT -maxdepth N -name A -not -name B``, whose hits go to pytest."""

    root: str
    names: tuple[str, ...]
    excluded: tuple[str, ...]
    max_depth: int | None


@dataclass(frozen=True)
class Run:
    """One test run as the shell would start it. Paths are as written; ``base`` is the directory it starts in.

    ``script``: the file of the checkout that holds the command, None when the YAML itself does.
    """

    base: str
    paths: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    ignored_globs: tuple[str, ...] = ()
    deselected: tuple[str, ...] = ()
    keyword: str | None = None
    marker: str | None = None
    find: FindExpression | None = None
    runner: str = "pytest"
    script: str | None = None
    other_options: tuple[str, ...] = ()


def strip_wrappers(words: Sequence[str]) -> list[str]:
    """A command without ``VAR=x``, ``env``, ``timeout 30m`` and other words that only start it."""
    rest = list(words)
    while rest:
        word = rest[0]
        if word in WRAPPERS or _ASSIGNMENT.match(word):
            rest.pop(0)
        elif word == "env":
            rest.pop(0)
            while rest and (rest[0] in ("-i", "-") or _ASSIGNMENT.match(rest[0])):
                rest.pop(0)
        elif word == "timeout":
            rest.pop(0)
            while rest and rest[0].startswith("-"):
                flag = rest.pop(0)
                if flag in ("-k", "-s") and rest:
                    rest.pop(0)
            del rest[:1]
        else:
            break
    return rest


def xargs_target(words: Sequence[str]) -> str:
    rest = list(words[1:])
    while rest and rest[0].startswith("-"):
        flag = rest.pop(0)
        if flag in XARGS_VALUE_OPTIONS and rest:
            rest.pop(0)
    rest = strip_wrappers(rest)
    return rest[0] if rest else ""


def find_expression(words: Sequence[str]) -> FindExpression | None:
    root: str | None = None
    names: list[str] = []
    excluded: list[str] = []
    max_depth: int | None = None
    negated = False
    index = 1
    while index < len(words):
        word = words[index]
        following = words[index + 1] if index + 1 < len(words) else ""
        if word in ("-not", "!"):
            negated = True
        elif word == "-name":
            (excluded if negated else names).append(following)
            negated = False
            index += 1
        elif word == "-maxdepth":
            max_depth = int(following) if following.isdigit() else None
            index += 1
        elif word in ("-exec", "-execdir"):
            break
        elif root is None and not word.startswith("-"):
            root = word
        index += 1
    return None if root is None else FindExpression(root, tuple(names), tuple(excluded), max_depth)


def python_runs(words: Sequence[str], base: str, script: str | None) -> Iterator[Run]:
    for index, word in enumerate(words):
        if word == "-m" and index + 1 < len(words):
            if words[index + 1] in PYTESTS:
                yield pytest_run(words[index + 2 :], base, script)
            return
        if word == "-c":
            return
        if word.endswith(".py"):
            yield Run(base, paths=(word,), runner="python", script=script)
            return


def pytest_run(words: Sequence[str], base: str, script: str | None) -> Run:
    values: dict[str, list[str]] = {}
    paths: list[str] = []
    others: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        option, equals, value = word.partition("=")
        if word.startswith("-"):
            if not equals and option in VALUE_OPTIONS:
                value = rest.pop(0) if rest else ""
            values.setdefault(option, []).append(value)
            others.append(option)
        else:
            paths.append(word)
    return Run(
        base,
        paths=tuple(paths),
        ignored=tuple(values.get("--ignore", ())),
        ignored_globs=tuple(values.get("--ignore-glob", ())),
        deselected=tuple(values.get("--deselect", ())),
        keyword=values["-k"][-1] if "-k" in values else None,
        marker=values["-m"][-1] if "-m" in values else None,
        script=script,
        other_options=tuple(others),
    )
