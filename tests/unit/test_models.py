from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from harness.deployments import DEPLOYMENTS
from harness.errors import Misconfigured
from harness.models import bos_token_id, hub_checkpoints, missing_file, template_adds_bos

COMMIT = "0123456789abcdef0123456789abcdef01234567"
EAGLE3 = DEPLOYMENTS["eagle3-pd"].models
TARGET = "meta-llama/Llama-3.1-8B-Instruct"
DRAFTER = "RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def cached(hub: Path, repo: str, *files: str) -> Path:
    root = hub / f"models--{repo.replace('/', '--')}"
    snapshot = root / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(COMMIT)
    for name in files:
        (snapshot / name).write_text("{}")
    return snapshot


def test_cached_repositories_are_found_at_the_commit_of_main(hub: Path) -> None:
    target = cached(hub, TARGET, "config.json", "model.safetensors")
    drafter = cached(hub, DRAFTER, "config.json", "model.safetensors")
    found = hub_checkpoints(EAGLE3, offline=True)
    assert (found.paths.target, found.paths.drafter) == (target, drafter)
    assert found.paths.provenance == (f"{TARGET}@{COMMIT}", f"{DRAFTER}@{COMMIT}")
    assert found.zoo is None


def test_a_repository_that_is_not_cached_is_named_with_what_to_type(hub: Path) -> None:
    cached(hub, TARGET, "config.json", "model.safetensors")
    with pytest.raises(Misconfigured, match=rf"^{DRAFTER} .*HF_HUB_OFFLINE.*hf download {DRAFTER}.*--models tiny"):
        hub_checkpoints(EAGLE3, offline=True)


def test_tiny_checkpoints_are_not_advised_where_there_are_none(hub: Path) -> None:
    del hub
    with pytest.raises(Misconfigured, match="hf download XiaomiMiMo/MiMo-7B-Base") as refused:
        hub_checkpoints(dataclasses.replace(DEPLOYMENTS["mimo-mtp"].models, tiny=None), offline=True)
    assert "tiny" not in str(refused.value)


def test_a_checkpoint_without_its_weights_is_refused_before_an_engine_looks_for_them(hub: Path) -> None:
    snapshot = cached(hub, TARGET, "config.json", "tokenizer.json")
    # As an interrupted download leaves it: the link is there, the blob is not.
    (snapshot / "model.safetensors").symlink_to("../../blobs/absent")
    with pytest.raises(Misconfigured, match=r"without its weights .*cut short"):
        hub_checkpoints(EAGLE3, offline=True)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    for name in ("config.json", "a.safetensors"):
        (tmp_path / name).write_text("{}")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}))
    assert missing_file(tmp_path) == "b.safetensors"
    (tmp_path / "b.safetensors").write_text("{}")
    assert missing_file(tmp_path) is None
    index.write_text("not json")
    assert missing_file(tmp_path) == "readable model.safetensors.index.json"


def test_a_folder_without_configuration_is_no_checkpoint(tmp_path: Path) -> None:
    assert missing_file(tmp_path) == "config.json"


LLAMA_TEMPLATE = "{{- bos_token }}{% for message in messages %}{{ message.content }}{% endfor %}"
LITERAL_TEMPLATE = "<|begin|>{% for message in messages %}{{ message.content }}{% endfor %}"
QWEN_TEMPLATE = "{% for message in messages %}<|im_start|>{{ message.content }}{% endfor %}"


@pytest.mark.parametrize("in_a_file", [True, False])
@pytest.mark.parametrize(
    ("template", "adds"), [(LLAMA_TEMPLATE, True), (LITERAL_TEMPLATE, True), (QWEN_TEMPLATE, False), ("", False)]
)
@pytest.mark.parametrize("bos", ["<|begin|>", {"content": "<|begin|>"}, None])
def test_a_bos_is_expected_where_the_chat_template_writes_one(
    tmp_path: Path, template: str, adds: bool, bos: str | dict[str, str] | None, in_a_file: bool
) -> None:
    settings = {"bos_token": bos} | ({} if in_a_file else {"chat_template": template})
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    if in_a_file:
        (tmp_path / "chat_template.jinja").write_text(template)
    assert template_adds_bos(tmp_path) is (adds and not (bos is None and template == LITERAL_TEMPLATE))


@pytest.mark.parametrize(
    ("config", "bos"), [({"bos_token_id": 128000}, 128000), ({"text_config": {"bos_token_id": None}}, None), ({}, None)]
)
def test_the_bos_id_is_the_one_of_the_configuration(tmp_path: Path, config: dict[str, object], bos: int | None) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert bos_token_id(tmp_path) == bos
