from __future__ import annotations

import stat
from pathlib import Path

import pytest

from harness.report.annotation import annotation, annotation_style, publish
from harness.verdict import Verdict
from tests.unit.report_inputs import CANARY, HOSTILE, failed_check, result


def test_the_worst_run_is_on_top_and_its_first_error_is_quoted() -> None:
    good = result(verdict=Verdict.PASS, deployment="mtp-pd", reason="All checks passed.", root_line=None, checks=[])
    text = annotation([good, result()], {})
    assert text.index("**regression**") < text.index("**pass**")
    assert "```\n(EngineCore_DP0) ValueError: layer 78 weights missing from checkpoint\n```" in text
    assert "| acceptance&#95;length | 2.3100 | 2.6000 | ±5 % | **✗** |" in text
    assert (
        "<details open><summary>regression eagle3&#45;pd" in text
        or "<details open><summary>regression eagle3-pd (device)</summary>" in text
    )


def test_artifacts_are_linked_by_the_path_they_were_uploaded_under() -> None:
    text = annotation([result()], {result().run_id: ["eagle3 pd/report.html"]})
    assert '<a href="artifact://eagle3%20pd/report.html">' in text


def test_hostile_text_stays_in_its_cell_and_in_its_quote() -> None:
    run = result(
        reason=HOSTILE + "\n| x",
        root_line="```\n# out\n" + HOSTILE,
        checks=[failed_check(name=HOSTILE, summary=HOSTILE)],
    )
    text = annotation([run], {})
    outside = text.replace(text[text.index("````") : text.rindex("````")], "")
    assert "<script>" not in outside
    assert "[l](http" not in outside
    row = next(line for line in text.splitlines() if line.startswith("| **regression**"))
    assert row.count("|") == 5
    assert not {c for c in text if ord(c) < 32 and c != "\n"}
    assert text.count("\n````\n") == 2


def test_a_secret_never_reaches_the_annotation() -> None:
    leak = f"token {CANARY}"
    run = result(reason=leak, root_line=leak, checks=[failed_check(summary=leak)])
    assert "CANARY" not in annotation([run], {})


def test_no_result_is_an_error_and_never_a_success() -> None:
    assert "No run left a result" in annotation([], {})
    assert annotation_style([]) == "error"


def test_the_colour_is_that_of_the_worst_verdict() -> None:
    good, infra = result(verdict=Verdict.PASS), result(verdict=Verdict.INFRA)
    assert annotation_style([good]) == "success"
    assert annotation_style([good, infra]) == "warning"
    assert annotation_style([good, infra, result()]) == "error"


def test_an_annotation_is_cut_before_it_is_refused() -> None:
    runs = [result(checks=[failed_check(summary="é" * 1900) for _ in range(20)]) for _ in range(40)]
    text = annotation(runs, {})
    assert len(text.encode()) < 1 << 20
    assert "cut: too long" in text


def agent(folder: Path, script: str) -> str:
    """A program called buildkite-agent that keeps its arguments and input beside itself."""
    path = folder / "buildkite-agent"
    path.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" >> {folder}/argv\n[ "$1" = annotate ] && cat > {folder}/body\n{script}\n'
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_without_the_agent_the_markdown_is_a_file(tmp_path: Path) -> None:
    said = publish("# x", [], tmp_path, style="error", find=lambda _: None)
    assert (tmp_path / "annotation.md").read_text() == "# x"
    assert "annotation.md" in said


def test_with_the_agent_artifacts_and_markdown_are_sent(tmp_path: Path) -> None:
    program = agent(tmp_path, "exit 0")
    runs = tmp_path / "runs"
    runs.mkdir()
    said = publish("$(id) `x`", [runs / "a.html", runs / "b c.json"], runs, style="error", find=lambda _: program)
    assert (tmp_path / "argv").read_text().splitlines() == [
        *("artifact", "upload", "a.html;b c.json"),
        *("annotate", "--style", "error", "--context", "spec-decode-gate"),
    ]
    assert (tmp_path / "body").read_text() == "$(id) `x`"
    assert "2 artifacts uploaded" in said


def test_an_agent_that_fails_is_named_and_the_file_is_still_there(tmp_path: Path) -> None:
    program = agent(tmp_path, "echo no access token >&2; exit 4")
    said = publish("x", [], tmp_path, style="info", find=lambda _: program)
    assert "exited 4: no access token" in said
    assert (tmp_path / "annotation.md").exists()


def test_a_name_that_is_a_glob_is_not_uploaded(tmp_path: Path) -> None:
    program = agent(tmp_path, "exit 0")
    said = publish("x", [tmp_path / "*"], tmp_path, style="info", find=lambda _: program)
    assert "glob character" in said
    assert "upload" not in (tmp_path / "argv").read_text()


def test_an_artifact_outside_of_the_folder_is_a_mistake(tmp_path: Path) -> None:
    program = agent(tmp_path, "exit 0")
    with pytest.raises(ValueError, match="not in the subpath"):
        publish("x", [Path("/elsewhere/x")], tmp_path, style="info", find=lambda _: program)
