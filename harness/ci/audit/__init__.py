"""The audit of a vLLM source tree: what its CI no longer runs, never ran, or runs for the wrong reason.

`audit` is pure: a tree and a day in, findings out. `harness.ci.audit.cli.run_audit` reads a folder and prints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import date

from harness.ci.audit.model import Finding
from harness.ci.audit.rules import CHECKS
from harness.ci.audit.tree import SourceTree
from harness.ci.audit.waivers import Waiver, apply_waivers

__all__ = ["Finding", "SourceTree", "Waiver", "audit", "run_rules"]

BROKEN_RULE = "broken-yaml"


def run_rules(tree: SourceTree) -> Iterable[list[Finding]]:
    """The findings of each rule family, one after the other."""
    return (list(check(tree)) for check in CHECKS)


def audit(
    tree: SourceTree,
    today: date,
    waivers: Sequence[Waiver] = (),
    rules: Callable[[SourceTree], Iterable[list[Finding]]] = run_rules,
) -> list[Finding]:
    """Every finding that no waiver covers, sorted by rule and place.

    ``today`` decides which waivers have expired; it is handed in so that the result never depends on a clock.
    ``rules`` may run the rule families elsewhere (`checkout.run_rules_in_parallel`): the result is the same.
    """
    found = [
        Finding(BROKEN_RULE, path, line, f"not readable as YAML: {problem}", "", path)
        for path, line, problem in tree.pipelines.broken
    ]
    for results in rules(tree):
        found += results
    remaining = apply_waivers(found, waivers, today)
    return sorted(remaining, key=lambda finding: (finding.rule, finding.path, finding.line, finding.key))
