"""From a folder on disk to a `SourceTree`, with the slow parsing spread over the cores that are there."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from harness.ci.audit.marks import TestModule, read_module
from harness.ci.audit.model import Finding
from harness.ci.audit.pipelines import is_config, job_files
from harness.ci.audit.rules import CHECKS
from harness.ci.audit.rules.device_skips import mentions_skip
from harness.ci.audit.tree import SourceTree, is_test_path, parse_document
from harness.errors import Misconfigured
from harness.files import LARGEST_DATA_BYTES, read_bounded

# What the rules read; of everything else only the path counts.
_READ_FOLDERS = (".buildkite/", "requirements/", "docker/", "tools/pre_commit/", "tests/evals/")
_SKIPPED_FOLDERS = frozenset({".git", "__pycache__", "node_modules", ".venv", "build"})
# Two processes halve the parse; more than these cost more to start than they save.
MAX_PROCESSES = 4

WORTH_A_POOL = 50
TESTS_PER_TASK = 24


def require_checkout(root: Path) -> None:
    """Raises `Misconfigured` when ``root`` is no vLLM source tree (a clone or an unpacked source distribution)."""
    if not (root / ".buildkite").is_dir() or not (root / "vllm").is_dir():
        raise Misconfigured(
            f"{root} is no vLLM checkout: it needs the folders .buildkite and vllm. "
            "Give the root of a clone or of an unpacked source distribution"
        )


def read_checkout(root: Path) -> SourceTree:
    """A vLLM source tree. Raises `Misconfigured` when ``root`` is none: its audit would find nothing wrong."""
    require_checkout(root)
    with quiet_collector():
        paths, texts = _read(root)
        configs = {path: parse_document(texts[path]) for path in texts if is_config(path)}
        # The largest first: one long file at the end would leave the other cores idle.
        files = sorted(job_files(texts, configs), key=lambda path: -len(texts[path]))
        tests = [path for path in texts if is_test_path(path) and mentions_skip(texts[path])]
        with _pool(len(files) + len(tests)) as spread:
            documents = spread(parse_document, [texts[path] for path in files], 1)
            modules = spread(read_module, [texts[path] for path in tests], TESTS_PER_TASK)
            parsed: dict[str, TestModule | None] = {}
            tree = SourceTree(paths, texts, configs | dict(zip(files, documents, strict=True)), parsed)
            _ = tree.selections  # the commands are read while the other processes still parse the tests
            parsed.update(zip(tests, modules, strict=True))
    return tree


@contextmanager
def quiet_collector() -> Iterator[None]:
    """No cyclic collection while millions of syntax nodes are made: it would walk all of them again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _read(root: Path) -> tuple[list[str], dict[str, str]]:
    paths: list[str] = []
    texts: dict[str, str] = {}
    for folder, names, files in os.walk(root):
        names[:] = [name for name in names if name not in _SKIPPED_FOLDERS]
        relative = os.path.relpath(folder, root)
        prefix = "" if relative == "." else f"{relative}/"
        for name in files:
            path = prefix + name
            paths.append(path)
            if path.startswith(_READ_FOLDERS) or (path.startswith("tests/") and path.endswith((".py", ".sh"))):
                texts[path] = read_bounded(Path(folder, name), LARGEST_DATA_BYTES, "replace")
    return paths, texts


_Spread = Callable[[Callable[[str], Any], list[str], int], Iterable[Any]]


@contextmanager
def _pool(items: int) -> Iterator[_Spread]:
    """A ``map(work, texts, chunk)`` over the cores of this machine; in this process when that is not worth it."""
    if processes() < 2 or items < WORTH_A_POOL:
        yield lambda work, texts, _chunk: [work(text) for text in texts]
        return
    with ProcessPoolExecutor(processes(), mp_context=get_context("fork")) as pool:
        yield lambda work, texts, chunk: pool.map(work, texts, chunksize=chunk)


def processes() -> int:
    """How many processes to use: the cores that this one may run on, up to `MAX_PROCESSES`."""
    return min(MAX_PROCESSES, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)


_held: list[SourceTree] = []


def _check(index: int) -> list[Finding]:
    return list(CHECKS[index](_held[0]))


def run_rules_in_parallel(tree: SourceTree) -> list[list[Finding]]:
    """What `harness.ci.audit.run_rules` gives, each family in a forked process that shares ``tree``."""
    if processes() < 2 or len(tree.test_files) < WORTH_A_POOL:
        return [list(check(tree)) for check in CHECKS]
    _held[:] = [tree]  # a fork inherits it; handing it over would pickle the whole checkout
    try:
        with ProcessPoolExecutor(processes(), mp_context=get_context("fork")) as pool:
            return list(pool.map(_check, range(len(CHECKS))))
    finally:
        _held.clear()
