"""The same package installed with different pins, and comments that name another version than the pin beside them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.ci.audit.model import Finding
from harness.ci.audit.requirements import Install, installs, normalized, pinned_versions, release, requirement
from harness.ci.audit.tree import SourceTree

RULE = "install-pins"
COMMENT_RULE = "pin-comment"
_CLAIM = re.compile(
    r"(?<![\w.\-])(?P<name>[A-Za-z][\w.\-]*[A-Za-z\d])(?:\[[^\]]*\])?\s*(?P<op>==|>=)\s*v?(?P<version>\d[\w.+]*\w|\d)"
)
# How many lines of comment above a pin still speak about it.
NEAR_LINES = 4


def check(tree: SourceTree) -> Iterator[Finding]:
    yield from _different_pins(tree)
    yield from _comments(tree)


def _is_ci_command_file(path: str) -> bool:
    """Where CI's own install commands stand. Images differ on purpose, so Dockerfiles are not compared."""
    return (path.startswith(".buildkite/") and path.endswith((".yaml", ".yml", ".sh"))) or (
        path.startswith("tests/") and path.endswith(".sh")
    )


def _different_pins(tree: SourceTree) -> Iterator[Finding]:
    by_name: dict[str, list[Install]] = {}
    for path in sorted(tree.texts):
        if _is_ci_command_file(path):
            for install in installs(path, tree.texts[path]):
                by_name.setdefault(install.name, []).append(install)
    for name, sites in sorted(by_name.items()):
        specs: dict[str, list[Install]] = {}
        for site in sites:
            specs.setdefault(site.spec, []).append(site)
        exact = [spec for spec in specs if spec.startswith(("==", "@"))]
        # Two lower bounds, or a lower bound and none, resolve to the same newest version.
        if len(specs) > 1 and exact:
            parts = [
                f"{spec or 'no pin'} at " + ", ".join(f"{site.path}:{site.line}" for site in where[:4])
                for spec, where in sorted(specs.items())
            ]
            odd = min(specs.values(), key=len)[0]
            yield Finding(
                RULE,
                odd.path,
                odd.line,
                f"{name} is installed with {len(specs)} different pins",
                "; ".join(parts),
                name,
            )


def _comments(tree: SourceTree) -> Iterator[Finding]:
    pins = pinned_versions(tree.texts)
    for path in sorted(tree.texts):
        if path.startswith(("requirements/", "docker/Dockerfile")) or _is_ci_command_file(path):
            yield from _file_comments(path, tree.texts[path].split("\n"), pins)


def _file_comments(path: str, lines: list[str], pins: dict[str, frozenset[str]]) -> Iterator[Finding]:
    for index, line in enumerate(lines):
        comment = _comment(line)
        if comment is None or requirement(comment) is not None:
            continue  # a requirement that is commented out claims nothing
        for claim in _CLAIM.finditer(comment):
            name = normalized(claim["name"])
            beside = _pin_beside(lines, index, name)
            if beside is not None and _contradicts(claim["op"], claim["version"], beside):
                yield _finding(path, index, claim.group(0), f"the pin beside it is {name}{beside}")
            elif beside is None and claim["op"] == "==" and name in pins:
                known = pins[name]
                if all(release(claim["version"]) != release(version) for version in known):
                    yield _finding(path, index, claim.group(0), f"requirements pin {name} {' / '.join(sorted(known))}")


def _finding(path: str, index: int, claim: str, but: str) -> Finding:
    return Finding(COMMENT_RULE, path, index + 1, f"the comment says {claim}, but {but}", "", f"{path}:{claim}")


def _comment(line: str) -> str | None:
    if line.lstrip().startswith("#"):
        return line.lstrip().lstrip("#").strip()
    _, mark, comment = line.partition(" #")
    return comment.strip() if mark else None


def _pin_beside(lines: list[str], index: int, name: str) -> str | None:
    """The pin of ``name`` on the comment's own line, or right below the block of comments it belongs to."""
    for below in range(index, min(len(lines), index + NEAR_LINES + 1)):
        line = lines[below]
        if line.lstrip().startswith("#"):
            continue
        if not line.strip():
            return None
        parsed = requirement(line)
        named = [parsed] if parsed is not None else [(site.name, site.spec) for site in installs("", line)]
        for found, spec in named:
            if found == name and spec:
                return spec
        if below > index:
            return None
    return None


def _contradicts(op: str, claimed: str, spec: str) -> bool:
    wanted = release(claimed)
    for part in spec.split(","):
        found = re.match(r"(==|>=|<=|~=|!=|<|>)(.+)", part)
        if found is None:
            continue
        bound = release(found.group(2))
        match op, found.group(1):
            case "==", "==":
                if bound != wanted:
                    return True
            case ">=", "==" | "<=":
                if bound < wanted:
                    return True
            case ">=", "<":
                if bound <= wanted:
                    return True
            case ">=", ">=":
                # The pin lets an older version in than the comment says is needed.
                if bound < wanted:
                    return True
    return False
