"""Shell text to the test runs that it starts: which paths pytest is given, and what it is told to leave out.

Understood: ``cd``, ``VAR=x cmd``, ``env``, ``timeout``, ``bash -c '...'``, quoted command strings handed to a runner
script, scripts of the checkout (followed), ``find ... | xargs pytest`` and ``find -exec pytest``, ``python`` and
``torchrun`` on a file. Limitation: loops and functions of scripts are read as straight lines, so a run inside an
``if`` counts as started.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace

from harness.ci.audit.arguments import (
    PYTESTS,
    RUNNERS,
    FindExpression,
    Run,
    find_expression,
    pytest_run,
    python_runs,
    strip_wrappers,
    xargs_target,
)

SHELLS = frozenset({"bash", "sh"})
MAX_DEPTH = 4
_SEPARATORS = frozenset("();<>|&\n")
_VARIABLE = re.compile(r"\$\{(\w+)(?::?-([^{}]*))?\}|\$(\w+)")


class Scripts:
    """The shell scripts of a checkout, by path. ``opened`` collects those that a command really ran."""

    def __init__(self, texts: dict[str, str]) -> None:
        self.texts = texts

    def resolve(self, word: str, base: str, beside: str | None) -> str | None:
        """The script that ``word`` names when run in ``base``, or next to the script ``beside``."""
        bare = _bare(word)
        folders = [base, "", "tests"] + ([beside.rsplit("/", 1)[0]] if beside else [])
        for folder in folders:
            path = normal(f"{folder}/{bare}")
            if path in self.texts:
                return path
        return None


def normal(path: str) -> str:
    """``a/./b/../c`` as ``a/c``; never leaves the checkout."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)


def _bare(word: str) -> str:
    """A path without the container's workspace or a leading ``$VAR/``."""
    word = re.sub(r"^\$\{?\w+\}?/", "", word)
    return word.removeprefix("/vllm-workspace/").removeprefix("vllm-workspace/")


def runs(command: str, base: str, scripts: Scripts, opened: set[str] | None = None) -> list[Run]:
    """The test runs that ``command`` starts in ``base``; adds every script followed to ``opened``."""
    return _Reader(scripts, opened if opened is not None else set()).read(command, base, None, 0)[0]


def _words(text: str) -> list[list[str]] | None:
    """Words by simple command; what a pipe feeds starts with ``|``. None when quotes do not match."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars="();<>|&\n")
    lexer.whitespace = " \t\r"
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        tokens = list(lexer)
    except ValueError:
        return None
    commands: list[list[str]] = [[]]
    in_exec = False
    for token in tokens:
        if in_exec and token in (";", "+"):
            commands[-1].append(token)
            in_exec = False
        elif token and set(token) <= _SEPARATORS:
            commands.append(["|"] if token == "|" else [])
            in_exec = False
        else:
            commands[-1].append(token)
            in_exec = in_exec or token in ("-exec", "-execdir")
    return [command for command in commands if command and command != ["|"]]


class _Reader:
    def __init__(self, scripts: Scripts, opened: set[str]) -> None:
        self.scripts = scripts
        self.opened = opened

    def read(self, text: str, base: str, script: str | None, depth: int) -> tuple[list[Run], str]:
        """The runs in ``text`` and the directory it ends in."""
        text = text.replace("\\\n", " ").replace("$$", "$")
        text = "\n".join(line for line in text.split("\n") if not line.lstrip().startswith("#"))
        commands = _words(text)
        if commands is None:
            # A heredoc or an apostrophe in prose: whole lines that do parse still count.
            commands = [words for line in text.split("\n") for words in _words(line) or []]
        found: list[Run] = []
        find: FindExpression | None = None
        for raw in commands:
            piped = raw[0] == "|"
            words = strip_wrappers(raw[1:] if piped else raw)
            if not words:
                continue
            name = words[0].rsplit("/", 1)[-1]
            if piped and find is not None and name == "xargs":
                if xargs_target(words) in PYTESTS:
                    found.append(Run(base, find=find, script=script))
                continue
            if name == "cd" and len(words) > 1 and "$(" not in words[1]:
                base = self._cd(words[1], base)
            elif name == "find":
                find = find_expression(words)
                if find is not None and any(word in PYTESTS for word in words):
                    found.append(Run(base, find=find, script=script))
            else:
                found += self._simple(words, name, base, script, depth)
            if name not in ("find", "sort", "tee", "cat"):
                find = None
        return found, base

    @staticmethod
    def _cd(target: str, base: str) -> str:
        if target.startswith("/vllm-workspace"):
            return normal(target.removeprefix("/vllm-workspace"))
        return base if target.startswith(("/", "$", "~", "-")) else normal(f"{base}/{target}")

    def _simple(self, words: Sequence[str], name: str, base: str, script: str | None, depth: int) -> Iterator[Run]:
        if name in PYTESTS:
            yield pytest_run(words[1:], base, script)
        elif name in RUNNERS:
            yield from python_runs(words[1:], base, script)
        elif (name in SHELLS or name.endswith(".sh")) and depth < MAX_DEPTH:
            yield from self._shell(words, name, base, script, depth)

    def _shell(self, words: Sequence[str], name: str, base: str, script: str | None, depth: int) -> Iterator[Run]:
        rest = list(words if name.endswith(".sh") else words[1:])
        while rest and rest[0].startswith("-"):
            flag = rest.pop(0)
            if not flag.startswith("--") and "c" in flag and rest:
                yield from self.read(rest[0], base, script, depth + 1)[0]
                return
        if not rest:
            return
        path = self.scripts.resolve(rest[0], base, script)
        inner_base = next((self._cd(word, base) for word in rest[1:] if word.startswith("/vllm-workspace")), base)
        for word in rest[1:]:
            # A runner script (container, several nodes) gets the real commands as one quoted word.
            if re.search(r"\b(pytest|torchrun|python3?|bash)\b", word) and re.search(r"\s", word):
                yield from self.read(word, inner_base, script, depth + 1)[0]
        if path is not None and path != script:
            self.opened.add(path)
            yield from self._script(path, base, depth + 1)

    def _script(self, path: str, base: str, depth: int) -> Iterator[Run]:
        values: dict[str, str] = {}
        for line in self.scripts.texts[path].replace("\\\n", " ").split("\n"):
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            assignment = re.fullmatch(r"(?:export\s+|local\s+)?(\w+)=(\"[^\"$]*\"|'[^']*'|[^\s\"'$;]*)", line)
            if assignment:
                values[assignment.group(1)] = assignment.group(2).strip("\"'")
                continue
            if not re.search(r"pytest|python|torchrun|\.sh\b|^cd |\bbash\b", line):
                continue
            found, base = self.read(_expand(line, values), base, path, depth)
            yield from (run if run.script else replace(run, script=path) for run in found)


def _expand(line: str, values: dict[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        known = values.get(match.group(1) or match.group(3))
        if known is not None:
            return known
        return match.group(2) if match.group(2) is not None else match.group(0)

    return _VARIABLE.sub(value, line)
