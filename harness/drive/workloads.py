"""What is sent: prompts of a workload, read from this machine only."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import Misconfigured
from harness.files import LARGEST_DATA_BYTES, read_bounded

MT_BENCH_REPO = "philschmid/mt-bench"
MT_BENCH_PROMPTS = 80
MT_BENCH_MAX_TOKENS = 256
_SHAPE = '{"prompt": ["first turn", "second turn"]} (or "prompt": "text", or "turns": [...]), one object per line'


@dataclass(frozen=True)
class Prompt:
    """One request to make. Exactly one of ``text`` and ``messages`` is set.

    ``text`` is sent as it is; ``messages`` go through the engine's own chat template once (`harness.drive.client`).
    ``open_ended`` False: the next token is forced by the prompt (a copied sequence), so any difference is an error.
    ``mode`` names a group of prompts that is judged apart.
    """

    prompt_id: str
    max_tokens: int
    text: str | None = None
    messages: tuple[tuple[str, str], ...] | None = None
    mode: str = ""
    open_ended: bool = True

    def __post_init__(self) -> None:
        if (self.text is None) == (self.messages is None):
            raise ValueError(f"prompt {self.prompt_id!r} needs text or messages, not both")
        if self.max_tokens < 1:
            raise ValueError(f"prompt {self.prompt_id!r} asks for {self.max_tokens} tokens")


def workload_hash(prompts: Sequence[Prompt]) -> str:
    """SHA-256 (hex) over identity, content and length of every prompt, in order: equal hash, equal requests."""
    content = [[p.prompt_id, p.text, p.messages, p.max_tokens] for p in prompts]
    return hashlib.sha256(json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()).hexdigest()


def load_mt_bench(
    source: Path | None,
    hub_cache: Path | None = None,
    *,
    revision: str | None = None,
    prompts: int = MT_BENCH_PROMPTS,
    max_tokens: int = MT_BENCH_MAX_TOKENS,
) -> tuple[Prompt, ...]:
    """The first turn of the first ``prompts`` MT-Bench questions, as chat messages.

    ``source`` None: the data set as it lies in the hub cache (never the network). Raises `Misconfigured` naming the
    file, the line, or how many questions are missing.
    """
    path = source if source is not None else _cached_file(hub_cache, revision)
    try:
        content = read_bounded(path, LARGEST_DATA_BYTES)
    except FileNotFoundError as error:
        raise Misconfigured(f"the MT-Bench file {path} does not exist; --dataset takes a JSONL of {_SHAPE}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(f"the MT-Bench file {path} cannot be read: {error}") from error
    questions = [_first_turn(line, f"{path} line {number}") for number, line in _lines(content)]
    if len(questions) < prompts:
        raise Misconfigured(
            f"{path} holds {len(questions)} questions, the workload needs {prompts}; give a longer file or --prompts"
        )
    return tuple(
        Prompt(prompt_id=f"mt-bench-{index}", messages=(("user", question),), max_tokens=max_tokens)
        for index, question in enumerate(questions[:prompts])
    )


def _lines(content: str) -> list[tuple[int, str]]:
    # Not splitlines(): a JSON string may hold U+2028 and other characters that it takes for line ends.
    return [(number, line) for number, line in enumerate(content.split("\n"), start=1) if line.strip()]


def _first_turn(line: str, where: str) -> str:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise Misconfigured(f"{where} is not JSON ({error.msg} at column {error.colno}); expected {_SHAPE}") from error
    turns = record.get("prompt", record.get("turns")) if isinstance(record, dict) else None
    first = turns[0] if isinstance(turns, list) and turns else turns
    if not isinstance(first, str) or not first.strip():
        raise Misconfigured(f"{where} has no first turn; expected {_SHAPE}")
    return first


def _cached_file(hub_cache: Path | None, revision: str | None) -> Path:
    # Imported here: only this path needs the hub client, which is slow to import.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(
            snapshot_download(
                MT_BENCH_REPO, repo_type="dataset", revision=revision, cache_dir=hub_cache, local_files_only=True
            )
        )
    except (LocalEntryNotFoundError, HfHubHTTPError, HFValidationError, OSError) as error:
        at = f" at {revision}" if revision else ""
        raise Misconfigured(
            f"the data set {MT_BENCH_REPO}{at} is not in the hub cache{f' {hub_cache}' if hub_cache else ''}; fetch it "
            f"with `hf download --repo-type dataset {MT_BENCH_REPO}` or give a local JSONL with --dataset"
        ) from error
    files = sorted(folder.rglob("*.jsonl")) or sorted(folder.rglob("*.json"))
    if not files:
        raise Misconfigured(
            f"the cached data set {MT_BENCH_REPO} holds no JSONL ({folder}); export it and give it with --dataset"
        )
    return files[0]
