"""``--engine auto|cpu|cuda|PYTHON`` to an engine that can be used: found and left as it is, or built from a lock."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from harness.engine.build import BasePython, Progress, build, site_of
from harness.engine.info import EngineInfo
from harness.engine.interpreter import Interpreter, engine_environment, look
from harness.engine.lock import LockName, read_lock
from harness.engine.probing import probe
from harness.errors import Misconfigured

_LOCK_NAMES: dict[str, LockName] = {"cpu": "cpu", "cuda": "cuda"}
LOCKS = Path(__file__).parent.parent.parent / "engines"


def running_base() -> BasePython:
    """The interpreter behind the running one's virtual environment."""
    base = getattr(sys, "_base_executable", None) or sys.executable
    return BasePython(Path(base), (sys.version_info.major, sys.version_info.minor, sys.version_info.micro))


def resolve(
    choice: str,
    cache: Path,
    progress: Progress,
    *,
    host_python: Path | None,
    gpu_visible: bool,
    environ: Mapping[str, str],
    base: BasePython | None = None,
    locks: Path = LOCKS,
) -> EngineInfo:
    """The engine for ``choice``, asked what it is.

    ``auto``: ``host_python`` (the interpreter that launched nox) if it can import vLLM, else a built engine, CUDA where
    a GPU is visible. A found engine is never modified. ``environ`` is the environment of the harness.

    `Misconfigured`: an interpreter that cannot be run or has no usable vLLM. `Infra`: a build failed.
    """
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Misconfigured(
            f"Cannot create the cache folder {cache} ({error.strerror or error}); choose another with SPEC_GATE_CACHE."
        ) from error
    cache = cache.resolve()
    found_environ = engine_environment(environ, found=True)
    if choice == "auto":
        if host_python is not None and (host := look(host_python.absolute(), found_environ)).vllm_origin is not None:
            return _use_found(host, cache, found_environ, progress)
        choice = "cuda" if gpu_visible else "cpu"
    if (name := _LOCK_NAMES.get(choice)) is not None:
        return _use_built(name, cache, progress, environ, base or running_base(), locks)
    interpreter = look(_interpreter_path(choice), found_environ)
    if interpreter.vllm_origin is None:
        raise Misconfigured(
            f"{choice} cannot import vllm; give --engine an interpreter that can, or auto, cpu or cuda."
        )
    return _use_found(interpreter, cache, found_environ, progress)


def _interpreter_path(choice: str) -> Path:
    # absolute, never resolved: a virtual environment's python is a link, and its target does not see the packages
    path = Path(choice).expanduser().absolute()
    if os.sep not in choice and not path.exists():
        located = shutil.which(choice)
        if located is None:
            raise Misconfigured(
                f"--engine {choice} is not auto, cpu, cuda or a program on PATH; give the path of "
                "a Python that has vLLM."
            )
        path = Path(located)
    if not path.is_file():
        raise Misconfigured(f"--engine {choice}: there is no such file; give the path of a Python that has vLLM.")
    return path


def _use_found(interpreter: Interpreter, cache: Path, environ: Mapping[str, str], progress: Progress) -> EngineInfo:
    info = probe(interpreter, cache, environ, origin="found")
    progress(f"engine: vLLM {info.vllm_version} ({info.platform}) found at {info.python}")
    return info


def _use_built(
    name: LockName, cache: Path, progress: Progress, environ: Mapping[str, str], base: BasePython, locks: Path
) -> EngineInfo:
    lock = read_lock(name, locks)
    inside = engine_environment(environ, found=False)
    key = site_of(lock, base, cache).key

    def verify(python: Path) -> EngineInfo:
        return probe(look(python, inside), cache, inside, origin="built", lock=key)

    site = build(lock, base, cache, progress, environ=environ, verify=verify)
    return verify(site.python)
