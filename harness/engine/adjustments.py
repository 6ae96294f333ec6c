"""What the engine plugin says it changed, read back from server logs. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINE = re.compile(r"gate-plugin pid=(\d+) (applied|not-applicable) (\S+) (.*)")


@dataclass(frozen=True)
class Adjustment:
    """One line of `harness/engine_plugin/gate_adjust.py`: adjustment ``name`` in process ``pid``, or why not."""

    pid: int
    name: str
    applied: bool
    detail: str


def parse_adjustments(log: str) -> tuple[Adjustment, ...]:
    """The adjustments reported in the text of a server's log, in order; vLLM may put its own prefix before them."""
    return tuple(
        Adjustment(int(pid), name, outcome == "applied", detail.strip())
        for pid, outcome, name, detail in _LINE.findall(log)
    )
