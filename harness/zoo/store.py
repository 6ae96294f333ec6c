"""Tiny checkpoints on disk: built once per content, atomically, and found again."""

from __future__ import annotations

import functools
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
from harness.zoo import deepseek, gemma4, jamba, llama, mimo, qwen
from harness.zoo.chain import NO_DELAY, NO_WINDOW, Chain, build_chain
from harness.zoo.stream import Config, Weights
from harness.zoo.tokens import write_tokenizer
from harness.zoo.wrapped import PREPROCESSOR, wrap

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
    drafter_from: int
    dtype: Literal["float32", "bfloat16"]
    target: Generator
    drafter: Generator | None
    windows: tuple[int, ...] = NO_WINDOW


# EAGLE and MTP drafters are one token ahead of the target, so they never embed the first prompt token; the MTP layers
# of DeepSeek and MiMo mask what they embed at position 0, which is the second one. Gemma's reads the target's cache,
# which holds all.
RECIPES: dict[ZooName, Recipe] = {
    "llama-eagle3": Recipe(
        seed=3,
        shared_head=False,
        delays=NO_DELAY,
        drafter_from=1,
        dtype="float32",
        target=llama.target,
        drafter=llama.drafter,
    ),
    "qwen35-mtp": Recipe(
        seed=5,
        shared_head=True,
        delays=qwen.DELAYS,
        drafter_from=1,
        dtype="bfloat16",
        target=qwen.target,
        drafter=None,
    ),
    "deepseek-mtp": Recipe(
        seed=7,
        shared_head=True,
        delays=NO_DELAY,
        drafter_from=2,
        dtype="bfloat16",
        target=deepseek.target,
        drafter=None,
    ),
    "gemma4-mtp": Recipe(
        seed=9,
        shared_head=False,
        delays=NO_DELAY,
        drafter_from=0,
        dtype="bfloat16",
        target=gemma4.target,
        drafter=gemma4.drafter,
        windows=gemma4.WINDOWS,
    ),
    "mimo-mtp": Recipe(
        seed=13,
        shared_head=True,
        delays=NO_DELAY,
        drafter_from=2,
        dtype="bfloat16",
        target=mimo.target,
        drafter=None,
    ),
    # No drafter exists for it.
    "jamba": Recipe(
        seed=17,
        shared_head=False,
        delays=jamba.DELAYS,
        drafter_from=1,
        dtype="bfloat16",
        target=jamba.target,
        drafter=None,
    ),
}


@functools.cache
def chain_of(name: ZooName) -> Chain:
    """The tables of ``name``, without building the checkpoint."""
    recipe = RECIPES[name]
    return build_chain(
        recipe.seed,
        shared_head=recipe.shared_head,
        delays=recipe.delays,
        windows=recipe.windows,
        drafter_from=recipe.drafter_from,
    )


def build(name: ZooName, cache: Path, *, wrapped: bool = False) -> ZooModel:
    """The checkpoint ``name`` under ``cache``, built there first if this source has not built it yet.

    ``wrapped``: in its family's multimodal wrapper, for an engine that does not know the text architecture.
    """
    recipe, chain, content_hash = RECIPES[name], chain_of(name), _content_hash(name)
    folder = cache / f"{name}{'-wrapped' if wrapped else ''}-{content_hash}"
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / f"{name}.lock"):
            if not folder.is_dir():
                _build_into(folder, recipe, chain, wrapped=wrapped)
    return ZooModel(
        name=name,
        target=folder / "target",
        drafter=folder / "drafter" if recipe.drafter else None,
        dtype=recipe.dtype,
        content_hash=content_hash,
        chain=chain,
    )


def _build_into(folder: Path, recipe: Recipe, chain: Chain, *, wrapped: bool) -> None:
    # Renamed into place when complete: a build that is killed half way leaves no folder of the final name.
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        made = recipe.target(chain)
        _write(scratch / "target", *(wrap(*made) if wrapped else made))
        if wrapped:
            (scratch / "target" / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR, indent=1))
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
