"""When a step runs: the selection rules of vLLM's pipeline generator, as pure functions of the changed paths.

Read from the generator (vllm-project/ci-infra, ``buildkite/pipeline_generator``) and shared by the audit and by
``harness ci select``:

- a dependency matches a changed file that *is* that path or lies *under* it, by whole path segments: there are no
  globs and no partial names, so ``tests/v1/test_umbp_`` matches nothing;
- an entry that starts with ``!`` takes matching files out again, whatever its place in the list;
- a step without an include entry is never selected by a change;
- a file that matches a ``run_all_patterns`` regular expression (`re.match`: anchored at the start only) and none of
  the ``run_all_exclude_patterns`` selects every step that is not optional;
- an optional step runs nightly only, whatever changed.

The hand-kept ``test-amd.yaml`` is rendered by an older template whose rules differ: plain string prefix, no ``!``,
and an empty list always runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Semantics = Literal["segments", "prefix"]


@dataclass(frozen=True)
class Selection:
    """Why a step runs for a change. ``selected`` False: ``reason`` says why not."""

    selected: bool
    reason: str


@dataclass(frozen=True)
class RunAll:
    """The regular expressions of ``ci_config*.yaml`` that select every step of that pipeline."""

    patterns: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()

    def trigger(self, changed: Iterable[str]) -> str | None:
        """The first changed file that selects everything, with its pattern; None when there is none."""
        for path in changed:
            hit = next((pattern for pattern in self.patterns if re.match(pattern, path)), None)
            if hit is not None and not any(re.match(pattern, path) for pattern in self.excludes):
                return f"{path} matches run_all pattern {hit!r}"
        return None


def covers(dependency: str, path: str) -> bool:
    """Whether one include entry matches ``path``, by whole segments (``a/b`` covers ``a/b/c.py``, not ``a/bc.py``)."""
    prefix = dependency.rstrip("/")
    return bool(prefix) and (path == prefix or path.startswith(prefix + "/"))


def matching_entry(dependencies: Sequence[str], path: str, semantics: Semantics = "segments") -> str | None:
    """The first include entry that covers ``path``; None when there is none or a ``!`` entry excludes it."""
    if semantics == "prefix":
        return next((entry for entry in dependencies if path.startswith(entry)), None)
    if any(covers(entry[1:], path) for entry in dependencies if entry.startswith("!")):
        return None
    return next((entry for entry in dependencies if not entry.startswith("!") and covers(entry, path)), None)


def select(
    dependencies: Sequence[str],
    changed: Sequence[str],
    *,
    optional: bool = False,
    run_all: RunAll | None = None,
    semantics: Semantics = "segments",
) -> Selection:
    """Whether a step with these dependencies runs on a pull request that touches ``changed``."""
    if optional:
        return Selection(False, "optional: nightly only")
    if run_all is not None and (reason := run_all.trigger(changed)) is not None:
        return Selection(True, reason)
    if semantics == "prefix" and not dependencies:
        return Selection(True, "no dependencies: always runs")
    for path in changed:
        if (entry := matching_entry(dependencies, path, semantics)) is not None:
            return Selection(True, f"{path} is covered by {entry}")
    if not any(not entry.startswith("!") for entry in dependencies):
        return Selection(False, "no dependencies: a change never selects it")
    return Selection(False, "no changed file is covered")
