"""Build a pinned engine environment in the shared cache: once, under a lock, all or nothing.

A virtual environment cannot be moved, so it is built in place; the folder counts as an engine only when its stamp
exists, which is the last thing written. A build that was killed leaves no stamp, and the next holder starts over.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from harness.engine.interpreter import engine_environment
from harness.engine.lock import EngineLock, LockStage, applies, check_torch
from harness.errors import Infra, Misconfigured
from harness.files import write_atomically

Progress = Callable[[str], None]

# A CUDA stack is several GB to fetch; whoever waits for another's build waits as long as that may take.
LOCK_TIMEOUT_S = 3600
OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 13)
STAMP = "engine.json"
# Settings of pip meant for another environment; where packages come from (index, links, proxy, cache) is kept.
_PIP_MISLEADING = (
    "PIP_REQUIRE_VIRTUALENV",
    "PIP_TARGET",
    "PIP_PREFIX",
    "PIP_ROOT",
    "PIP_USER",
    "PIP_REQUIREMENT",
    "PIP_PYTHON",
    "PIP_DRY_RUN",
    "PIP_NO_DEPS",
)


@dataclass(frozen=True)
class BasePython:
    """The interpreter that virtual environments are made from."""

    path: Path
    version: tuple[int, int, int]


@dataclass(frozen=True)
class Site:
    """Where one environment and its neighbours lie in the cache."""

    key: str
    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def stamp(self) -> Path:
        return self.folder / STAMP

    @property
    def log(self) -> Path:
        return self.folder.with_name(f"{self.key}.log")

    @property
    def lock(self) -> Path:
        return self.folder.with_name(f"{self.key}.lock")


def site_of(lock: EngineLock, base: BasePython, cache: Path, machine: str = platform.machine()) -> Site:
    """Where the environment of ``lock`` made from ``base`` lies: another lock or Python is another folder."""
    version = ".".join(str(part) for part in base.version)
    digest = hashlib.sha256(f"{lock.digest} {version} {machine}".encode()).hexdigest()[:12]
    key = f"{lock.name}-{digest}"
    return Site(key, cache / "engines" / key)


def build(
    lock: EngineLock,
    base: BasePython,
    cache: Path,
    progress: Progress,
    *,
    environ: Mapping[str, str],
    verify: Callable[[Path], object],
) -> Site:
    """The environment of ``lock``, built if it is not there. ``verify`` gets its interpreter and raises if it is bad.

    `Misconfigured`: a Python that the lock is not for, or an unwritable cache. `Infra`: pip failed (its log and root
    line are in the error), another build held the lock too long, or torch came as the wrong build.
    """
    site = site_of(lock, base, cache)
    if site.stamp.exists():
        return site
    if not OLDEST_PYTHON <= base.version[:2] <= NEWEST_PYTHON:
        raise Misconfigured(
            f"The {lock.name} engine needs Python 3.11 to 3.13, but {base.path} is "
            f"{'.'.join(str(part) for part in base.version)}: run nox with one of those, or give --engine PYTHON."
        )
    try:
        site.folder.parent.mkdir(parents=True, exist_ok=True)
        with _exclusive(site, progress) as guard_fd:
            if not site.stamp.exists():
                _build_in_place(site, lock, base, progress, environ, verify, guard_fd)
    except OSError as error:
        raise Infra(f"Cannot build the engine in {site.folder}: {error.strerror or error}.", log=site.log) from error
    return site


@contextmanager
def _exclusive(site: Site, progress: Progress) -> Iterator[int]:
    """Hold the build of ``site``; yields a descriptor that installers inherit.

    The second, inherited lock lives as long as any installer does: after SIGKILL of a building harness its pip goes on
    writing, and wiping the folder under it would let two pips fill one environment.
    """
    lock = FileLock(site.lock)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress(f"engine: waiting for another build of {site.key}")
        try:
            lock.acquire(timeout=LOCK_TIMEOUT_S)
        except Timeout as error:
            raise Infra(
                f"Another process has been building {site.folder} for over {LOCK_TIMEOUT_S} s (lock {site.lock}): "
                "see its log, end it, and run again.",
                log=site.log,
            ) from error
    guard_fd = os.open(site.folder.with_name(f"{site.key}.installers"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(guard_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"engine: waiting for the pip of a build of {site.key} that was killed")
            fcntl.flock(guard_fd, fcntl.LOCK_EX)
        yield guard_fd
    finally:
        os.close(guard_fd)
        lock.release()


def _build_in_place(
    site: Site,
    lock: EngineLock,
    base: BasePython,
    progress: Progress,
    environ: Mapping[str, str],
    verify: Callable[[Path], object],
    guard_fd: int,
) -> None:
    started = time.monotonic()
    shutil.rmtree(site.folder, ignore_errors=True)
    site.log.unlink(missing_ok=True)
    progress(f"engine: building {site.key} in {site.folder.parent} (log: {site.log.name})")
    environment = pip_environment(environ)
    _logged([str(base.path), "-m", "venv", str(site.folder)], environment, site, "venv", guard_fd)
    cuda_major: int | None = None
    torch_seen = False
    for stage in lock.stages:
        if not applies(stage, cuda_major):
            continue
        progress(f"engine: {stage.name}")
        _install(stage, environment, site, guard_fd)
        if not torch_seen and (
            torch_version := next(site.folder.glob("lib/python*/site-packages/torch/version.py"), None)
        ):
            cuda_major, torch_seen = check_torch(lock, torch_cuda(torch_version.read_text(encoding="utf-8"))), True
    progress("engine: verify")
    verify(site.python)
    seconds = round(time.monotonic() - started, 1)
    _write_stamp(site, {"lock": site.key, "python": str(base.path), "seconds": seconds})
    progress(f"engine: {site.key} built in {seconds:.0f} s")


def _install(stage: LockStage, environment: Mapping[str, str], site: Site, guard_fd: int) -> None:
    requirements = site.folder / f"{stage.name}.txt"
    requirements.write_text("\n".join(stage.pins) + "\n", encoding="utf-8")
    argv = [str(site.python), "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--progress-bar=off"]
    if not stage.with_dependencies:
        argv.append("--no-deps")
    _logged([*argv, "-r", str(requirements)], environment, site, stage.name, guard_fd)


def _logged(argv: list[str], environment: Mapping[str, str], site: Site, step: str, guard_fd: int) -> None:
    with site.log.open("ab") as log:
        log.write(f"$ {' '.join(argv)}\n".encode())
        log.flush()
        done = subprocess.run(
            argv,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=(guard_fd,),
            check=False,
        )
    if done.returncode != 0:
        said = root_line(site.log.read_text(encoding="utf-8", errors="replace"))
        raise Infra(
            f"Building the engine failed at {step} (exit code {done.returncode}): {said} See {site.log}.",
            log=site.log,
            root_line=said,
        )


def pip_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """``environ`` without what would send pip's packages elsewhere or import the runner's into it."""
    kept = engine_environment(environ, found=False)
    return {name: value for name, value in kept.items() if name not in _PIP_MISLEADING}


def root_line(log: str) -> str:
    """The line of pip's output that says why: the first of the last command's ERROR lines, else the last line."""
    lines = [line.strip() for line in log.rpartition("\n$ ")[2].splitlines() if line.strip()]
    errors = (line for line in lines if line.startswith("ERROR:"))
    return next(errors, lines[-1] if lines else "no output")


def torch_cuda(version_py: str) -> str | None:
    """``torch.version.cuda`` from the text of torch/version.py, read without the seconds an import takes."""
    for line in version_py.splitlines():
        name, _, value = line.partition("=")
        if name.split(":")[0].strip() == "cuda":
            text = value.strip().strip("'\"")
            return None if text == "None" else text
    return None


def _write_stamp(site: Site, content: dict[str, object]) -> None:
    write_atomically(site.stamp, json.dumps(content))
