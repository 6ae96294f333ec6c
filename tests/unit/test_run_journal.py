from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.report.terminal import Progress
from harness.run.journal import EVENTS_NAME, Journal
from tests.unit.run_inputs import journal, quiet


def events(run: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (run / EVENTS_NAME).read_text("utf-8").splitlines()]


def test_every_event_is_on_disk_before_the_next_one(tmp_path: Path) -> None:
    log = journal(tmp_path)
    with log.phase("lease"):
        assert [event["event"] for event in events(tmp_path)] == ["phase_started"]
        log.note("waits for gpu-0")
        assert events(tmp_path)[-1]["text"] == "waits for gpu-0"
    assert [event["event"] for event in events(tmp_path)] == ["phase_started", "note", "phase_ended"]


def test_a_phase_left_by_an_error_is_recorded_as_failed(tmp_path: Path) -> None:
    log = journal(tmp_path)
    with pytest.raises(KeyboardInterrupt), log.phase("drive"):
        raise KeyboardInterrupt
    assert [(phase.name, phase.state) for phase in log.phases] == [("drive", "failed")]
    assert events(tmp_path)[-1]["state"] == "failed"


def test_an_event_that_cannot_be_written_does_not_end_the_run() -> None:
    # A run folder whose events go to a device without space.
    log = Journal(None, Progress(quiet()))
    log._stream = Path("/dev/full").open("a", encoding="utf-8", buffering=1)  # noqa: SIM115
    with log.phase("drive"):
        log.event("note", text="x")
    assert [phase.state for phase in log.phases] == ["done"]
