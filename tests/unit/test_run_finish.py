from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.files import LARGEST_DATA_BYTES
from harness.result import read_result
from harness.run.finish import finish, next_step, own_secrets, reserve, shorten_logs
from harness.verdict import Verdict
from tests.unit.run_inputs import journal, result_of, run_folder

CANARY = "hf_CANARYcanaryCANARYcanaryCANARYcanary"


@contextmanager
def full_disk() -> Iterator[None]:
    """No file can grow beyond 4 KiB, as on a disk that is almost full.

    Around one call only: as a fixture it would also cut off pytest's own output when that goes to a file.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_finished_run_leaves_result_and_report(tmp_path: Path) -> None:
    run = run_folder(tmp_path)
    reserve(run)
    log = journal(run)
    with log.phase("drive"):
        pass
    shown = finish(result_of(run), log, run, {}, keep_logs=False)
    assert read_result(run) == shown
    assert [phase.name for phase in shown.phases] == ["drive"]
    assert "eagle3-pd" in (run / "report.html").read_text("utf-8")
    assert sorted(path.name for path in run.iterdir()) == ["events.jsonl", "logs", "report.html", "result.json"]


def test_the_result_stands_when_everything_after_it_fails(tmp_path: Path) -> None:
    run = run_folder(tmp_path)
    (run / "report.html").mkdir()
    (run / "logs" / "broken.log").symlink_to("absent")
    (run / "requests.jsonl").write_text("{half a rec\n", "utf-8")
    finish(result_of(run), journal(run), run, {}, keep_logs=False)
    assert read_result(run).verdict is Verdict.PASS
    assert "report.html could not be written" in (run / "events.jsonl").read_text("utf-8")


def test_a_result_that_cannot_be_written_is_no_traceback(tmp_path: Path) -> None:
    run = run_folder(tmp_path)
    (run / "result.json").mkdir()
    shown = finish(result_of(run), journal(run), run, {}, keep_logs=False)
    assert shown.verdict is Verdict.PASS
    assert "result.json could not be written" in (run / "events.jsonl").read_text("utf-8")


def test_no_space_for_the_result_is_found_out_before_the_run(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    with pytest.raises(OSError), full_disk():
        reserve(folder)


def test_requests_that_are_too_many_cost_the_report_and_not_the_result(tmp_path: Path) -> None:
    run = run_folder(tmp_path)
    with (run / "requests.jsonl").open("wb") as stream:
        stream.truncate(LARGEST_DATA_BYTES + 1)
    finish(result_of(run), journal(run), run, {}, keep_logs=True)
    assert read_result(run).verdict is Verdict.PASS
    assert "report.html could not be written" in (run / "events.jsonl").read_text("utf-8")
    assert not (run / "report.html").exists()


def test_a_secret_of_the_environment_is_in_no_file(tmp_path: Path) -> None:
    run = run_folder(tmp_path)
    environment = {"HF_TOKEN": CANARY, "MY_PASSWORD": "plain-canary-word", "HTTPS_PROXY": "http://u:canary-pw@proxy"}
    (run / "logs" / "decode-0.log").write_text(f"said {CANARY} and plain-canary-word\n", "utf-8")
    leak = f"cannot reach http://u:canary-pw@proxy/x with {CANARY} or plain-canary-word"
    result = result_of(run, verdict=Verdict.INFRA, reason=leak, root_line=leak, engine={"vllm": leak})
    finish(result, journal(run), run, environment, keep_logs=True)
    for name in ("result.json", "report.html", "events.jsonl"):
        assert "canary" not in (run / name).read_text("utf-8").lower(), name


@pytest.mark.parametrize("value", ["regression", "device", "failed", "infra", "gressi"])
def test_a_value_that_is_one_of_our_own_words_is_no_secret(tmp_path: Path, value: str) -> None:
    run = run_folder(tmp_path)
    assert own_secrets({"SORT_KEY": value}) == frozenset()
    result = result_of(run, verdict=Verdict.REGRESSION)
    assert finish(result, journal(run), run, {"SORT_KEY": value}, keep_logs=True).verdict is Verdict.REGRESSION


def test_a_long_log_of_a_pass_keeps_both_ends_and_a_short_one_everything(tmp_path: Path) -> None:
    logs = run_folder(tmp_path) / "logs"
    (logs / "long.log").write_bytes(b"first" + b"." * (3 << 20) + b"last")
    (logs / "short.log").write_bytes(b"whole")
    shorten_logs(logs)
    text = (logs / "long.log").read_bytes()
    assert text.startswith(b"first")
    assert text.endswith(b"last")
    assert b"bytes left out of a passing run (--keep-logs)" in text
    assert len(text) < (2 << 20) + 200
    assert (logs / "short.log").read_bytes() == b"whole"


@pytest.mark.parametrize(
    ("verdict", "log", "step"),
    [
        (Verdict.PASS, None, None),
        (Verdict.MISCONFIGURED, None, None),
        (Verdict.REGRESSION, "/r/logs/decode-0.log", "less /r/logs/decode-0.log"),
        (Verdict.REGRESSION, None, "python -m harness judge /r"),
        (Verdict.UNSUPPORTED, None, "python -m harness judge /r"),
        (Verdict.INFRA, "/r/logs/decode-0.log", "nox -s doctor"),
        (Verdict.INTERRUPTED, None, "nox -s doctor"),
    ],
)
def test_the_next_step_fits_the_verdict(verdict: Verdict, log: str | None, step: str | None) -> None:
    assert next_step(result_of(Path("/r"), verdict=verdict, log=log)) == step
