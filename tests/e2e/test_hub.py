"""The hub path from end to end without the hub: tiny checkpoints lie in a hub cache under the real repository ids."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.deployments import DEPLOYMENTS, Deployment
from harness.zoo import build
from tests.e2e.gate import ROOT, Gate, harness

COMMIT = "0123456789abcdef0123456789abcdef01234567"
# Llama's own template starts a conversation with a BOS; Qwen's does not.
BOS_TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}"
CANARIES = {
    "HF_TOKEN": "hf_CANARYcanaryCANARYcanaryCANARYcanary",
    "https_proxy": "http://someone:CANARY-in-a-url@127.0.0.1:9",
    "GATEWAY_PASSWORD": "CANARY-of-another-kind",
}
TOPICS = ("rain", "bread", "tides", "clocks", "bridges", "moss", "violins", "kites")


def lay_out(cache: Path, repo: str, checkpoint: Path, *, adds_bos: bool) -> None:
    root = cache / f"models--{repo.replace('/', '--')}"
    snapshot = root / "snapshots" / COMMIT
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text(COMMIT)
    shutil.copytree(checkpoint, snapshot)
    config = json.loads((snapshot / "config.json").read_text())
    config["max_position_embeddings"] = 16384
    (snapshot / "config.json").write_text(json.dumps(config))
    if adds_bos:
        settings = json.loads((snapshot / "tokenizer_config.json").read_text())
        settings["chat_template"] = BOS_TEMPLATE
        (snapshot / "tokenizer_config.json").write_text(json.dumps(settings))


def hub_cache(folder: Path, deployment: Deployment, *, without_drafter: bool = False) -> Path:
    assert deployment.models.tiny is not None
    zoo = build(deployment.models.tiny, folder / "zoo")
    cache = folder / "hf" / "hub"
    lay_out(cache, deployment.models.target.repo, zoo.target, adds_bos="llama" in deployment.models.tiny)
    if deployment.models.drafter is not None and zoo.drafter is not None and not without_drafter:
        lay_out(cache, deployment.models.drafter.repo, zoo.drafter, adds_bos=False)
    return folder / "hf"


def questions(folder: Path) -> Path:
    path = folder / "mt-bench.jsonl"
    path.write_text(
        "".join(
            json.dumps({"prompt": [f"{number}: say a word about {TOPICS[number % len(TOPICS)]}.", "And another."]})
            + "\n"
            for number in range(80)
        )
    )
    return path


def cli(*arguments: str | Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "harness", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done.returncode, done.stdout + done.stderr


def verdict(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / "result.json").read_text()))


@pytest.mark.parametrize("name", ["eagle3-pd", "mtp-pd"])
def test_hub_models_run_offline_pass_the_baseline_recorded_from_them_and_fail_one_moved_by_six_percent(
    gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    deployment = DEPLOYMENTS[name]
    monkeypatch.setenv("HF_HOME", str(hub_cache(tmp_path, deployment)))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for variable, value in CANARIES.items():
        monkeypatch.setenv(variable, value)
    options = ("--models", "hub", "--dataset", str(questions(tmp_path)), "--max-tokens", "16", "--no-baseline")
    with gate.start(harness("run", name, *options)) as started:
        assert started.finish() == 2, started.output
    run, result = started.folder, started.result

    assert result["model_set"] == "hub"
    assert result["models"][0] == f"{deployment.models.target.repo}@{COMMIT}"
    failed = {check["name"] for check in result["checks"] if not check["ok"]}
    assert (result["verdict"], failed) == ("misconfigured", {"acceptance_length", "acceptance_per_position"})
    assert "baseline record" in result["reason"]
    facts = json.loads((run / "facts.json").read_text())
    assert facts["reference_mode"] == "server"
    assert len(facts["expected_text"]) == 80
    main = [request for request in facts["requests"] if request["stage"] == "main"]
    assert len(main) == 80
    assert all(request["accepted_per_step"] is not None for request in main), "no speculation metrics per request"
    assert all(request["prompt_token_ids"].count(256) == (name == "eagle3-pd") for request in main)
    for path in [started.out, *(path for path in run.rglob("*") if path.is_file())]:
        assert b"CANARY" not in path.read_bytes(), path

    own = tmp_path / "own.toml"
    code, said = cli("baseline", "record", run, "--reason", "the first run of this test", "--baselines", own)
    assert code == 0, said
    code, said = cli("judge", run, "--baselines", own)
    assert (code, verdict(run)["verdict"]) == (0, "pass"), said
    length = float(re.search(r"acceptance_length = ([\d.]+)", own.read_text())[1])  # type: ignore[index]
    for factor in (0.94, 1.06):
        moved = tmp_path / "moved.toml"
        moved.write_text(
            own.read_text().replace(f"acceptance_length = {length}", f"acceptance_length = {length * factor:.4f}")
        )
        code, said = cli("judge", run, "--baselines", moved)
        assert (code, verdict(run)["verdict"]) == (1, "regression"), said
        assert "acceptance_length: acceptance length" in verdict(run)["reason"]


def test_a_repository_that_is_not_cached_is_named_before_anything_is_leased(
    gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = DEPLOYMENTS["eagle3-pd"]
    assert deployment.models.drafter is not None
    monkeypatch.setenv("HF_HOME", str(hub_cache(tmp_path, deployment, without_drafter=True)))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with gate.start(harness("run", "eagle3-pd", "--models", "hub")) as started:
        assert started.finish() == 2, started.output
    assert started.result["verdict"] == "misconfigured"
    assert deployment.models.drafter.repo in started.result["reason"]
    assert not gate.state.exists()
    assert "Traceback" not in started.output
