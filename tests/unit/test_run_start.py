from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from harness.errors import GateError, Infra, Misconfigured, Unsupported
from harness.run.start import refused
from tests.unit.run_inputs import locations, only_result


def said(error: GateError, folder: Path, environment: dict[str, str]) -> tuple[int, str]:
    stream = io.StringIO()
    code = refused("eagle3-pd", locations(folder), error, Console(file=stream, width=120), environment)
    return code, " ".join(stream.getvalue().split())


@pytest.mark.parametrize("error", [Misconfigured("typo"), Infra("no network"), Unsupported("no such option")])
def test_a_refusal_leaves_its_verdict_on_the_terminal_and_on_disk(tmp_path: Path, error: GateError) -> None:
    code, text = said(error, tmp_path, {})
    left = only_result(tmp_path / "runs")
    assert code == error.verdict.exit_code
    assert text.startswith(error.verdict.upper())
    assert (left["verdict"], left["reason"]) == (error.verdict.value, str(error))
    assert (Path(left["run_dir"]) / "report.html").is_file()


def test_a_refusal_does_not_repeat_a_secret(tmp_path: Path) -> None:
    code, text = said(Misconfigured("cannot use s3cr3t-word"), tmp_path, {"MY_TOKEN": "s3cr3t-word"})
    assert code == 2
    assert "s3cr3t" not in text
    assert "s3cr3t" not in only_result(tmp_path / "runs")["reason"]


def test_two_mistakes_are_both_said(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("in the way", "utf-8")
    code, text = said(Misconfigured("typo"), tmp_path, {})
    assert code == 2
    assert "typo" in text
    assert "a file is in its place" in text
