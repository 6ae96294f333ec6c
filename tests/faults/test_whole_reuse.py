"""Sessions of one invocation: an equal reference server is started once, and never stands in where a run would fail."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest

from harness.plan.types import Plan
from harness.result import Result
from harness.runtime.identity import own_identity
from harness.verdict import Verdict
from tests.faults.whole_run import Outcome, Whole

pytestmark = pytest.mark.whole_run

HERE = own_identity()
NOTE = "no reference server: an equal one answered the same requests in run"


def servers(outcome: Outcome) -> list[list[str]]:
    """The servers that the run planned and started, by stage."""
    folder = Path(outcome.shown.run_dir)
    stages = json.loads((folder / "plan.json").read_text())["stages"]
    named = [[server["name"] for server in stage["servers"]] for stage in stages]
    assert {path.stem for path in (folder / "logs").glob("*-0.log")} == {name for stage in named for name in stage}
    return named


def passed(outcome: Outcome) -> Result:
    assert outcome.result is not None
    assert outcome.result.verdict is Verdict.PASS, outcome.shown.reason
    return outcome.result


@pytest.mark.parametrize(
    ("placed", "stages"), [("auto", [["server-0", "reference-0"]]), ("after", [["server-0"], ["reference-0"]])]
)
def test_two_sessions_of_one_invocation_start_an_equal_reference_once(
    whole: Whole, placed: str, stages: list[list[str]]
) -> None:
    first = whole.run(name="tp1", invocation=HERE, reference=placed)
    assert passed(first).reference_from is None
    assert servers(first) == stages
    second = whole.run(name="dp1", invocation=HERE, reference=placed)
    assert passed(second).reference_from == first.shown.run_id
    assert servers(second) == [["server-0"]]
    assert f"{NOTE} {first.shown.run_id}" in second.output
    assert f"reference from run {first.shown.run_id}" in second.output
    assert first.shown.run_id in (Path(second.shown.run_dir) / "report.html").read_text()
    assert "472 of 472 positions hold the reference's token" in second.output
    folder = whole.locations.state / "references"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in folder.iterdir()] == [0o600]


def with_another_seed(plan: Plan) -> Plan:
    """The reference with one argument more."""
    (stage,) = plan.stages
    judged, reference = stage.servers
    reference = dataclasses.replace(reference, argv=(*reference.argv, "--seed", "1"))
    return dataclasses.replace(plan, stages=(dataclasses.replace(stage, servers=(judged, reference)),))


def test_another_argv_engine_workload_or_environment_gets_a_reference_of_its_own(whole: Whole) -> None:
    passed(whole.run(name="tp1", invocation=HERE))
    alone = [["server-0"]]
    assert servers(whole.run(name="dp1", invocation=HERE)) == alone
    assert servers(whole.run(with_another_seed, name="dp1", invocation=HERE)) != alone
    assert servers(whole.run(name="dp1", invocation=HERE, prompts=5)) != alone
    assert servers(whole.run(name="dp1", invocation=HERE, concurrency=1)) != alone
    assert servers(whole.run(name="dp1", invocation=None)) != alone
    whole.extra = {"TORCH_SWITCH": "1"}
    assert servers(whole.run(name="dp1", invocation=HERE)) != alone
    whole.extra = {}
    # Its interpreter was replaced.
    os.utime(whole.bench.python)
    assert servers(whole.run(name="dp1", invocation=HERE)) != alone


def test_no_regression_is_declared_on_kept_answers(whole: Whole) -> None:
    prompts = list(json.loads((whole.fake / "paired.json").read_text()))
    passed(whole.run(name="tp1", invocation=HERE))
    whole.faults(server={"differs": prompts[3:4], "differs_at": 5})
    outcome = whole.run(name="dp1", invocation=HERE)
    assert outcome.shown.verdict is Verdict.REGRESSION
    assert outcome.shown.reference_from is None
    assert servers(outcome) == [["server-0"], ["reference-0"]]
    assert "starting the reference after all" in outcome.output
    (found,) = [check for check in outcome.shown.checks if check.name == "token_match"]
    assert "control, the reference against itself: 472 of 472" in found.summary


def test_a_run_that_fails_keeps_nothing(whole: Whole) -> None:
    prompts = list(json.loads((whole.fake / "paired.json").read_text()))
    whole.faults(reference={"differs": prompts[3:4], "differs_at": 5})
    assert whole.run(name="tp1", invocation=HERE).shown.verdict is Verdict.REGRESSION
    assert not (whole.locations.state / "references").exists()
    whole.faults()
    assert passed(whole.run(name="dp1", invocation=HERE)).reference_from is None


def test_any_run_removes_what_was_kept_for_an_invocation_that_has_ended(whole: Whole) -> None:
    folder = whole.locations.state / "references"
    passed(whole.run(name="tp1", invocation=HERE))
    (path,) = folder.iterdir()
    ended = path.with_name(path.name.replace(f"_{HERE.create_time}_", "_1_"))
    path.rename(ended)
    passed(whole.run(name="dp1"))
    assert list(folder.iterdir()) == []
