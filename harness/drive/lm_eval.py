"""GSM8K through lm-eval: its `local-completions` model against a server, as a process of its own.

Offline it solves the problems of a local file, with the prompts, filters and metric of lm-eval's own task.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness.drive.paired import GSM8K_SHOTS, load_gsm8k
from harness.errors import EngineFailed, Infra, Misconfigured
from harness.facts import EvaluationFacts
from harness.files import LARGEST_DATA_BYTES, read_bounded
from harness.plan.types import StageName
from harness.runtime.logs import tail

_PROGRAM = Path(__file__).with_name("lm_eval_program.py")
# How often a running evaluation asks whether the servers still live.
_ALIVE_INTERVAL_S = 0.25
_END_S = 30.0
# Its own names of the answer that is judged (the last number, marked or not) and of the marked one.
_JUDGED = "exact_match,flexible-extract"
_STRICT = "exact_match,strict-match"
# How lm-eval logs an answer that is none.
_REFUSED = "API request failed"
_LOG_LINES = 200


@dataclass(frozen=True)
class Evaluation:
    """What to ask. ``dataset`` None: lm-eval's own gsm8k, which it fetches. ``environment``: all of its process's."""

    dataset: Path | None
    questions: int
    max_tokens: int
    environment: Mapping[str, str]


def prepare_evaluation(
    dataset: Path | None, questions: int, max_tokens: int, inherited: Mapping[str, str], *, offline: bool
) -> Evaluation:
    """Raises Misconfigured when lm-eval is not installed or there is nothing to ask; nothing is started."""
    if find_spec("lm_eval") is None:
        raise Misconfigured(
            "--gsm8k-through lm-eval needs the extra of that name; install it (pip install "
            "'spec-decode-gate[lm-eval]') or drop the option."
        )
    if dataset is None and offline:
        raise Misconfigured(
            "--gsm8k-through lm-eval would fetch its problems and this run is offline (HF_HUB_OFFLINE); give them "
            "with --dataset."
        )
    if dataset is not None:
        # For its complaints: a file that lm-eval cannot read would be found after the servers were started.
        load_gsm8k(dataset, questions=questions, max_tokens=max_tokens)
    # It sends this key to whatever server it asks, and asks through a proxy where one is named.
    kept = {name: value for name, value in inherited.items() if name != "OPENAI_API_KEY"}
    direct = kept.get("NO_PROXY") or kept.get("no_proxy")
    local = ",".join(part for part in (direct, "127.0.0.1,localhost") if part)
    return Evaluation(dataset, questions, max_tokens, {**kept, "NO_PROXY": local, "no_proxy": local})


def evaluate(
    evaluation: Evaluation,
    url: str,
    model: str,
    stage: StageName,
    folder: Path,
    *,
    concurrency: int,
    budget_s: float,
    alive: Callable[[], None],
) -> EvaluationFacts:
    """Ask the server at ``url``; everything that lm-eval writes stays in ``folder``.

    ``alive`` is called a few times a second and raises when a server died. Raises `EngineFailed` after ``budget_s`` and
    `Infra` when lm-eval itself fails.
    """
    folder.mkdir(parents=True)
    own = evaluation.dataset is None
    task = "gsm8k" if evaluation.dataset is None else _write_task(evaluation.dataset, evaluation.questions, folder)
    arguments = {
        "model": model,
        "base_url": f"{url}/v1/completions",
        # Text is sent: the engine's own tokenizer is what is tested.
        "tokenizer_backend": "none",
        "num_concurrent": concurrency,
        "max_gen_toks": evaluation.max_tokens,
        # By default it asks up to three times: an answer that failed once would be forgotten.
        "max_retries": 1,
    }
    command = [sys.executable, "-P", str(_PROGRAM), "run", "--model", "local-completions"]
    command += ["--model_args", ",".join(f"{name}={value}" for name, value in arguments.items())]
    command += ["--tasks", task, "--output_path", str(folder), "--log_samples"]
    command += ["--limit", str(evaluation.questions)] if own else []
    # A data set of this run alone does not belong into the user's cache.
    cache = folder / "cache"
    local = {} if own else {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_DATASETS_CACHE": str(cache)}
    log = folder / "lm-eval.log"
    try:
        code = _run(command, {**evaluation.environment, **local}, folder, log, budget_s, alive)
    finally:
        shutil.rmtree(cache, ignore_errors=True)
    if code != 0:
        said = tail(log, _LOG_LINES)
        if refused := next((line for line in said if _REFUSED in line), None):
            raise EngineFailed(f"{model} did not answer a question of lm-eval: {refused}; see {log}.", log=log)
        last = next(reversed(said), "it said nothing")
        raise Infra(f"lm-eval ended with code {code}: {last}; see {log}.", log=log)
    return read_results(folder, stage, log, evaluation.questions)


def _write_task(dataset: Path, questions: int, folder: Path) -> str:
    """The task file: lm-eval's own gsm8k over the first lines of ``dataset`` as examples and the next as questions."""
    lines = [line for line in read_bounded(dataset, LARGEST_DATA_BYTES).split("\n") if line.strip()]
    parts = {"train": lines[:GSM8K_SHOTS], "test": lines[GSM8K_SHOTS : GSM8K_SHOTS + questions]}
    for name, part in parts.items():
        (folder / f"{name}.jsonl").write_text("\n".join(part) + "\n", "utf-8")
    package = find_spec("lm_eval")
    if package is None or not package.submodule_search_locations:
        raise Infra("lm-eval was removed while this run was going.")
    task = {
        "include": str(Path(package.submodule_search_locations[0]) / "tasks" / "gsm8k" / "gsm8k.yaml"),
        "task": "local_gsm8k",
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": {name: str(folder / f"{name}.jsonl") for name in parts}},
        "fewshot_config": {"sampler": "first_n"},
    }
    path = folder / "local_gsm8k.yaml"
    # JSON is YAML.
    path.write_text(json.dumps(task, indent=1), "utf-8")
    return str(path)


def _run(
    command: list[str],
    environment: Mapping[str, str],
    folder: Path,
    log: Path,
    budget_s: float,
    alive: Callable[[], None],
) -> int:
    deadline_s = time.monotonic() + budget_s
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT, cwd=folder, env=dict(environment)
        )
    try:
        while time.monotonic() < deadline_s:
            try:
                return process.wait(_ALIVE_INTERVAL_S)
            except subprocess.TimeoutExpired:
                alive()
        raise EngineFailed(f"lm-eval did not get its answers within the {budget_s:g} s allowed; see {log}", log=log)
    finally:
        if process.stdin is not None:
            # Its end; see `lm_eval_program`.
            process.stdin.close()
        # What does not end with its pipe is left to the teardown; it must not hide why the run ended.
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)


def read_results(folder: Path, stage: StageName, log: Path, questions: int) -> EvaluationFacts:
    """What lm-eval wrote below ``folder``. Raises Infra when it is no result, or not one over ``questions``."""
    try:
        (path,) = folder.glob("*/results_*.json")
        found: dict[str, Any] = json.loads(read_bounded(path, LARGEST_DATA_BYTES))
        ((task, scores),) = found["results"].items()
        asked, accuracy = int(found["n-samples"][task]["effective"]), float(scores[_JUDGED])
        if asked != questions or not 0 <= accuracy <= 1:
            raise ValueError(f"accuracy {accuracy} over {asked} of {questions} questions")
        return EvaluationFacts(
            stage=stage,
            task=task,
            right=round(accuracy * asked),
            asked=asked,
            exact_match=accuracy,
            exact_match_strict=float(scores[_STRICT]),
            lm_eval_version=str(found["lm_eval_version"]),
            output=str(path),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, Misconfigured) as error:
        raise Infra(f"lm-eval left no result that can be read below {folder} ({error}); see {log}.", log=log) from error
