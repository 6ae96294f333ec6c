"""Replace a method of a class once, however often the plugin is loaded in a process and its forks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_MARK = "_gate_replaced"


def replace_method(owner: type, name: str, make: Callable[[Any], Any]) -> None:
    """``owner.name = make(original)``. Raises AttributeError when the engine has no such method."""
    original = getattr(owner, name)
    if getattr(original, _MARK, False):
        return
    changed = make(original)
    setattr(changed, _MARK, True)
    setattr(owner, name, changed)


class EveryNth:
    """True for each ``n``-th question, from the n-th on."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.asked = 0

    def __call__(self) -> bool:
        self.asked += 1
        return self.asked % self.n == 0
