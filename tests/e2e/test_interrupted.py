"""Ctrl-C and SIGTERM, to the command and to nox: `interrupted`, exit code 130, everything down."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.gate import LONG, Gate, Started, eventually, harness, nox, slow
from tests.e2e.look_alike import foreign_vllm, untouched
from tests.e2e.test_killed import report


@pytest.fixture(autouse=True)
def _strangers(tmp_path: Path) -> Iterator[None]:
    with foreign_vllm(tmp_path / "foreign") as strangers:
        yield
        untouched(strangers)


def interrupted(started: Started, by: str) -> None:
    assert started.result["verdict"] == "interrupted"
    assert by in started.result["reason"]
    assert {"events.jsonl", "report.html"} <= {path.name for path in started.folder.iterdir()}


@pytest.mark.parametrize("number", [signal.SIGTERM, slow(signal.SIGINT)], ids=["SIGTERM", "SIGINT"])
def test_a_signal_in_the_middle_of_requests_ends_everything(gate: Gate, number: signal.Signals) -> None:
    with gate.start(harness("run", "eagle3-pd", *LONG)) as started:
        started.await_phase("drive")
        known = started.everything()
        at_s = time.monotonic()
        started.process.send_signal(number)
        started.nothing_left(known)
        assert started.finish() == 130
        report(started, at_s, f"{number.name} to the runner")
        interrupted(started, number.name)


@pytest.mark.slow
def test_a_signal_while_the_engine_is_imported_ends_everything(gate: Gate) -> None:
    with gate.start(harness("run", "eagle3-pd", *LONG)) as started:
        started.await_phase("launch")
        known = started.everything()
        at_s = time.monotonic()
        started.process.send_signal(signal.SIGINT)
        started.nothing_left(known)
        assert started.finish() == 130
        report(started, at_s, "SIGINT during launch")
        interrupted(started, "SIGINT")


def test_a_second_ctrl_c_does_not_cut_the_teardown_short(gate: Gate) -> None:
    with gate.start(harness("run", "eagle3-pd", *LONG)) as started:
        started.await_phase("drive")
        known = started.everything()
        at_s = time.monotonic()
        os.killpg(started.process.pid, signal.SIGINT)

        def tearing_down() -> bool:
            return any(event["phase"].startswith("drive") for event in started.events("phase_ended"))

        eventually(tearing_down, "the teardown begins", 30)
        os.killpg(started.process.pid, signal.SIGINT)
        started.nothing_left(known)
        assert started.finish() == 130
        report(started, at_s, "Ctrl-C twice")
        interrupted(started, "SIGINT")
        assert "SIGINT: already ending everything" in started.output, "the second one was not met during the teardown"


@pytest.mark.parametrize("how", [slow("SIGTERM"), "Ctrl-C", slow("Ctrl-C twice")])
def test_a_signal_to_nox_ends_everything(gate: Gate, how: str) -> None:
    with gate.start(nox("eagle3-pd", *LONG)) as started:
        started.await_phase("drive")
        known = started.everything()
        at_s = time.monotonic()
        if how == "SIGTERM":
            started.process.terminate()
        else:
            # As a terminal does: to nox and to what it started, all at once.
            os.killpg(started.process.pid, signal.SIGINT)
            if how == "Ctrl-C twice":
                time.sleep(0.1)
                os.killpg(started.process.pid, signal.SIGINT)
        started.nothing_left(known)
        assert started.finish() != 0
        report(started, at_s, f"{how} to nox")
        interrupted(started, "SIG")
