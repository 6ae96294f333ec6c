"""lm-eval as a process: what it is told, what is read of what it leaves, how it ends. A stand-in plays it."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from harness.drive import lm_eval
from harness.drive.lm_eval import Evaluation, evaluate, prepare_evaluation, read_results
from harness.errors import EngineFailed, Infra, Interrupted, Misconfigured
from harness.facts import EvaluationFacts
from harness.runtime.identity import identify

# Writes what it was told, then what lm-eval would: two of three right. It reads the task file as lm-eval does.
STAND_IN = """
import json, os, sys, time
from pathlib import Path

def cli_evaluate():
    Path("pid").write_text(str(os.getpid()))
    print("told", json.dumps(sys.argv[1:]), flush=True)
    if os.environ.get("STAND_IN") == "hang":
        time.sleep(60)
    if os.environ.get("STAND_IN") == "fail":
        sys.exit("ValueError: no such task")
    if os.environ.get("STAND_IN") == "refused":
        print("API request failed! Status code: 500, Response text: out of blocks. Retrying...")
        sys.exit("tenacity.RetryError")
    options = dict(zip(sys.argv[2::2], sys.argv[3::2]))
    folder = Path(options["--output_path"]) / "m"
    folder.mkdir()
    scores = {"exact_match,flexible-extract": 2 / 3, "exact_match,strict-match": 1 / 3}
    result = {"results": {"local_gsm8k": scores}, "n-samples": {"local_gsm8k": {"effective": 3}}}
    (folder / "results_now.json").write_text(json.dumps(result | {"lm_eval_version": "9.9"}))
"""
URL = "http://127.0.0.1:9"


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package called lm_eval, here and on the PYTHONPATH of what is started."""
    package = tmp_path / "site" / "lm_eval"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(str(package.parent))
    for name in [name for name in sys.modules if name.partition(".")[0] == "lm_eval"]:
        monkeypatch.delitem(sys.modules, name)
    return package.parent


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    path = tmp_path / "problems.jsonl"
    lines = [{"question": f"What is {i}+{i}?", "answer": f"It is {2 * i}.\n#### {2 * i}"} for i in range(8)]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return path


def asked(stand_in: Path, problems: Path | None, folder: Path, **changes: object) -> EvaluationFacts:
    environment = {**os.environ, "PYTHONPATH": str(stand_in), "STAND_IN": str(changes.pop("mode", ""))}
    evaluation = Evaluation(problems, 3, 64, environment)
    options = {"concurrency": 4, "budget_s": 30.0, "alive": lambda: None} | changes
    return evaluate(evaluation, URL, "m", "main", folder, **options)  # type: ignore[arg-type]


def told(folder: Path) -> list[str]:
    line = next(line for line in (folder / "lm-eval.log").read_text().splitlines() if line.startswith("told "))
    arguments: list[str] = json.loads(line.removeprefix("told "))
    return arguments


def test_a_local_file_becomes_lm_evals_own_task_over_it(stand_in: Path, problems: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run" / "main"
    found = asked(stand_in, problems, folder)
    assert (found.right, found.asked, found.exact_match_strict) == (2, 3, 1 / 3)
    assert (found.task, found.lm_eval_version, found.stage) == ("local_gsm8k", "9.9", "main")
    assert Path(found.output).is_relative_to(folder)
    arguments = told(folder)
    assert arguments[:3] == ["run", "--model", "local-completions"]
    model = arguments[arguments.index("--model_args") + 1].split(",")
    assert {f"base_url={URL}/v1/completions", "num_concurrent=4", "max_gen_toks=64", "max_retries=1", "model=m"} < set(
        model
    )
    task = json.loads(Path(arguments[arguments.index("--tasks") + 1]).read_text())
    assert task["include"] == str(stand_in / "lm_eval" / "tasks" / "gsm8k" / "gsm8k.yaml")
    lines = problems.read_text().splitlines()
    assert Path(task["dataset_kwargs"]["data_files"]["train"]).read_text().splitlines() == lines[:5]
    assert Path(task["dataset_kwargs"]["data_files"]["test"]).read_text().splitlines() == lines[5:8]
    assert "--limit" not in arguments


def test_without_a_file_lm_eval_asks_its_own_questions(stand_in: Path, tmp_path: Path) -> None:
    asked(stand_in, None, tmp_path / "main")
    arguments = told(tmp_path / "main")
    assert arguments[arguments.index("--tasks") + 1] == "gsm8k"
    assert arguments[arguments.index("--limit") + 1] == "3"


def test_a_failed_lm_eval_is_quoted_and_is_not_the_engines_fault(
    stand_in: Path, problems: Path, tmp_path: Path
) -> None:
    with pytest.raises(Infra, match="ended with code 1: ValueError: no such task") as end:
        asked(stand_in, problems, tmp_path / "main", mode="fail")
    assert end.value.log == tmp_path / "main" / "lm-eval.log"


def test_an_answer_that_is_none_is_the_engines_fault(stand_in: Path, problems: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineFailed, match="did not answer a question of lm-eval: API request failed! Status code: 5"):
        asked(stand_in, problems, tmp_path / "main", mode="refused")


def test_an_lm_eval_that_does_not_end_does_not_hide_why_the_run_did(
    stand_in: Path, problems: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lm_eval, "_END_S", 0.1)
    folder = tmp_path / "main"

    def stopped() -> None:
        # Its log begins when its id is written.
        if "told" in (folder / "lm-eval.log").read_text():
            process = psutil.Process(int((folder / "pid").read_text()))
            # Not in one go: it stops a moment after it is told to, and could still end with its pipe.
            if process.status() == psutil.STATUS_STOPPED:
                raise Interrupted("SIGTERM")
            process.suspend()

    try:
        with pytest.raises(Interrupted):
            asked(stand_in, problems, folder, mode="hang", alive=stopped)
    finally:
        os.kill(int((folder / "pid").read_text()), signal.SIGKILL)


def interrupts_once_it_runs(folder: Path) -> Callable[[], None]:
    def alive() -> None:
        if (folder / "pid").exists():
            raise Interrupted("SIGTERM")

    return alive


def test_an_interrupt_ends_lm_eval(stand_in: Path, problems: Path, tmp_path: Path) -> None:
    folder = tmp_path / "main"
    with pytest.raises(Interrupted):
        asked(stand_in, problems, folder, mode="hang", alive=interrupts_once_it_runs(folder))
    assert identify(int((folder / "pid").read_text())) is None


def test_an_evaluation_that_takes_too_long_is_ended(stand_in: Path, problems: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineFailed, match=r"within the 0\.5 s allowed"):
        asked(stand_in, problems, tmp_path / "main", mode="hang", budget_s=0.5)


@pytest.mark.parametrize(
    "content", [None, "", "[]", "{}", '{"results": {}}', '{"results": {"a": {}}, "n-samples": {}}']
)
def test_a_result_that_cannot_be_read_is_no_accuracy(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "m").mkdir()
        (tmp_path / "m" / "results_now.json").write_text(content)
    with pytest.raises(Infra, match="no result that can be read"):
        read_results(tmp_path, "main", tmp_path / "log", 3)


@pytest.mark.parametrize(("asked_of_3", "accuracy"), [(2, 0.5), (3, 1.7), (3, float("inf"))])
def test_an_accuracy_over_other_questions_or_beyond_one_is_none(
    tmp_path: Path, asked_of_3: int, accuracy: float
) -> None:
    scores = {"exact_match,flexible-extract": accuracy, "exact_match,strict-match": 0.0}
    found = {"results": {"t": scores}, "n-samples": {"t": {"effective": asked_of_3}}, "lm_eval_version": "9.9"}
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "results_now.json").write_text(json.dumps(found))
    with pytest.raises(Infra, match=f"over {asked_of_3} of 3 questions"):
        read_results(tmp_path, "main", tmp_path / "log", 3)


def test_lm_eval_that_is_not_installed_is_named_with_its_extra(problems: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lm_eval, "find_spec", lambda _: None)
    with pytest.raises(Misconfigured, match=r"spec-decode-gate\[lm-eval\]"):
        prepare_evaluation(problems, 3, 64, {}, offline=True)


@pytest.mark.usefixtures("stand_in")
def test_what_cannot_be_asked_is_refused_before_anything_starts(problems: Path, tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="offline"):
        prepare_evaluation(None, 3, 64, {}, offline=True)
    with pytest.raises(Misconfigured, match="holds 8 problems"):
        prepare_evaluation(problems, 4, 64, {}, offline=True)
    with pytest.raises(Misconfigured, match="cannot be read"):
        prepare_evaluation(tmp_path / "nowhere", 3, 64, {}, offline=False)


@pytest.mark.usefixtures("stand_in")
def test_no_key_goes_to_the_server_and_no_question_through_a_proxy(problems: Path) -> None:
    inherited = {"OPENAI_API_KEY": "sk-x", "https_proxy": "http://proxy", "NO_PROXY": "intern"}
    environment = prepare_evaluation(problems, 3, 64, inherited, offline=False).environment
    assert "OPENAI_API_KEY" not in environment
    assert environment["NO_PROXY"] == environment["no_proxy"] == "intern,127.0.0.1,localhost"
    lower = prepare_evaluation(problems, 3, 64, {"no_proxy": "low"}, offline=False).environment
    assert lower["NO_PROXY"] == lower["no_proxy"] == "low,127.0.0.1,localhost"
