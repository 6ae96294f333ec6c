"""Damaged checkpoints differ from the good one where they say, and load like it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from harness.falsify.checkpoints import damaged_drafter, damaged_target
from harness.zoo import BOS_ID, build


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return build("llama-eagle3", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    return build("qwen35-mtp", tmp_path_factory.mktemp("qwen"))


def weights(folder):
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("damage", ["zero", "shuffled", "shifted", "blind", "other"])
def test_a_damaged_drafter_keeps_every_name_and_shape_and_changes_a_weight(llama, tmp_path, damage):
    good, bad = weights(llama.drafter), weights(damaged_drafter(llama, damage, tmp_path))
    assert {name: tensor.shape for name, tensor in good.items()} == {name: t.shape for name, t in bad.items()}
    assert any(not np.array_equal(good[name], bad[name]) for name in good)


def test_a_drafter_with_its_own_embeddings_gains_them(llama, tmp_path):
    bad = weights(damaged_drafter(llama, "own-embeddings", tmp_path))
    target = weights(llama.target)["model.embed_tokens.weight"]
    assert bad["embed_tokens.weight"].shape == target.shape
    assert not np.array_equal(bad["embed_tokens.weight"], target)


@pytest.mark.parametrize("damage", ["zero", "shuffled", "shifted", "own-embeddings", "blind"])
def test_damage_to_the_mtp_layer_leaves_the_target_alone(qwen, tmp_path, damage):
    good, bad = weights(qwen.target), weights(damaged_target(qwen, damage, tmp_path))
    changed = {name for name in good if not np.array_equal(good[name], bad[name])}
    assert changed
    assert all(name.startswith("mtp.") for name in changed)


def test_a_tokenizer_that_adds_a_bos_adds_exactly_one(llama, tmp_path):
    folder = damaged_target(llama, "adds-bos", tmp_path)
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode("abc").ids
    assert ids[0] == BOS_ID
    assert ids.count(BOS_ID) == 1
    assert json.loads((folder / "config.json").read_text()) == json.loads((llama.target / "config.json").read_text())


def test_a_model_without_a_separate_drafter_has_none_to_damage(qwen, tmp_path):
    with pytest.raises(ValueError, match="no separate drafter"):
        damaged_drafter(qwen, "zero", tmp_path)
