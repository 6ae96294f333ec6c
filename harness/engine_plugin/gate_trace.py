"""Which vLLM sources each process imported: ``<folder>/<pid>.txt``, a header line and then one source path a line.

Each line is written as the import happens, so a process that is killed leaves a complete list. Paths are relative to
the folder that holds the vllm package (``vllm/v1/engine/core.py``). Limitation: a forked process inherits what its
parent imported, so a trace of what one process needs is taken with ``--launch spawn``.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from importlib.machinery import ModuleSpec

import gate_hooks

_PACKAGE = "vllm"


class _Record:
    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.fd = -1
        self.root = ""

    def open(self) -> None:
        """A file of this process's own; after a fork the parent's descriptor is left to the parent."""
        package = sys.modules.get(_PACKAGE)
        origin = getattr(package, "__file__", None) or ""
        self.root = os.path.dirname(os.path.dirname(origin))
        os.makedirs(self.folder, exist_ok=True)
        path = os.path.join(self.folder, f"{os.getpid()}.txt")
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        role = multiprocessing.current_process().name
        self._write(f"# pid={os.getpid()} ppid={os.getppid()} process={role} argv={' '.join(sys.argv[:3])}")
        for name, module in list(sys.modules.items()):
            if name.split(".", 1)[0] == _PACKAGE:
                self.source(getattr(module, "__file__", None))

    def seen(self, _name: str, spec: ModuleSpec) -> None:
        self.source(spec.origin if spec.has_location else None)

    def source(self, path: str | None) -> None:
        if path:
            self._write(os.path.relpath(path, self.root))

    def _write(self, line: str) -> None:
        os.write(self.fd, f"{line}\n".encode())


_record: _Record | None = None


def _reopen_after_fork() -> None:
    if _record is not None:
        _record.open()


def start(folder: str) -> None:
    """Begin the list of this process, with what it has imported already."""
    global _record
    if _record is not None:
        if _record.folder != folder:
            _record.folder = folder
            _record.open()
        return
    _record = _Record(folder)
    _record.open()
    gate_hooks.watch(f"{_PACKAGE}.", _record.seen)
    os.register_at_fork(after_in_child=_reopen_after_fork)
