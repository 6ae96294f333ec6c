"""What a run writes down while it goes: phases with their wall time, and events.jsonl."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from harness.report.terminal import Progress
from harness.result import Phase

EVENTS_NAME = "events.jsonl"

Field = str | int | float | bool | None | list[str]


class Journal:
    """Phases and events of one run. Each event is one flushed line, so a killed run keeps all but the last."""

    def __init__(self, run_dir: Path | None, progress: Progress) -> None:
        """``run_dir`` None: phases are timed, nothing is written (a dry run)."""
        path = Path(os.devnull) if run_dir is None else run_dir / EVENTS_NAME
        self._stream: TextIO = path.open("a", encoding="utf-8", buffering=1)
        self._progress = progress
        self._began = time.monotonic()
        self.phases: list[Phase] = []

    @property
    def wall_seconds(self) -> float:
        return time.monotonic() - self._began

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time one phase; it is recorded as failed when the block raises."""
        self.event("phase_started", phase=name)
        began = time.monotonic()
        state = "failed"
        try:
            with self._progress.phase(name):
                yield
            state = "done"
        finally:
            seconds = round(time.monotonic() - began, 3)
            self.phases.append(Phase(name=name, seconds=seconds, state="done" if state == "done" else "failed"))
            self.event("phase_ended", phase=name, seconds=seconds, state=state)

    def note(self, text: str) -> None:
        """Tell the user and write it down."""
        self._progress.note(text)
        self.event("note", text=text)

    def detail(self, text: str) -> None:
        """What the running phase is doing right now."""
        self._progress.detail(text)
        self.event("detail", text=text)

    def event(self, kind: str, **fields: Field) -> None:
        """Append one line. A full disk must not hide the verdict, so a failed write is dropped."""
        line = {"t": round(time.monotonic() - self._began, 3), "wall": round(time.time(), 3), "event": kind, **fields}
        try:
            self._stream.write(json.dumps(line) + "\n")
        except (OSError, ValueError):
            return

    def close(self) -> None:
        self._stream.close()
