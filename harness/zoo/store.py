"""Tiny checkpoints on disk: built once per content, atomically, and found again."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from filelock import FileLock
from safetensors.numpy import save_file

from harness.deployments import ZooName
from harness.zoo import deepseek, llama, qwen
from harness.zoo.chain import NO_DELAY, Chain, build_chain
from harness.zoo.stream import Config, Weights
from harness.zoo.tokens import write_tokenizer

Generator = Callable[[Chain], tuple[Weights, Config]]


@dataclass(frozen=True)
class ZooModel:
    """A tiny checkpoint. ``drafter`` None: it is part of the target. ``dtype``: what the engine's --dtype must be."""

    name: ZooName
    target: Path
    drafter: Path | None
    dtype: Literal["float32", "bfloat16"]
    content_hash: str
    chain: Chain


@dataclass(frozen=True)
class Recipe:
    """How a tiny checkpoint is made."""

    seed: int
    shared_head: bool
    delays: tuple[int, ...]
    dtype: Literal["float32", "bfloat16"]
    target: Generator
    drafter: Generator | None


RECIPES: dict[ZooName, Recipe] = {
    "llama-eagle3": Recipe(
        seed=3, shared_head=False, delays=NO_DELAY, dtype="float32", target=llama.target, drafter=llama.drafter
    ),
    "qwen35-mtp": Recipe(
        seed=5, shared_head=True, delays=qwen.DELAYS, dtype="bfloat16", target=qwen.target, drafter=None
    ),
    "deepseek-mtp": Recipe(
        seed=7, shared_head=True, delays=NO_DELAY, dtype="bfloat16", target=deepseek.target, drafter=None
    ),
}


def chain_of(name: ZooName) -> Chain:
    """The tables of ``name``, without building the checkpoint."""
    recipe = RECIPES[name]
    return build_chain(recipe.seed, shared_head=recipe.shared_head, delays=recipe.delays)


def build(name: ZooName, cache: Path) -> ZooModel:
    """The checkpoint ``name`` under ``cache``, built there first if this source has not built it yet."""
    recipe, chain, content_hash = RECIPES[name], chain_of(name), _content_hash(name)
    folder = cache / f"{name}-{content_hash}"
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / f"{name}.lock"):
            if not folder.is_dir():
                _build_into(folder, recipe, chain)
    return ZooModel(
        name=name,
        target=folder / "target",
        drafter=folder / "drafter" if recipe.drafter else None,
        dtype=recipe.dtype,
        content_hash=content_hash,
        chain=chain,
    )


def _build_into(folder: Path, recipe: Recipe, chain: Chain) -> None:
    # Renamed into place when complete: a build that is killed half way leaves no folder of the final name.
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _write(scratch / "target", *recipe.target(chain))
        if recipe.drafter:
            _write(scratch / "drafter", *recipe.drafter(chain))
        os.replace(scratch, folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _write(folder: Path, weights: Weights, config: Config) -> None:
    folder.mkdir()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    write_tokenizer(folder)


def _content_hash(name: ZooName) -> str:
    digest = hashlib.sha256(f"{name} {RECIPES[name].seed}".encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]
