"""Deliberate faults, one per server, asked for with ``GATE_MUTATE=name`` or ``name:argument``.

Each is written into the running engine by replacing one method. A fault that cannot be put where it belongs raises and
ends the server: a mutation that silently changes nothing would prove the gate blind where nothing was to be seen.
"""

from __future__ import annotations

import os

import gate_fault_counters
import gate_fault_drafter
import gate_fault_engine
import gate_fault_transfer

FAULTS = {
    **gate_fault_counters.FAULTS,
    **gate_fault_drafter.FAULTS,
    **gate_fault_engine.FAULTS,
    **gate_fault_transfer.FAULTS,
}


def apply(value: str) -> None:
    """Put the fault ``value`` names in place; twice in one process is once. Raises ValueError for an unknown one."""
    name, _, argument = value.partition(":")
    if name not in FAULTS:
        raise ValueError(f"GATE_MUTATE={value}: no such fault; known: {' '.join(sorted(FAULTS))}")
    FAULTS[name](argument)
    os.write(2, f"gate-plugin pid={os.getpid()} mutated {value}\n".encode())
