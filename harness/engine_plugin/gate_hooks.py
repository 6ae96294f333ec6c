"""See a module the moment it is imported, without importing it early."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType

Action = Callable[[ModuleType], None]


class _Watcher:
    """A meta path finder that finds nothing itself: it lets the real finders answer and wraps their loader."""

    def __init__(self) -> None:
        self.actions: dict[str, Action] = {}
        self.seen: Callable[[str, ModuleSpec], None] | None = None
        self.seen_prefix = ""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        traced = self.seen is not None and (name + ".").startswith(self.seen_prefix)
        if name not in self.actions and not traced:
            return None
        spec = self._ask_others(name, path, target)
        if spec is None:
            return None
        if traced and self.seen is not None:
            self.seen(name, spec)
        action = self.actions.pop(name, None)
        if action is not None and spec.loader is not None:
            _run_after(spec.loader, action)
        return spec

    def _ask_others(self, name: str, path: object, target: object) -> ModuleSpec | None:
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)  # type: ignore[arg-type]
            if spec is not None:
                return spec
        return None


_watcher = _Watcher()


def _install() -> None:
    if _watcher not in sys.meta_path:
        sys.meta_path.insert(0, _watcher)  # type: ignore[arg-type]


def _run_after(loader: object, action: Action) -> None:
    execute = loader.exec_module  # type: ignore[attr-defined]

    def exec_module(module: ModuleType) -> None:
        execute(module)
        action(module)

    loader.exec_module = exec_module  # type: ignore[attr-defined]


def when_imported(name: str, action: Action) -> None:
    """Run ``action`` on module ``name`` right after its first import; at once if it is there already."""
    module = sys.modules.get(name)
    if module is not None:
        action(module)
        return
    _watcher.actions[name] = action
    _install()


def watch(prefix: str, seen: Callable[[str, ModuleSpec], None]) -> None:
    """Call ``seen(name, spec)`` for each module of ``prefix`` (``vllm.``) that is about to be imported."""
    _watcher.seen, _watcher.seen_prefix = seen, prefix
    _install()
