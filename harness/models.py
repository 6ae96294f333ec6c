"""Checkpoints on this machine: tiny ones written by the zoo, hub ones found in the cache before anything is leased."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

from harness.deployments import HubModel, ModelSet
from harness.errors import Infra, Misconfigured
from harness.plan.types import ModelPaths
from harness.zoo import ZooModel, build


@dataclass(frozen=True)
class Checkpoints:
    """``zoo`` is the tiny model with its simulator's chain, None for hub models. ``dtype``: for --dtype, None: auto."""

    paths: ModelPaths
    dtype: str | None
    zoo: ZooModel | None


def tiny_checkpoints(models: ModelSet, cache: Path) -> Checkpoints:
    """Write (or find) the tiny checkpoints; a second or two."""
    zoo = build(models.tiny, cache / "zoo")
    paths = ModelPaths(zoo.target, zoo.drafter, (f"zoo:{zoo.name}@{zoo.content_hash}",))
    return Checkpoints(paths=paths, dtype=zoo.dtype, zoo=zoo)


def hub_checkpoints(models: ModelSet, *, offline: bool) -> Checkpoints:
    """Find the hub checkpoints in the cache, or fetch them unless ``offline``.

    Raises Misconfigured naming the repository when it is not cached and may not be (or cannot be) fetched.
    """
    target, target_origin = _snapshot(models.target, offline=offline)
    if models.drafter is None:
        return Checkpoints(ModelPaths(target, None, (target_origin,)), dtype=None, zoo=None)
    drafter, drafter_origin = _snapshot(models.drafter, offline=offline)
    return Checkpoints(ModelPaths(target, drafter, (target_origin, drafter_origin)), dtype=None, zoo=None)


def _snapshot(model: HubModel, *, offline: bool) -> tuple[Path, str]:
    try:
        folder = Path(snapshot_download(model.repo, revision=model.revision, local_files_only=offline))
    except LocalEntryNotFoundError as error:
        how = "this run is offline (HF_HUB_OFFLINE)" if offline else "the hub could not be reached"
        raise Misconfigured(
            f"{model.repo} (revision {model.revision or 'main'}) is not in the hub cache and {how}; fetch it first "
            f"(hf download {model.repo}) or run the tiny checkpoints with --models tiny."
        ) from error
    except HfHubHTTPError as error:
        raise Misconfigured(
            f"{model.repo} cannot be fetched from the hub: {str(error).splitlines()[0]}; "
            "check its name, its licence and your token, or use --models tiny."
        ) from error
    except OSError as error:
        raise Infra(f"{model.repo} cannot be stored in the hub cache: {error}; free space or set HF_HOME.") from error
    if not (folder / "config.json").is_file():
        raise Misconfigured(
            f"{model.repo} is in the hub cache at {folder} without its config.json, a download that was cut short; "
            f"fetch it again (hf download {model.repo})."
        )
    # The folder of a snapshot is named by its commit.
    return folder, f"{model.repo}@{folder.name}"
