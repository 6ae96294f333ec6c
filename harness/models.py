"""Checkpoints on this machine: tiny ones written by the zoo, hub ones found in the cache before anything is leased."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

from harness.deployments import HubModel, ModelSet
from harness.errors import Infra, Misconfigured
from harness.files import LARGEST_DATA_BYTES, read_bounded
from harness.plan.types import ModelPaths
from harness.zoo import ZooModel, build

# The same weights once more, in a format that vLLM does not load: 16 GiB of Llama-3.1-8B.
_NOT_FOR_VLLM = ("original/*", "*.gguf", "*.onnx")
_WEIGHTS = (".safetensors", ".bin", ".pt")


@dataclass(frozen=True)
class Checkpoints:
    """``zoo`` is the tiny model with its simulator's chain, None for hub models. ``dtype``: for --dtype, None: auto."""

    paths: ModelPaths
    dtype: str | None
    zoo: ZooModel | None


# The architecture of the tiny checkpoint; an engine without it has the family's multimodal wrapper only.
_TEXT_ARCHITECTURE = {"qwen35-mtp": "Qwen3_5ForCausalLM"}


def tiny_checkpoints(models: ModelSet, cache: Path, architectures: frozenset[str]) -> Checkpoints:
    """Write (or find) the tiny checkpoints; a second or two. ``architectures``: those that the engine knows."""
    if models.tiny is None:
        raise ValueError(f"{models.target.repo} has no tiny checkpoint; harness.plan.gates refuses it earlier")
    needed = _TEXT_ARCHITECTURE.get(models.tiny)
    zoo = build(models.tiny, cache / "zoo", wrapped=needed is not None and needed not in architectures)
    paths = ModelPaths(zoo.target, zoo.drafter, (f"zoo:{zoo.name}@{zoo.content_hash}",))
    return Checkpoints(paths=paths, dtype=zoo.dtype, zoo=zoo)


def hub_checkpoints(models: ModelSet, *, offline: bool) -> Checkpoints:
    """Find the hub checkpoints in the cache, or fetch them unless ``offline``.

    Raises Misconfigured naming the repository when it is not cached and may not be (or cannot be) fetched.
    """
    # Never advise what does not exist.
    instead = " or run the tiny checkpoints with --models tiny" if models.tiny is not None else ""
    target, target_origin = _snapshot(models.target, instead, offline=offline)
    if models.drafter is None:
        return Checkpoints(ModelPaths(target, None, (target_origin,)), dtype=None, zoo=None)
    drafter, drafter_origin = _snapshot(models.drafter, instead, offline=offline)
    return Checkpoints(ModelPaths(target, drafter, (target_origin, drafter_origin)), dtype=None, zoo=None)


def _snapshot(model: HubModel, instead: str, *, offline: bool) -> tuple[Path, str]:
    """``instead``: the other way to run, for the messages."""
    try:
        folder = Path(
            snapshot_download(
                model.repo, revision=model.revision, local_files_only=offline, ignore_patterns=list(_NOT_FOR_VLLM)
            )
        )
    except LocalEntryNotFoundError as error:
        how = "this run is offline (HF_HUB_OFFLINE)" if offline else "the hub could not be reached"
        raise Misconfigured(
            f"{model.repo} (revision {model.revision or 'main'}) is not in the hub cache and {how}; fetch it first "
            f"(hf download {model.repo}){instead}."
        ) from error
    except HfHubHTTPError as error:
        raise Misconfigured(
            f"{model.repo} cannot be fetched from the hub: {str(error).splitlines()[0]}; "
            f"check its name, its licence and your token{instead}."
        ) from error
    except OSError as error:
        raise Infra(f"{model.repo} cannot be stored in the hub cache: {error}; free space or set HF_HOME.") from error
    if missing := missing_file(folder):
        raise Misconfigured(
            f"{model.repo} is in the hub cache at {folder} without its {missing}, a download that was cut short; "
            f"fetch it again (hf download {model.repo})."
        )
    # The folder of a snapshot is named by its commit.
    return folder, f"{model.repo}@{folder.name}"


def missing_file(folder: Path) -> str | None:
    """What a checkpoint folder lacks of configuration and weights, or None: an engine would find out after a minute.

    A file of the hub cache is a link to a blob; one whose blob is not there yet is missing.
    """
    if not (folder / "config.json").is_file():
        return "config.json"
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            shards = sorted(set(json.loads(read_bounded(index, LARGEST_DATA_BYTES))["weight_map"].values()))
        except (ValueError, KeyError, AttributeError):
            return f"readable {index.name}"
        return next((shard for shard in shards if not (folder / shard).is_file()), None)
    weights = (file for suffix in _WEIGHTS for file in folder.glob(f"*{suffix}"))
    return None if any(file.is_file() for file in weights) else "weights (model.safetensors)"


def bos_token_id(target: Path) -> int | None:
    """The BOS id of a checkpoint, from its own configuration; None when it names none."""
    found = re.search(r'"bos_token_id"\s*:\s*(\d+)', read_bounded(target / "config.json", LARGEST_DATA_BYTES))
    return int(found[1]) if found else None


def template_adds_bos(target: Path) -> bool:
    """Whether the chat template of a checkpoint starts a conversation with a BOS (Llama does, Qwen does not)."""
    settings = target / "tokenizer_config.json"
    values = json.loads(read_bounded(settings, LARGEST_DATA_BYTES)) if settings.is_file() else {}
    file = target / "chat_template.jinja"
    template = read_bounded(file, LARGEST_DATA_BYTES) if file.is_file() else str(values.get("chat_template", ""))
    token = values.get("bos_token")
    literal = token.get("content") if isinstance(token, dict) else token
    return "bos_token" in template or bool(literal and literal in template)
