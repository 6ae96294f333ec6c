from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from harness import cli
from harness.drive import lm_eval
from harness.run import again, prepare
from tests.unit.check_facts import Page, passing
from tests.unit.plan_inputs import CPU_MACHINE, engine
from tests.unit.run_inputs import checks_in_process, finished_run, only_result

Harness = Callable[..., Result]
EAGLE3_TARGET = "meta-llama/Llama-3.1-8B-Instruct"


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Harness:
    """The command line on a machine of two cores whose engine is known; nothing but `prepare` could start one."""
    monkeypatch.setattr(prepare, "resolve", lambda *_, **__: engine("cpu"))
    monkeypatch.setattr(prepare, "discover", lambda *_: CPU_MACHINE)
    monkeypatch.setattr(again, "run_assertions", checks_in_process)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    for name, value in {
        "SPEC_GATE_CACHE": str(tmp_path / "cache"),
        "SPEC_GATE_STATE": str(tmp_path / "state"),
        "HF_HUB_OFFLINE": "1",
        "COLUMNS": "200",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CI", raising=False)

    def invoke(*arguments: str | Path) -> Result:
        return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])

    return invoke


def refused(result: Result, tmp_path: Path, *words: str) -> None:
    """One sentence with ``words``, no traceback, exit code 2, a result that says the same, and nothing leased."""
    assert result.exit_code == 2, result.output
    text = " ".join(result.output.split())
    assert "MISCONFIGURED" in text
    assert "Traceback" not in text
    for word in words:
        assert word in text
    assert not (tmp_path / "state").exists(), "a state folder is made by the first lease"
    if (tmp_path / "runs").is_dir():
        left = only_result(tmp_path / "runs")
        assert left["verdict"] == "misconfigured"
        assert words[0] in left["reason"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nope"], ["There is no deployment 'nope'; known are", "eagle3-pd", "nox --list"]),
        (["eagle-pd"], ["There is no deployment 'eagle-pd'; did you mean eagle3-pd?"]),
        (["eagle3-pd", "--devices", "9"], ["Device 9 was asked for, but this machine has 2 (0, 1)", "--devices"]),
        (["eagle3-pd", "--devices", "x"], ["--devices takes indices such as 0,1, not 'x'"]),
        (["eagle3-pd", "--devices", ""], ["--devices takes indices such as 0,1"]),
        (["eagle3-pd", "--devices", "0,0"], ["--devices 0,0 names a device twice"]),
        (["eagle3-pd", "--dataset", "x.jsonl"], ["--dataset needs hub models", "--models hub"]),
        (["eagle3-pd", "--models", "hub"], [EAGLE3_TARGET, "HF_HUB_OFFLINE", f"hf download {EAGLE3_TARGET}"]),
        (["eagle3-pd", "--baselines", "/nope.toml"], ["/nope.toml does not exist", "--baselines"]),
        (["eagle3-pd", "--baselines", "/"], ["the baselines file / cannot be read (Is a directory)"]),
        (["eagle3-pd", "--pass-env", "VLLM_NOT_SET"], ["--pass-env VLLM_NOT_SET", "no such variable"]),
        (["eagle3-pd", "--allow", "typo"], ["There is no deployment 'typo'"]),
    ],
)
def test_a_mistake_is_one_sentence_and_a_result_and_nothing_is_started(
    harness: Harness, tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    refused(harness("run", *arguments, "--runs-dir", tmp_path / "runs"), tmp_path, *words)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a = [", ["is not TOML", "repair it"]),
        (
            '[[baseline]]\nkey = "eagle3-pd/tiny"\ndeployment = "eagle3-pd"\nmodels = "tiny"\nexact = true\n'
            'estimator = "as-counted"\nsided = "two"\n',
            ["baseline eagle3-pd/tiny", "lacks certificate", "baseline record"],
        ),
        ("", ["no baseline for eagle3-pd with tiny models on cpu", "baseline record"]),
    ],
)
def test_a_baselines_file_that_cannot_judge_is_refused(
    harness: Harness, tmp_path: Path, content: str, words: list[str]
) -> None:
    path = tmp_path / "b.toml"
    path.write_text(content, "utf-8")
    arguments = ("run", "eagle3-pd", "--baselines", path, "--runs-dir", tmp_path / "runs")
    refused(harness(*arguments), tmp_path, *words)


def laid_out_hub(tmp_path: Path) -> None:
    for repo in (EAGLE3_TARGET, "RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3"):
        root = tmp_path / "hub" / f"models--{repo.replace('/', '--')}"
        snapshot = root / "snapshots" / ("a" * 40)
        snapshot.mkdir(parents=True)
        (root / "refs").mkdir()
        (root / "refs" / "main").write_text("a" * 40)
        for name in ("config.json", "model.safetensors"):
            (snapshot / name).write_text("{}")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ["does not exist", "--dataset takes a JSONL"]),
        ('{"prompt": ["Hello"]}\n{"prompt": \n', ["line 2 is not JSON"]),
        ('{"question": "Hello"}\n', ["line 1 has no first turn"]),
        ('{"prompt": ["Hello"]}\n', ["holds 1 questions, the workload needs 80", "--prompts"]),
    ],
)
def test_a_dataset_that_cannot_be_sent_is_refused_with_its_line(
    harness: Harness, tmp_path: Path, content: str | None, words: list[str]
) -> None:
    laid_out_hub(tmp_path)
    path = tmp_path / "mt-bench.jsonl"
    if content is not None:
        path.write_text(content, "utf-8")
    arguments = ("run", "eagle3-pd", "--models", "hub", "--dataset", path, "--runs-dir", tmp_path / "runs")
    refused(harness(*arguments), tmp_path, *words)


@pytest.mark.parametrize("place", ["a file", "/proc/runs"])
@pytest.mark.parametrize("mistake", [[], ["--devices", "x"]])
def test_a_runs_folder_that_cannot_be_written_is_said_though_no_result_can_be_left(
    harness: Harness, tmp_path: Path, place: str, mistake: list[str]
) -> None:
    runs = Path(place)
    if place == "a file":
        runs = tmp_path / "in-the-way"
        runs.write_text("x", "utf-8")
    result = harness("run", "eagle3-pd", "--runs-dir", runs, *mistake)
    refused(result, tmp_path, f"The runs folder {runs} cannot be written", "--runs-dir", *mistake)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--bogus"],
        ["--kv-buffer", "gpu"],
        ["--max-tokens", "0"],
        ["--prompts", "-1"],
        ["--models", "big"],
        ["--launch", "fork"],
        ["--json"],
    ],
)
def test_an_option_that_does_not_exist_fails_before_anything_is_made(
    harness: Harness, tmp_path: Path, arguments: list[str]
) -> None:
    result = harness("run", "eagle3-pd", "--runs-dir", tmp_path / "runs", *arguments)
    assert result.exit_code == 2
    assert arguments[0] in result.output
    assert "Traceback" not in result.output
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "state").exists()


def test_a_dry_run_prints_a_plan_that_a_program_can_read_and_makes_nothing(harness: Harness, tmp_path: Path) -> None:
    result = harness("run", "eagle3-pd", "--dry-run", "--json", "--runs-dir", tmp_path / "runs")
    assert result.exit_code == 0
    (plan,) = json.loads(result.output)
    assert plan["deployment"] == "eagle3-pd"
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["judge", "/nope"],
        ["baseline", "record", "/nope", "--reason", "x"],
        ["engine", "--engine", "/nope/python"],
    ],
)
def test_the_other_commands_answer_a_mistake_with_one_line(harness: Harness, arguments: list[str]) -> None:
    result = harness(*arguments)
    assert result.exit_code == 2
    assert result.output.startswith("misconfigured: ")
    assert len(result.output.strip().splitlines()) == 1


@pytest.mark.parametrize(("decode", "code"), [({}, 0), ({("nixl_bytes_transferred_sum", ""): 0.0}, 1)])
def test_judging_a_run_again_ends_with_its_exit_code(harness: Harness, tmp_path: Path, decode: Page, code: int) -> None:
    result = harness("judge", finished_run(tmp_path, passing(decode=decode)))
    assert result.exit_code == code, result.output
    assert result.output.split()[0] == ("PASS" if code == 0 else "REGRESSION")


def test_a_run_folder_that_cannot_be_written_is_no_traceback(harness: Harness, tmp_path: Path) -> None:
    run = finished_run(tmp_path)
    (run / f".result.json.{os.getpid()}.new").mkdir()
    result = harness("judge", run)
    assert result.exit_code == 3
    assert result.output.startswith("infra: the machine refused: ")


def test_a_variable_that_is_set_may_be_passed() -> None:
    name = next(iter(os.environ))
    assert cli._passed([name]) == {name}


@pytest.mark.parametrize("named", ["nox", "0", "-1", "999999999"])
def test_an_invocation_that_is_no_process_is_refused(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    monkeypatch.setenv("SPEC_GATE_INVOCATION", named)
    refused(harness("run", "tp1", "--runs-dir", tmp_path / "runs"), tmp_path, f"SPEC_GATE_INVOCATION={named} names no")


def test_lm_eval_is_refused_before_anything_starts_where_it_is_missing_or_of_no_use(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lm_eval, "find_spec", lambda _: None)
    through = ("--gsm8k-through", "lm-eval", "--runs-dir")
    refused(
        harness("run", "deepseek-mtp", *through, tmp_path / "a" / "runs"), tmp_path / "a", "spec-decode-gate[lm-eval]"
    )
    refused(harness("run", "tp1", *through, tmp_path / "b" / "runs"), tmp_path / "b", "tp1 solves no GSM8K problems")
