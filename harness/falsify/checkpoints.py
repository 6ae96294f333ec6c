"""Damaged copies of the tiny checkpoints, made from their own weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
from safetensors.numpy import load_file, save_file

from harness.zoo import ZooModel, llama, qwen
from harness.zoo.chain import build_chain
from harness.zoo.stream import Weights, build_stream
from harness.zoo.tokens import BOS, BOS_ID

Damage = Literal["zero", "shuffled", "shifted", "own-embeddings", "blind", "other", "soft", "adds-bos"]

# Far from every seed of the zoo.
_OTHER_SEED = 1000
_WEIGHTS = "model.safetensors"


def damaged_drafter(zoo: ZooModel, damage: Damage, scratch: Path) -> Path:
    """A copy of the separate drafter of ``zoo`` with ``damage`` done to it."""
    if zoo.drafter is None:
        raise ValueError(f"{zoo.name} has no separate drafter")
    return _copy(zoo.drafter, scratch / f"{zoo.name}-drafter-{damage}", _EAGLE[damage], zoo)


def damaged_target(zoo: ZooModel, damage: Damage, scratch: Path) -> Path:
    """A copy of the target of ``zoo``, MTP layers included, with ``damage`` done to it."""
    changes = _MTP if zoo.name == "qwen35-mtp" and damage in _MTP else _TARGET
    folder = _copy(zoo.target, scratch / f"{zoo.name}-target-{damage}", changes[damage], zoo)
    if damage == "adds-bos":
        _add_bos(folder)
    return folder


def _copy(source: Path, folder: Path, change: Callable[[Weights, ZooModel], Weights], zoo: ZooModel) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder)
    changed = change(load_file(folder / _WEIGHTS), zoo)
    save_file({k: np.ascontiguousarray(v) for k, v in changed.items()}, folder / _WEIGHTS, metadata={"format": "pt"})
    return folder


def _eagle_zero(weights: Weights, _: ZooModel) -> Weights:
    return {name: np.zeros_like(tensor) for name, tensor in weights.items()}


def _eagle_shuffled(weights: Weights, _: ZooModel) -> Weights:
    head = weights["lm_head.weight"]
    return weights | {"lm_head.weight": head[np.random.default_rng(1).permutation(len(head))]}


def _eagle_shifted(weights: Weights, _: ZooModel) -> Weights:
    return weights | {"lm_head.weight": np.roll(weights["lm_head.weight"], 1, axis=0)}


def _eagle_own_embeddings(weights: Weights, zoo: ZooModel) -> Weights:
    # Those of another model: what a drafter reads when it does not get the target's.
    other = build_stream(build_chain(zoo.chain.seed + _OTHER_SEED, shared_head=False))
    return weights | {"embed_tokens.weight": other.embedding}


def _eagle_blind(weights: Weights, _: ZooModel) -> Weights:
    name = "midlayer.self_attn.o_proj.weight"
    return weights | {name: np.zeros_like(weights[name])}


def _eagle_other(_: Weights, zoo: ZooModel) -> Weights:
    return llama.drafter(build_chain(zoo.chain.seed + _OTHER_SEED, shared_head=False))[0]


def _mtp_zero(weights: Weights, _: ZooModel) -> Weights:
    return {name: np.zeros_like(w) if name.startswith("mtp.") else w for name, w in weights.items()}


def _mtp_shuffled(weights: Weights, _: ZooModel) -> Weights:
    fc = weights["mtp.fc.weight"]
    return weights | {"mtp.fc.weight": fc[np.random.default_rng(1).permutation(len(fc))]}


def _mtp_shifted(weights: Weights, _: ZooModel) -> Weights:
    return weights | {"mtp.fc.weight": np.roll(weights["mtp.fc.weight"], 1, axis=0)}


def _mtp_own_embeddings(weights: Weights, _: ZooModel) -> Weights:
    # The MTP layer has no embedding of its own: the half of `fc` that reads the embedding is taken away.
    fc = weights["mtp.fc.weight"].copy()
    fc[:, : fc.shape[1] // 2] = 0
    return weights | {"mtp.fc.weight": fc}


def _mtp_blind(weights: Weights, _: ZooModel) -> Weights:
    name = "mtp.layers.0.self_attn.o_proj.weight"
    return weights | {name: np.zeros_like(weights[name])}


def _target_other(_: Weights, zoo: ZooModel) -> Weights:
    shared = zoo.name == "qwen35-mtp"
    chain = build_chain(zoo.chain.seed + _OTHER_SEED, shared_head=shared, delays=zoo.chain.delays)
    return (qwen.target if shared else llama.target)(chain)[0]


def _target_soft(weights: Weights, _: ZooModel) -> Weights:
    # Greedy text stays what it was; at temperature 1 a token in three is another one. As they are, the tiny models are
    # one-hot at every temperature that the engine accepts.
    return weights | {"lm_head.weight": weights["lm_head.weight"] * np.float32(0.05)}


def _unchanged(weights: Weights, _: ZooModel) -> Weights:
    return weights


def _add_bos(folder: Path) -> None:
    """Make the tokenizer of ``folder`` put a BOS in front of every prompt by itself."""
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text("utf-8"))
    special = {"SpecialToken": {"id": BOS, "type_id": 0}}
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [special, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [special, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {BOS: {"id": BOS, "ids": [BOS_ID], "tokens": [BOS]}},
    }
    path.write_text(json.dumps(tokenizer), "utf-8")


_EAGLE: dict[Damage, Callable[[Weights, ZooModel], Weights]] = {
    "zero": _eagle_zero,
    "shuffled": _eagle_shuffled,
    "shifted": _eagle_shifted,
    "own-embeddings": _eagle_own_embeddings,
    "blind": _eagle_blind,
    "other": _eagle_other,
}
_MTP: dict[Damage, Callable[[Weights, ZooModel], Weights]] = {
    "zero": _mtp_zero,
    "shuffled": _mtp_shuffled,
    "shifted": _mtp_shifted,
    "own-embeddings": _mtp_own_embeddings,
    "blind": _mtp_blind,
}
_TARGET: dict[Damage, Callable[[Weights, ZooModel], Weights]] = {
    "other": _target_other,
    "soft": _target_soft,
    "adds-bos": _unchanged,
}
