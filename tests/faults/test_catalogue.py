"""docs/faults.md names every fault that is injected into a server or sent as a signal, with its verdict."""

from __future__ import annotations

from tests.faults.test_whole_servers import ANSWERING, ENDING, STARTING
from tests.faults.test_whole_signals import SIGNALS
from tests.faults.whole_run import ROOT


def test_the_catalogue_names_every_fault_with_its_verdict() -> None:
    lines = (ROOT / "docs" / "faults.md").read_text("utf-8").splitlines()
    rows = {tuple(part.strip() for part in line.strip("| ").split("|")) for line in lines if line.startswith("| ")}
    named = {(row[0], row[-1]) for row in rows}
    servers = {(fault.name, fault.verdict.value) for fault in (*STARTING, *ANSWERING, *ENDING)}
    signals = {(str(fault), fault.verdict.value) for fault in SIGNALS}
    assert (servers | signals) - named == set()
