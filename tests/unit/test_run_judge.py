from __future__ import annotations

from pathlib import Path

import pytest

from harness.checks.registry import judge
from harness.deployments import PD_CHECKS
from harness.errors import Infra
from harness.facts import CheckResult, RunFacts
from harness.run import judge as judging
from harness.run.judge import CHECKS_NAME, Judgement, conclude, run_assertions
from harness.verdict import Verdict
from tests.unit import check_facts as cf
from tests.unit.run_inputs import run_folder

NO_DRAFTS: cf.Page = {key: 0.0 for key in cf.DECODE_RUN if key[0].startswith("spec_decode")}
SERVED = ("request_success_total", "finished_reason=length")


def judged(facts: RunFacts) -> Judgement:
    return conclude(facts, tuple(judge(name, facts) for name in facts.checks))


def check(name: str, ok: bool, verdict: str = "regression") -> CheckResult:
    return CheckResult.model_validate(
        {"name": name, "ok": ok, "verdict": "pass" if ok else verdict, "summary": f"{name} says so"}
    )


def test_a_good_run_passes() -> None:
    good = judged(cf.passing())
    assert (good.verdict, good.reason) == (Verdict.PASS, "All 14 checks passed over 4 requests.")


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (cf.passing(decode=NO_DRAFTS), "drafter never fired"),
        (cf.passing(prefill={SERVED: 0.0}), "prefill-0 served 0 of 4"),
        (
            cf.passing(decode={("nixl_bytes_transferred_sum", ""): 0.0, ("nixl_bytes_transferred_count", ""): 0.0}),
            "no KV was moved",
        ),
    ],
)
def test_a_run_with_perfect_text_that_did_less_than_asked_is_a_regression(facts: RunFacts, says: str) -> None:
    assert judge("output_matches_reference", facts).ok
    bad = judged(facts)
    assert bad.verdict is Verdict.REGRESSION
    assert says in bad.reason


def test_an_error_behind_a_200_is_no_pass_and_its_status_is_quoted() -> None:
    said = "http://127.0.0.1:21001 answered 200 but the body says 400 BadRequestError no KV"
    bad = judged(cf.with_request(cf.passing(), 2, body_error=said))
    assert bad.verdict is Verdict.REGRESSION
    assert "400 BadRequestError" in bad.reason


def test_a_check_that_nobody_ran_is_no_pass() -> None:
    facts = cf.passing()
    checks = tuple(check(name, ok=True) for name in PD_CHECKS)
    assert conclude(facts, checks).verdict is Verdict.PASS
    missing = conclude(facts, checks[:-1])
    assert (missing.verdict, missing.reason) == (Verdict.INFRA, f"Not judged: {PD_CHECKS[-1]}.")
    nothing = conclude(facts.model_copy(update={"checks": ()}), ())
    assert (nothing.verdict, nothing.reason) == (Verdict.INFRA, "Not judged: every check.")


def test_the_engine_is_blamed_before_the_gate_and_the_others_are_counted() -> None:
    facts = cf.passing().model_copy(update={"checks": ("a", "b", "c", "d")})
    found = (check("a", ok=False, verdict="infra"), check("b", ok=True), check("c", ok=False), check("d", ok=False))
    worst = conclude(facts, found)
    assert (worst.verdict, worst.reason) == (Verdict.REGRESSION, "c: c says so (2 more failed)")
    ours = conclude(facts, (found[0], *(check(name, ok=True) for name in "bcd")))
    assert (ours.verdict, ours.reason) == (Verdict.INFRA, "a: a says so")


def test_a_failure_that_calls_itself_a_pass_is_a_broken_check() -> None:
    facts = cf.passing().model_copy(update={"checks": ("a",)})
    assert conclude(facts, (check("a", ok=False, verdict="pass"),)).verdict is Verdict.INFRA


def test_the_assertions_leave_results_and_junit(tmp_path: Path) -> None:
    run = run_folder(tmp_path)
    found = run_assertions(run, cf.passing(decode=NO_DRAFTS))
    assert [one.name for one in found] == list(PD_CHECKS)
    assert not next(one for one in found if one.name == "drafts_on_every_engine").ok
    assert "drafter never fired" in (run / "junit.xml").read_text("utf-8")


def test_results_of_an_earlier_judgement_never_stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_folder(tmp_path)
    (run / CHECKS_NAME).write_text("[]", "utf-8")
    # pytest ends with a usage error: there is no such folder of tests with a conftest.
    monkeypatch.setattr(judging, "ACCEPTANCE_TESTS", run / "logs")
    with pytest.raises(Infra, match=r"pytest ended with \d and left no check results; see .*judge.log"):
        run_assertions(run, cf.passing())


def test_a_checkout_without_the_assertions_is_infra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "ACCEPTANCE_TESTS", tmp_path / "absent")
    with pytest.raises(Infra, match="run from a checkout"):
        run_assertions(run_folder(tmp_path), cf.passing())
