"""The CI part of the command line: a mistake is one sentence and code 2, a report says what the runs say."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner
from typer.testing import Result as Output

from harness.ci import reports
from harness.ci.cli import run_pipeline
from harness.ci.reports import run_report
from harness.cli import app
from harness.errors import Misconfigured
from harness.result import read_result, write_result
from harness.verdict import Verdict
from tests.unit.report_inputs import result


def invoke(*arguments: str) -> Output:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture(autouse=True)
def _no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    # Where this project's own CI runs, the agent is there: a test must not annotate the build.
    monkeypatch.setenv("PATH", "")


def ended(folder: Path, verdict: Verdict, **changes: object) -> Path:
    folder.mkdir()
    write_result(folder, result(run_id=folder.name, verdict=verdict, **changes))
    return folder


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("audit", "--vllm", "/nowhere"), "no vLLM checkout"),
        (("ci", "deps", "mtp-pd", "/nowhere"), "no import trace"),
        (("ci", "select"), "nothing to select by"),
        (("ci", "select", "--base", "no-such-ref", "--vllm", "/"), "git cannot compare"),
        (("report", "/nowhere", "--annotation"), "not a run folder"),
        (("report", "/", "--junit", "/nowhere/junit.xml"), "/nowhere"),
        (("report", "/"), "nothing to write"),
    ],
)
def test_a_mistake_is_one_sentence_and_code_2(
    arguments: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    output = invoke(*arguments)
    assert output.exit_code == 2
    assert says in output.output
    assert len(output.output.splitlines()) == 1


def test_files_without_the_option_that_names_them_are_refused() -> None:
    assert invoke("ci", "select", "vllm/envs.py").exit_code == 2


def test_a_changed_file_is_explained_for_each_step() -> None:
    output = invoke("ci", "select", "--changed", "vllm/model_executor/models/qwen3_5_mtp.py")
    assert output.exit_code == 0
    started = [line for line in output.output.splitlines() if line.startswith("run ")]
    assert any("mtp-pd (tiny" in line for line in started)
    assert all("qwen3_5_mtp.py is covered by" in line for line in started)


def test_the_pipeline_in_the_tree_is_the_rendered_one() -> None:
    output = invoke("pipeline", "--check")
    assert output.output == ""
    assert output.exit_code == 0


def test_reports_of_several_runs_become_one_and_the_worst_verdict_is_the_exit_code(tmp_path: Path) -> None:
    good = ended(tmp_path / "a", Verdict.PASS)
    bad = ended(tmp_path / "b", Verdict.REGRESSION)
    (bad / "report.html").write_text("<p>", encoding="utf-8")
    junit = tmp_path / "all.xml"
    assert run_report([good, bad], junit, annotate=True) == Verdict.REGRESSION.exit_code
    assert len(ElementTree.parse(junit).getroot().findall("testsuite")) == 2
    markdown = (tmp_path / "annotation.md").read_text(encoding="utf-8")
    assert markdown.index("regression") < markdown.index("pass")
    assert "artifact://b/report.html" in markdown


def test_unsupported_counts_unless_it_was_allowed_by_name(tmp_path: Path) -> None:
    runs = [ended(tmp_path / "a", Verdict.PASS), ended(tmp_path / "b", Verdict.UNSUPPORTED)]
    name = read_result(runs[1]).deployment
    assert run_report(runs, tmp_path / "all.xml", annotate=False) == Verdict.UNSUPPORTED.exit_code
    assert run_report(runs, tmp_path / "all.xml", annotate=False, allow=["other"]) == Verdict.UNSUPPORTED.exit_code
    assert run_report(runs, tmp_path / "all.xml", annotate=False, allow=[name]) == 0
    bad = ended(tmp_path / "c", Verdict.REGRESSION)
    assert run_report([*runs, bad], tmp_path / "all.xml", annotate=False, allow=[name]) == 1


def test_a_folder_without_a_result_is_infra_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = ended(tmp_path / "a", Verdict.PASS)
    lost = tmp_path / "lost"
    lost.mkdir()
    assert run_report([good, lost], None, annotate=True) == Verdict.INFRA.exit_code
    assert "lost left no readable result.json" in capsys.readouterr().out
    assert "lost" in (tmp_path / "annotation.md").read_text(encoding="utf-8")


def test_a_finding_about_the_expectations_is_in_the_annotation(tmp_path: Path) -> None:
    run = ended(tmp_path / "a", Verdict.REGRESSION, finding="The expectation X expired on 2026-12-31")
    run_report([run], None, annotate=True)
    assert "The expectation X expired" in (tmp_path / "annotation.md").read_text(encoding="utf-8")


def test_nothing_asked_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="nothing to write"):
        run_report([tmp_path], None, annotate=False)
    assert reports.read_or_none(tmp_path) is None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--expectations", "/nowhere.toml"), "/nowhere.toml cannot be read"),
        (("--trace", "--launch", "warm"), "--trace needs --launch spawn"),
    ],
)
def test_a_run_that_cannot_be_traced_or_judged_starts_nothing(
    tmp_path: Path, options: tuple[str, ...], says: str
) -> None:
    output = invoke("run", "mtp-pd", "--runs-dir", str(tmp_path), *options)
    assert output.exit_code == 2
    assert says in " ".join(output.output.split())


def test_an_expired_expectation_fails_the_check_of_the_pipeline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_pipeline(tmp_path, check=False) == 0
    entry = {
        "deployments": '["mtp-pd"]',
        "vllm": '">=0.32"',
        "signature": '"is not supported"',
        "reason": '"refused"',
        "link": '"vllm/envs.py:1"',
        "added": "2025-01-01",
        "expires": "2025-02-01",
    }
    lines = [f"{name} = {value}" for name, value in entry.items()]
    (tmp_path / "expectations.toml").write_text("\n".join(["[[expect]]", *lines]), encoding="utf-8")
    capsys.readouterr()
    assert run_pipeline(tmp_path, check=True) == 1
    assert "expired on 2025-02-01" in capsys.readouterr().out
