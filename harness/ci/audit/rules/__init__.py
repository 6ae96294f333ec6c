"""One module per rule family; each has ``check(tree) -> Iterator[Finding]`` and reads nothing but the tree."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from harness.ci.audit.model import Finding
from harness.ci.audit.rules import (
    commented_steps,
    dependency_paths,
    device_skips,
    install_pins,
    mirrors,
    stale_filters,
    stale_skips,
    trigger_gaps,
    unselected_tests,
)
from harness.ci.audit.tree import SourceTree

Check = Callable[[SourceTree], Iterator[Finding]]

CHECKS: tuple[Check, ...] = (
    dependency_paths.check,
    commented_steps.check,
    unselected_tests.check,
    device_skips.check,
    stale_filters.check,
    stale_skips.check,
    mirrors.check,
    trigger_gaps.check,
    install_pins.check,
)
