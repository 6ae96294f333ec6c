"""From facts to a verdict: run the shared pytest assertions over facts.json, then read what each check found."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from harness.errors import Infra, Misconfigured
from harness.facts import CheckResult, RunFacts
from harness.files import LARGEST_DATA_BYTES, read_bounded, write_atomically
from harness.verdict import Verdict

FACTS_NAME = "facts.json"
CHECKS_NAME = "checks.json"
JUNIT_NAME = "junit.xml"

ACCEPTANCE_TESTS = Path(__file__).resolve().parents[2] / "tests" / "acceptance"

# The assertions read one file and compute; a minute is a hung disk, not a slow check.
_JUDGE_TIMEOUT_S = 60

_CHECKS: TypeAdapter[list[CheckResult]] = TypeAdapter(list[CheckResult])

# What a run with several failed checks is called: the engine's fault first, then ours.
_ORDER = (Verdict.REGRESSION, Verdict.MISCONFIGURED, Verdict.INFRA, Verdict.UNSUPPORTED)


@dataclass(frozen=True)
class Judgement:
    """``reason`` is one sentence: the worst failed check, or what a pass showed."""

    verdict: Verdict
    reason: str
    checks: tuple[CheckResult, ...]


def run_assertions(run_dir: Path, facts: RunFacts) -> tuple[CheckResult, ...]:
    """Write facts.json, run tests/acceptance over it, return every check's result. Raises Infra if pytest broke."""
    if not ACCEPTANCE_TESTS.is_dir():
        raise Infra(f"The shared assertions are not at {ACCEPTANCE_TESTS}; run from a checkout of this project.")
    write_atomically(run_dir / FACTS_NAME, facts.model_dump_json(indent=1))
    log = run_dir / "logs" / "judge.log"
    checks_out = run_dir / CHECKS_NAME
    # A checks.json of an earlier judgement must not stand in for one that pytest failed to write.
    checks_out.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "pytest",
        str(ACCEPTANCE_TESTS),
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:hypothesispytest",
    ]
    command += ["--facts", str(run_dir / FACTS_NAME), "--checks-out", str(checks_out)]
    command += ["--junitxml", str(run_dir / JUNIT_NAME)]
    with log.open("wb") as stream:
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                timeout=_JUDGE_TIMEOUT_S,
                check=False,
                cwd=ACCEPTANCE_TESTS.parents[1],
            )
        except subprocess.TimeoutExpired as error:
            raise Infra(f"The assertions did not end within {_JUDGE_TIMEOUT_S} s; see {log}.", log=log) from error
    try:
        checks = tuple(_CHECKS.validate_python(json.loads(read_bounded(checks_out, LARGEST_DATA_BYTES))))
    except (OSError, ValueError, Misconfigured) as error:
        raise Infra(f"pytest ended with {done.returncode} and left no check results; see {log}.", log=log) from error
    if done.returncode == 0 and not all(check.ok for check in checks):
        raise Infra(f"pytest passed although a check failed; see {log}.", log=log)
    return checks


def conclude(facts: RunFacts, checks: tuple[CheckResult, ...]) -> Judgement:
    """The verdict of a run whose checks ran. Pure. A check that the deployment names but nobody ran is no pass."""
    missing = [name for name in facts.checks if name not in {check.name for check in checks}]
    if missing or not facts.checks:
        names = ", ".join(missing) or "every check"
        return Judgement(Verdict.INFRA, f"Not judged: {names}.", checks)
    failed = [check for check in checks if not check.ok]
    if not failed:
        return Judgement(Verdict.PASS, _passed(facts, checks), checks)
    worst = min(failed, key=lambda check: _ORDER.index(_verdict_of(check)))
    others = len(failed) - 1
    more = f" ({others} more failed)" if others else ""
    return Judgement(_verdict_of(worst), f"{worst.name}: {worst.summary}{more}", checks)


def _verdict_of(check: CheckResult) -> Verdict:
    # A failed check that calls itself a pass is a broken check, and a broken check is not the engine's fault.
    return Verdict(check.verdict) if check.verdict != "pass" else Verdict.INFRA


def _passed(facts: RunFacts, checks: tuple[CheckResult, ...]) -> str:
    return f"All {len(checks)} checks passed over {facts.prompts} requests."
