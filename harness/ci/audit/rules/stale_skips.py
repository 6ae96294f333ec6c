"""Skips that outlived their reason: version conditions that the pins decide, and pull requests of long ago."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from harness.ci.audit.conditions import Condition, describe
from harness.ci.audit.marks import Skip
from harness.ci.audit.model import Finding
from harness.ci.audit.requirements import installs, normalized, pinned_versions, release
from harness.ci.audit.tree import SourceTree

RULE = "stale-skip"
_VERSION_WORDS = ("is_torch_equal_or_newer", "ersion.parse(", "Version(", "newer versions")
_NUMBER = re.compile(r"(?:#|pull/)\d{5}")
# A reason that waits for a pull request says so at most this many characters before the number.
BEFORE_NUMBER = 60
_WAITS_FOR_PR = re.compile(
    r"(?:fixed by|until|requires?|needs|pending|waiting for|blocked by|depends on)\s+(?:PR\s*|https://\S*/pull/)?#?(?P<number>\d{5,6})\b",
    re.IGNORECASE,
)
_NEEDS_VERSION = re.compile(
    r"(?:requires?|needs|until|available in|newer versions)[^.;]{0,20}?\(?(?:>=\s*)?v?"
    r"(?P<version>\d+\.\d+(?:\.\d+)?)(?:\.dev)?\+?",
    re.IGNORECASE,
)
# How many pull requests behind the newest that the tree mentions a named one must be before it is called old.
OLD_PRS = 10_000
# A version belongs to the package that is written at most this many characters before it.
PACKAGE_NEAR = 24


def check(tree: SourceTree) -> Iterator[Finding]:
    pins = dict(pinned_versions(tree.texts))
    for name, versions in _installed(tree).items():
        pins[name] = pins.get(name, frozenset()) | versions
    newest = newest_pr(tree)
    for path in _suspects(tree):
        module = tree.module(path)
        if module is not None:
            yield from _decided(path, module.skips, pins)
            yield from _old_prs(path, module.skips, newest)


def _waits_for_pr(text: str) -> bool:
    """The cheap question first: the full expression over every test costs more than the parse it saves."""
    return any(
        _WAITS_FOR_PR.search(text, max(0, number.start() - BEFORE_NUMBER), number.end() + 1)
        for number in _NUMBER.finditer(text)
    )


def _suspects(tree: SourceTree) -> list[str]:
    """The test files whose text can hold a version or a pull request as the reason of a skip."""
    found = []
    for path in tree.test_files:
        text = tree.texts[path]
        if not ("skip" in text or "xfail" in text):
            continue
        if any(word in text for word in _VERSION_WORDS) or _waits_for_pr(text):
            found.append(path)
    return found


def _installed(tree: SourceTree) -> dict[str, frozenset[str]]:
    """Versions that the steps themselves install with ``==`` before they run their tests."""
    found: dict[str, set[str]] = {}
    for path, text in tree.texts.items():
        if path.startswith(".buildkite/") and "pip" in text:
            for install in installs(path, text):
                if install.spec.startswith("==") and "," not in install.spec:
                    found.setdefault(install.name, set()).add(install.spec[2:])
    return {name: frozenset(versions) for name, versions in found.items()}


def decided(condition: Condition, pins: Mapping[str, frozenset[str]]) -> bool | None:
    """What the condition comes to under every pinned version alike; None when it depends on more than versions."""
    kind, *rest = condition
    parts = [decided(part, pins) for part in rest if isinstance(part, tuple)]
    match kind:
        case "const":
            return bool(rest[0])
        case "not":
            return None if parts[0] is None else not parts[0]
        case "and":
            return False if False in parts else (None if None in parts else True)
        case "or":
            return True if True in parts else (None if None in parts else False)
        case "version":
            package, op, wanted = map(str, rest)
            answers = {_holds(release(v), op, release(wanted)) for v in pins.get(normalized(package), ())}
            return answers.pop() if len(answers) == 1 else None
    return None


def _holds(version: tuple[int, ...], op: str, wanted: tuple[int, ...]) -> bool | None:
    match op:
        case "<":
            return version < wanted
        case "<=":
            return version <= wanted
        case ">":
            return version > wanted
        case ">=":
            return version >= wanted
        case "==":
            return version == wanted
        case "!=":
            return version != wanted
    return None


def _versions_in(condition: Condition) -> list[Condition]:
    kind, *rest = condition
    if kind == "version":
        return [condition]
    return [version for part in rest if isinstance(part, tuple) for version in _versions_in(part)]


def _decided(path: str, skips: tuple[Skip, ...], pins: Mapping[str, frozenset[str]]) -> Iterator[Finding]:
    """One finding per file and condition: twenty tests behind one dead guard are one thing to mend."""
    grouped: dict[tuple[str, str], list[Skip]] = {}
    packages: dict[tuple[str, str], set[str]] = {}
    for skip in skips:
        versions = _versions_in(skip.condition)
        answer = decided(skip.condition, pins) if versions else None
        if answer is not None:
            place = (describe(skip.condition), "always skips" if answer else "can never skip")
            named = {str(version[1]) for version in versions}
        elif skip.unconditional and (package := _satisfied(skip.reason, pins)) is not None:
            place = (f"{package} is too old", "no longer has its reason")
            named = {package}
        else:
            continue
        grouped.setdefault(place, []).append(skip)
        packages.setdefault(place, set()).update(named)
    for place, found in grouped.items():
        condition, effect = place
        known = "; ".join(
            f"{name} is pinned to {' / '.join(sorted(pins[normalized(name)]))}" for name in sorted(packages[place])
        )
        lines = ", ".join(str(skip.line) for skip in found)
        yield Finding(
            RULE,
            path,
            found[0].line,
            f"the skip on `{condition}` {effect}: {known}",
            f"lines {lines}" + (f"; {found[0].reason}" if found[0].reason else ""),
            f"{path}:{condition}",
        )


def _satisfied(reason: str, pins: Mapping[str, frozenset[str]]) -> str | None:
    """The package, when a reason waits for a version of it that every pin has reached."""
    wanted = _NEEDS_VERSION.search(reason)
    if wanted is None:
        return None
    before = normalized(reason[max(0, wanted.start("version") - PACKAGE_NEAR) : wanted.start("version")])
    # A package is only taken for the one that is waited for when it stands right before the version.
    named = [name for name in pins if re.search(rf"(?<![\w-]){re.escape(name)}[^\w]*(?:version\w*)?[^\w]*$", before)]
    if not named:
        return None
    name = named[0]
    if all(release(version) >= release(wanted["version"]) for version in pins[name]):
        return name
    return None


def newest_pr(tree: SourceTree) -> int:
    """The highest number that the pipelines and tests write as ``#N`` of vLLM's own: how far the project has come."""
    numbers = [
        int(number)
        for path, text in tree.texts.items()
        if path.startswith(".buildkite/") or path.startswith("tools/")
        for number in re.findall(r"(?:vllm-project/vllm/(?:pull|issues)/|(?<![\w/])#)(\d{4,5})\b", text)
    ]
    return max(numbers, default=0)


def _old_prs(path: str, skips: tuple[Skip, ...], newest: int) -> Iterator[Finding]:
    seen: set[str] = set()
    for skip in skips:
        found = _WAITS_FOR_PR.search(skip.reason)
        if found is None or found["number"] in seen or newest - int(found["number"]) < OLD_PRS:
            continue
        seen.add(found["number"])
        yield Finding(
            RULE,
            path,
            skip.line,
            f"waits for PR #{found['number']}, {newest - int(found['number'])} numbers behind the newest this tree "
            f"names (#{newest}): check whether it was merged or given up",
            skip.reason,
            f"{path}:#{found['number']}",
        )
