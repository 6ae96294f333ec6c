"""What the checkout pins and installs: requirement lines, lock files, and ``pip install`` commands with their place."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

# Not what CI's images are built from: other accelerators' previews, documentation, linting, a nightly overlay.
_NOT_CI = re.compile(r"requirements/(tpu|rubin-prerelease|docs|lint|dev)\.|nightly-torch|requirements/build/(?!rocm)")
_REQUIREMENT = re.compile(
    r"^(?P<name>[A-Za-z][\w.\-]*)(?:\[[^\]]*\])?\s*(?P<spec>(?:(?:==|>=|<=|~=|!=|<|>)\s*[\w.*+!\-]+\s*,?\s*)*)$"
)
_GIT = re.compile(r"git\+https?://\S*?/(?P<name>[\w.\-]+?)(?:\.git)?(?:@(?P<ref>[\w.\-/]+))?(?:#.*)?$")
_NAMED_GIT = re.compile(r"^(?P<name>[A-Za-z][\w.\-]*)\s*@\s*(?P<url>git\+\S+)$")
_INSTALL = re.compile(r"\bpip3?\s+install\b(?P<rest>.*)")
_VALUE_OPTIONS = frozenset(
    (
        *("-r", "-c", "-e", "-i", "-f", "-t", "--requirement", "--constraint", "--editable", "--index-url"),
        *("--extra-index-url", "--find-links", "--target", "--python", "--index-strategy", "--prefix", "--root"),
        *("--trusted-host", "--torch-backend"),
    )
)


@dataclass(frozen=True)
class Install:
    """One package of one install command. ``spec``: ``==1.2``, ``@ref`` of a git checkout, or "" for no pin."""

    path: str
    line: int
    name: str
    spec: str


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def requirement(text: str) -> tuple[str, str] | None:
    """Name and spec of a requirement line (comment and marker cut off); None for anything else."""
    bare = re.split(r"\s+#|;", text.strip(), maxsplit=1)[0].strip()
    found = _REQUIREMENT.match(bare)
    if found is None:
        return None
    return normalized(found["name"]), re.sub(r"\s+", "", found["spec"]).rstrip(",")


def pinned_versions(texts: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """By package every version that a requirements file of CI pins with ``==`` (local part kept)."""
    found: dict[str, set[str]] = {}
    for path, text in texts.items():
        if not path.startswith("requirements/") or not path.endswith(".txt") or _NOT_CI.search(path):
            continue
        for line in text.split("\n"):
            parsed = requirement(line) if line[:1].isalpha() else None
            if parsed is not None and parsed[1].startswith("==") and "," not in parsed[1]:
                found.setdefault(parsed[0], set()).add(parsed[1][2:])
    return {name: frozenset(versions) for name, versions in found.items()}


def release(version: str) -> tuple[int, ...]:
    """``2.14.0+cu130`` as (2, 14, 0); development and local parts do not count."""
    found = re.match(r"v?(\d+(?:\.\d+)*)", version)
    numbers = [int(part) for part in found.group(1).split(".")] if found else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def installs(path: str, text: str) -> Iterator[Install]:
    """Every package that a ``pip install`` of this file names. Comments are not commands."""
    lines = text.split("\n")
    index = 0
    while index < len(lines):
        start = index
        line = lines[index]
        while line.rstrip().endswith("\\") and index + 1 < len(lines):
            index += 1
            line = line.rstrip()[:-1] + " " + lines[index].strip()
        index += 1
        if not line.lstrip().startswith("#"):
            for found in _INSTALL.finditer(line):
                yield from _packages(path, start + 1, found["rest"])


def _packages(path: str, line: int, rest: str) -> Iterator[Install]:
    rest = re.split(r"&&|\|\||;|\||\s#", rest, maxsplit=1)[0]
    try:
        words = shlex.split(rest)
    except ValueError:
        # The command stands inside a quoted string of the YAML: cut at the quote that closes it.
        words = re.split(r"[\"'`)]", rest.strip(), maxsplit=1)[0].split()
    skip = False
    joined: list[str] = []
    for word in words:
        if skip:
            skip = False
        elif word in _VALUE_OPTIONS:
            skip = True
        elif not word.startswith("-"):
            joined.append(word)
    for word in joined:
        named = _NAMED_GIT.match(word)
        git = _GIT.search(named["url"] if named else word)
        if git is not None:
            yield Install(path, line, normalized(named["name"] if named else git["name"]), f"@{git['ref'] or 'HEAD'}")
            continue
        if "$" in word or "/" in word or word.startswith(".") or word.endswith(".whl"):
            continue
        parsed = requirement(word)
        if parsed is not None:
            yield Install(path, line, *parsed)
