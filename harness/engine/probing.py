"""Ask an engine environment what it is, once; the answer is cached until its distributions change."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from harness.engine.info import EngineInfo, EnginePlatform
from harness.engine.interpreter import ENGINE_SIDE, Interpreter, fingerprint
from harness.errors import Infra, Misconfigured

PROBE = ENGINE_SIDE / "probe.py"
# Importing vLLM takes 8 s of CPU when warm; minutes from a cold network disk.
PROBE_TIMEOUT_S = 600


class ProbeAnswer(BaseModel):
    """The JSON object that probe.py prints; the fields of `EngineInfo` that only the engine knows."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    python_version: str
    vllm_version: str
    vllm_distribution: str
    platform: EnginePlatform
    torch_version: str
    cuda_version: str | None
    nixl_version: str | None
    transformers_version: str
    flags: frozenset[str]
    environment: frozenset[str]
    architectures: frozenset[str]
    has_torchvision: bool
    has_flashinfer: bool
    pads_loaded_requests: bool


def probe(
    interpreter: Interpreter,
    cache: Path,
    environ: Mapping[str, str],
    *,
    origin: Literal["found", "built"],
    lock: str | None = None,
) -> EngineInfo:
    """What the engine of ``interpreter`` is. Errors are not cached.

    `Misconfigured`: a found engine cannot be imported. `Infra`: a built one cannot, or the cache is not writable.
    """
    mark = fingerprint(interpreter, (PROBE.read_text(encoding="utf-8"), origin))
    cached = cache / "probes" / f"{mark}.json"
    answer = _read(cached)
    if answer is None:
        answer = _ask(interpreter.python, environ, cache, origin)
        _write(cached, answer)
    return EngineInfo(python=interpreter.python, origin=origin, fingerprint=mark, lock=lock, **{**answer.__dict__})


def parse_answer(
    python: Path, returncode: int, stdout: str, stderr: str, origin: Literal["found", "built"]
) -> ProbeAnswer:
    """The last line of the probe's ``stdout``, checked; the error quotes the last line of ``stderr`` otherwise."""
    failure = Misconfigured if origin == "found" else Infra
    if returncode != 0:
        said = (stderr.strip() or stdout.strip() or f"exit code {returncode}").splitlines()[-1]
        raise failure(f"The vLLM of {python} cannot be used: {said}", root_line=said)
    lines = stdout.strip().splitlines()
    try:
        return ProbeAnswer.model_validate_json(lines[-1] if lines else "")
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the answer"
        raise failure(
            f"The vLLM of {python} described itself in a way that is not understood: {where}: {first['msg']}."
        ) from error


def _ask(python: Path, environ: Mapping[str, str], cache: Path, origin: Literal["found", "built"]) -> ProbeAnswer:
    try:
        done = subprocess.run(
            [str(python), str(PROBE)],
            env=dict(environ),
            cwd=cache,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Infra(f"{python} did not describe its vLLM within {PROBE_TIMEOUT_S} s; is its disk reachable?") from error
    except OSError as error:
        raise Infra(f"Cannot run {python} in {cache}: {error.strerror or error}.") from error
    return parse_answer(python, done.returncode, done.stdout, done.stderr, origin)


def _read(path: Path) -> ProbeAnswer | None:
    try:
        return ProbeAnswer.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValidationError):  # absent, or written by another version of the harness: ask again
        return None


def _write(path: Path, answer: ProbeAnswer) -> None:
    partial = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(answer.model_dump(mode="json"), indent=1), encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise Infra(f"Cannot write the engine cache {path.parent}: {error.strerror or error}.") from error
