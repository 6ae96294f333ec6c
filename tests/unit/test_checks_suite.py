"""The shared pytest assertions, run as the runner runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.deployments import PD_CHECKS
from harness.facts import RunFacts
from tests.unit import check_facts as cf

ROOT = Path(__file__).parents[2]


def judged(facts: RunFacts | str, folder: Path) -> tuple[int, str, dict[str, dict[str, object]]]:
    """Exit code, printed text, and the written results by check name."""
    source, out = folder / "facts.json", folder / "checks.json"
    source.write_text(facts if isinstance(facts, str) else facts.model_dump_json())
    command = [
        sys.executable,
        "-m",
        "pytest",
        "tests/acceptance",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:hypothesispytest",
    ]
    command += ["--facts", str(source), "--checks-out", str(out), "--junitxml", str(folder / "junit.xml")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    results = json.loads(out.read_text()) if out.exists() else []
    return done.returncode, done.stdout + done.stderr, {result["name"]: result for result in results}


def test_a_good_run_passes_and_every_check_is_written(tmp_path: Path) -> None:
    code, _, results = judged(cf.passing(), tmp_path)
    assert code == 0
    assert list(results) == list(PD_CHECKS)
    assert all(result["ok"] for result in results.values())
    assert (tmp_path / "junit.xml").read_text().count("<testcase") == len(PD_CHECKS)


def test_a_failed_check_prints_its_sentence_and_no_traceback(tmp_path: Path) -> None:
    facts = cf.with_request(cf.passing(), 1, token_ids=(5, 9, 7)).model_copy(
        update={"checks": ("output_matches_reference", "token_counts", "no_such_check")}
    )
    code, text, results = judged(facts, tmp_path)
    assert code == 1
    assert "p1 at position 1: expected token 6, got token 9" in text
    assert "Traceback" not in text
    assert "def test_check" not in text
    assert [results[name]["ok"] for name in facts.checks] == [False, True, False]
    assert results["no_such_check"]["verdict"] == "misconfigured"


def test_a_run_without_checks_fails(tmp_path: Path) -> None:
    code, text, results = judged(cf.passing().model_copy(update={"checks": ()}), tmp_path)
    assert code == 1
    assert "names no checks" in text
    assert results == {}


def test_a_check_that_breaks_is_infra_with_its_error_quoted(tmp_path: Path) -> None:
    # A label that no engine writes: the check's own int() raises.
    facts = cf.passing(decode={("spec_decode_num_accepted_tokens_per_pos_total", "position=last"): 1})
    facts = facts.model_copy(update={"checks": ("acceptance_identity", "token_counts")})
    code, text, results = judged(facts, tmp_path)
    assert code == 1
    assert results["acceptance_identity"]["verdict"] == "infra"
    assert "ValueError" in str(results["acceptance_identity"]["summary"])
    assert results["token_counts"]["ok"]
    assert "Traceback" not in text


@pytest.mark.parametrize("facts", ["{}", "not json"])
def test_facts_that_are_none_are_a_usage_error(tmp_path: Path, facts: str) -> None:
    code, text, _ = judged(facts, tmp_path)
    assert code == 4
    assert "holds no run facts" in text
