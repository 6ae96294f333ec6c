"""Ctrl-C, SIGTERM and SIGHUP become one orderly end of the run.

In most phases the signal raises at once. While requests are in flight it is only noted, because an exception out of
an event loop's callback is swallowed there; the drive loop asks `Interrupts.check` four times a second. During
teardown it is noted and nothing more: a second Ctrl-C must not leave servers behind.
"""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Literal

from harness.errors import Interrupted

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1


class Interrupts:
    """What has arrived, and whether it raises. Use `listening` to get one."""

    def __init__(self, on_ignored: Callable[[str], None]) -> None:
        self._arrived: signal.Signals | None = None
        self._mode: Literal["raise", "note", "ignore"] = "raise"
        self._on_ignored = on_ignored

    def check(self) -> None:
        """Raise Interrupted when a signal has arrived and is not to be ignored."""
        if self._arrived is not None and self._mode != "ignore":
            raise Interrupted(f"Interrupted by {self._arrived.name}; everything this run started is being ended.")

    @contextmanager
    def polled(self) -> Iterator[None]:
        """Inside the block a signal is noted; the code calls `check`."""
        with self._as("note"):
            yield
        self.check()

    @contextmanager
    def ignored(self) -> Iterator[None]:
        """Inside the block nothing interrupts: teardown has its own time limits."""
        with self._as("ignore"):
            yield

    @contextmanager
    def _as(self, mode: Literal["note", "ignore"]) -> Iterator[None]:
        before, self._mode = self._mode, mode
        try:
            yield
        finally:
            self._mode = before

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        first = self._arrived is None
        if first:
            self._arrived = signal.Signals(number)
        if self._mode == "ignore":
            self._on_ignored(f"{signal.Signals(number).name}: already ending everything; this takes a few seconds")
        elif self._mode == "raise" and first:
            self.check()


@contextmanager
def listening(on_ignored: Callable[[str], None]) -> Iterator[Interrupts]:
    """Handle the signals inside the block; the previous handlers are back afterwards. Main thread only."""
    interrupts = Interrupts(on_ignored)
    before = {number: signal.signal(number, interrupts._on_signal) for number in _SIGNALS}
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_with_parent() -> None:
    """Ask the kernel for a SIGTERM when the parent (nox) is gone; nox may be killed without a chance to tell us."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
