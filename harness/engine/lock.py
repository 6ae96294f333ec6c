"""The lock format: every distribution of an engine environment, pinned, in the stages it is installed in. Pure.

A lock is sections of requirement lines::

    [torch]                     installed with --no-deps, in file order
    torch==2.13.0
    [vllm with-dependencies]    pip resolves this stage's dependencies
    [nixl cuda=12]              only when torch came for this CUDA major
    # comment

A section's lines must be exact pins (``name==version``, optionally ``; marker``), so two builds are the same build.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.errors import Infra, Misconfigured
from harness.files import LARGEST_TABLE_BYTES, read_bounded

LockName = Literal["cpu", "cuda"]

_HEADER = re.compile(r"\[(?P<name>[a-z0-9-]+)(?P<options>(?: [a-z0-9=-]+)*)\]")
_PIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9.!+_-]+(?: *;.+)?")


@dataclass(frozen=True)
class LockStage:
    """One ``pip install``. ``cuda_major`` None: on every machine."""

    name: str
    pins: tuple[str, ...]
    with_dependencies: bool = False
    cuda_major: int | None = None


@dataclass(frozen=True)
class EngineLock:
    """A parsed lock. ``digest`` changes with any byte of the file."""

    name: LockName
    digest: str
    stages: tuple[LockStage, ...]


def parse_lock(name: LockName, text: str) -> EngineLock:
    """The stages of a lock's ``text``. `Misconfigured` names the line that is not a section header or an exact pin."""
    sections: list[tuple[LockStage, list[str]]] = []
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.split("#", 1)[0].strip()
        if not line:
            continue
        where = f"engines/{name}.lock line {number}"
        if line.startswith("["):
            sections.append((_header(line, where), []))
        elif not sections:
            raise Misconfigured(f"{where}: {line!r} stands before any [section].")
        elif not _PIN.fullmatch(line):
            raise Misconfigured(f"{where}: {line!r} is not an exact pin; write name==version.")
        else:
            sections[-1][1].append(line)
    stages = tuple(
        LockStage(head.name, tuple(pins), head.with_dependencies, head.cuda_major) for head, pins in sections if pins
    )
    if not stages:
        raise Misconfigured(f"engines/{name}.lock pins nothing; restore it from version control.")
    return EngineLock(name, hashlib.sha256(text.encode()).hexdigest(), stages)


def read_lock(name: LockName, folder: Path) -> EngineLock:
    """The lock ``name`` of ``folder``; `Misconfigured` when it cannot be read."""
    path = folder / f"{name}.lock"
    try:
        text = read_bounded(path, LARGEST_TABLE_BYTES)
    except OSError as error:
        raise Misconfigured(f"Cannot read the engine lock {path}: {error.strerror or error}.") from error
    return parse_lock(name, text)


def applies(stage: LockStage, cuda_major: int | None) -> bool:
    """Whether ``stage`` is installed beside a torch built for ``cuda_major`` (None: a CPU build)."""
    return stage.cuda_major is None or stage.cuda_major == cuda_major


def check_torch(lock: EngineLock, torch_cuda: str | None) -> int | None:
    """The CUDA major of the installed torch (``torch.version.cuda``), None for a CPU build.

    `Infra` when this torch cannot serve ``lock``: a CUDA build under the CPU engine, or a CUDA major without a variant.
    """
    if lock.name == "cpu":
        if torch_cuda is not None:
            raise Infra(
                f"pip installed torch for CUDA {torch_cuda}, but the CPU engine needs a CPU build of the same version: "
                "point pip at one (PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS) and run again, "
                "or name an interpreter that has vLLM with --engine PYTHON."
            )
        return None
    if torch_cuda is None:
        raise Infra(
            "pip installed a CPU build of torch for the CUDA engine: check PIP_EXTRA_INDEX_URL and PIP_FIND_LINKS, "
            "or name an interpreter that has vLLM with --engine PYTHON."
        )
    major = int(torch_cuda.split(".", 1)[0])
    variants = sorted({stage.cuda_major for stage in lock.stages if stage.cuda_major is not None})
    if variants and major not in variants:
        known = ", ".join(str(variant) for variant in variants)
        raise Infra(
            f"engines/{lock.name}.lock has KV-connector variants for CUDA {known}, "
            f"but the installed torch is built for CUDA {torch_cuda}: add a [nixl cuda={major}] section."
        )
    return major


def _header(line: str, where: str) -> LockStage:
    match = _HEADER.fullmatch(line)
    if match is None:
        raise Misconfigured(f"{where}: {line!r} is not a section header such as [vllm with-dependencies].")
    with_dependencies, cuda_major = False, None
    for option in match["options"].split():
        key, _, value = option.partition("=")
        if option == "with-dependencies":
            with_dependencies = True
        elif key == "cuda" and value.isdigit():
            cuda_major = int(value)
        else:
            raise Misconfigured(f"{where}: unknown section option {option!r}; known: with-dependencies, cuda=MAJOR.")
    return LockStage(match["name"], (), with_dependencies, cuda_major)
