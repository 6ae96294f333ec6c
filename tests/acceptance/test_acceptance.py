"""One test per check that the run's deployment names."""

from __future__ import annotations

import pytest

from harness.checks.registry import judge
from harness.facts import CheckResult, RunFacts


def test_check(check_name: str, facts: RunFacts, found: dict[str, CheckResult]) -> None:
    if not check_name:
        pytest.fail("the run names no checks, so nothing would be judged", pytrace=False)
    result = judge(check_name, facts)
    found[check_name] = result
    if not result.ok:
        pytest.fail("\n".join((f"{result.verdict}: {result.summary}", *result.evidence)), pytrace=False)
