from __future__ import annotations

from pathlib import Path

import pytest

from harness.baselines import load
from harness.errors import Misconfigured
from harness.facts import RunFacts
from harness.result import read_result
from harness.run import again
from harness.run.again import judge_again, record_baseline
from harness.verdict import Verdict
from tests.unit import check_facts as cf
from tests.unit.run_inputs import checks_in_process, finished_run


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(again, "run_assertions", checks_in_process)


def hub_run(folder: Path) -> Path:
    return finished_run(folder, cf.hub(), model_set="hub", workload={"name": "mt-bench", "hash": "b" * 64})


def recorded(folder: Path, run: Path) -> Path:
    path = folder / "baselines.toml"
    record_baseline(run, path, None, "first run on this machine")
    return path


def test_what_is_recorded_carries_its_certificate(tmp_path: Path) -> None:
    run = hub_run(tmp_path)
    (entry,) = load(recorded(tmp_path, run))
    assert (entry.key, entry.acceptance_length, entry.per_position) == ("eagle3-pd/hub", 2.5, (0.8, 0.4, 0.3))
    assert entry.certificate.workload == f"sha256:{'b' * 64}"
    assert entry.certificate.vllm_version == "0.32.0"
    assert entry.certificate.hardware == "0 CPU core 0; 1 CPU core 1"
    assert entry.certificate.source.startswith("run 2025")
    assert entry.certificate.reason == "first run on this machine"


def test_a_run_passes_its_own_baseline_and_fails_one_moved_by_six_percent(tmp_path: Path) -> None:
    run = hub_run(tmp_path)
    path = recorded(tmp_path, run)
    assert judge_again(run, path).verdict is Verdict.PASS
    for moved in ("2.65", "2.35"):
        other = tmp_path / "moved.toml"
        other.write_text(path.read_text("utf-8").replace("acceptance_length = 2.5", f"acceptance_length = {moved}"))
        result = judge_again(run, other)
        assert result.verdict is Verdict.REGRESSION
        assert "acceptance length 2.500" in result.reason
        assert moved in result.reason
        assert read_result(run).verdict is Verdict.REGRESSION


def test_without_another_file_the_facts_are_judged_as_they_are(tmp_path: Path) -> None:
    run = finished_run(tmp_path, verdict=Verdict.REGRESSION, reason="stale")
    assert judge_again(run, None).verdict is Verdict.PASS
    written = read_result(run)
    assert (written.figures["drafts"], written.next_step) == (14, None)
    assert "stale" not in (run / "report.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("facts", "word"),
    [
        (cf.passing(), "tiny checkpoints"),
        (cf.with_request(cf.hub(), 1, error="refused"), "1 requests of that run failed"),
    ],
)
def test_a_run_that_is_no_source_is_not_recorded(tmp_path: Path, facts: RunFacts, word: str) -> None:
    run = finished_run(tmp_path, facts, model_set=facts.model_set)
    with pytest.raises(Misconfigured, match=word):
        recorded(tmp_path, run)
    assert not (tmp_path / "baselines.toml").exists()


@pytest.mark.parametrize("spoil", ["absent", "broken"])
def test_a_folder_without_readable_facts_is_named(tmp_path: Path, spoil: str) -> None:
    run = finished_run(tmp_path)
    if spoil == "absent":
        (run / "facts.json").unlink()
    else:
        (run / "facts.json").write_text("{}", "utf-8")
    with pytest.raises(Misconfigured, match=r"facts\.json does not exist|holds no readable run"):
        judge_again(run, None)


def test_a_run_that_failed_something_else_is_no_source(tmp_path: Path) -> None:
    lost = cf.hub().model_copy(update={"baseline": None})
    run = finished_run(tmp_path, lost, model_set="hub", workload={"name": "mt-bench", "hash": "b" * 64})
    # Without a baseline only what it would judge fails, and that is the run to record.
    first = judge_again(run, None)
    assert first.verdict is Verdict.MISCONFIGURED
    assert "nothing to judge against" in first.reason
    recorded(tmp_path, run)
    broken = cf.with_server(lost, "decode-0", answered_after_run=False, after_error="HTTP 500")
    (run / "facts.json").write_text(broken.model_dump_json(), "utf-8")
    judge_again(run, None)
    with pytest.raises(Misconfigured, match=r"failed answers_after_run; a value measured while that was wrong"):
        recorded(tmp_path, run)
