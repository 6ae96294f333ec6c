from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from harness.report.junit import merge_junit, write_merged
from harness.result import write_result
from harness.verdict import Verdict
from tests.unit.report_inputs import CANARY, result

PASSING = '<testcase classname="c" name="one" time="0.5"/><testcase classname="c" name="two" time="0.25"/>'
FAILING = '<testcase classname="c" name="one" time="0.5"><failure message="low">al 2.31</failure></testcase>'


def run_dir(
    parent: Path, name: str, cases: str | None, verdict: Verdict | None = Verdict.PASS, **changes: object
) -> Path:
    folder = parent / name
    folder.mkdir()
    if cases is not None:
        suite = f'<testsuite name="pytest" tests="99" errors="99">{cases}</testsuite>'
        (folder / "junit.xml").write_text(f"<testsuites>{suite}</testsuites>")
    if verdict is not None:
        write_result(folder, result(deployment=name, kv_buffer=None, verdict=verdict, **changes))
    return folder


def merged(*folders: Path) -> ElementTree.Element:
    return ElementTree.fromstring(merge_junit(folders))


def test_suites_are_named_after_their_deployments_and_counted_again(tmp_path: Path) -> None:
    root = merged(run_dir(tmp_path, "a", PASSING), run_dir(tmp_path, "b", FAILING, Verdict.REGRESSION))
    assert [suite.get("name") for suite in root] == ["a", "b"]
    assert {key: root.get(key) for key in ("tests", "failures", "errors", "skipped", "time")} == {
        "tests": "3",
        "failures": "1",
        "errors": "0",
        "skipped": "0",
        "time": "1.250",
    }


def test_a_run_without_junit_is_an_error_with_its_reason_and_root_line(tmp_path: Path) -> None:
    folder = run_dir(tmp_path, "a", None, Verdict.INFRA, reason="Device 0 is held by another run.")
    (case,) = merged(folder).findall("testsuite/testcase")
    error = case.find("error")
    assert error is not None
    assert error.get("message") == "infra: Device 0 is held by another run."
    assert "layer 78 weights missing" in (error.text or "")


@pytest.mark.parametrize(
    ("cases", "verdict", "message"),
    [
        (None, None, "left no readable result.json"),
        (PASSING, None, "left no readable result.json"),
        (None, Verdict.PASS, "The run says pass, but there is no readable junit.xml"),
        ("", Verdict.PASS, "holds no test"),
        ("<broken", Verdict.PASS, "is not XML"),
        (PASSING, Verdict.INFRA, "infra: Acceptance length"),
        (PASSING, Verdict.UNSUPPORTED, "unsupported: Acceptance length"),
    ],
)
def test_nothing_passes_because_something_is_missing(
    tmp_path: Path, cases: str | None, verdict: Verdict | None, message: str
) -> None:
    root = merged(run_dir(tmp_path, "a", cases, verdict))
    assert root.get("errors") == "1"
    error = root.find("testsuite/testcase[@name='verdict']/error")
    assert error is not None
    assert message in (error.get("message") or "")


def test_a_failed_test_needs_no_second_error(tmp_path: Path) -> None:
    root = merged(run_dir(tmp_path, "a", FAILING, Verdict.REGRESSION))
    assert (root.get("failures"), root.get("errors")) == ("1", "0")


def test_a_result_that_is_not_one_is_an_error(tmp_path: Path) -> None:
    folder = run_dir(tmp_path, "a", PASSING, None)
    (folder / "result.json").write_text('{"verdict": "pass"}')
    assert merged(folder).get("errors") == "1"


def test_a_document_type_is_refused(tmp_path: Path) -> None:
    folder = run_dir(tmp_path, "a", PASSING)
    (folder / "junit.xml").write_text('<!DOCTYPE x [<!ENTITY a "b">]><testsuite><testcase name="&a;"/></testsuite>')
    assert merged(folder).get("errors") == "1"


def test_secrets_and_illegal_characters_do_not_survive(tmp_path: Path) -> None:
    case = f'<testcase classname="c" name="x"><failure message="{CANARY}">{CANARY}</failure></testcase>'
    folders = [
        run_dir(tmp_path, "a", case, Verdict.REGRESSION),
        run_dir(tmp_path, "b", None, Verdict.INFRA, reason=f"bad \x00\x1b[31m {CANARY}", root_line="\x0c\ufffe<&"),
    ]
    write_merged(folders, tmp_path / "merged.xml")
    text = (tmp_path / "merged.xml").read_text("utf-8")
    ElementTree.fromstring(text.encode())
    assert "CANARY" not in text


def test_no_runs_make_an_empty_document() -> None:
    assert merged().get("tests") == "0"
