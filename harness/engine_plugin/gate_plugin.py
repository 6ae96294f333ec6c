"""Loaded by vLLM in each of its processes (entry point ``vllm.general_plugins``); does what the environment asks.

GATE_ADJUST     comma list of `gate_adjust.ADJUSTMENTS`; they change speed or fill a platform gap, none heals the engine
GATE_TRACE_DIR  folder for one list per process of the vLLM sources it imported
GATE_MUTATE     a deliberate fault, applied by gate_mutations; its absence ends the engine, never passes silently

The folder of this file goes on PYTHONPATH; the dist-info beside it is what vLLM finds, so nothing is installed.
"""

from __future__ import annotations

import os


def register() -> None:
    """Called once per process, and again after the importer's fork: every part tolerates both."""
    if folder := os.environ.get("GATE_TRACE_DIR"):
        import gate_trace

        gate_trace.start(folder)
    if names := [name.strip() for name in os.environ.get("GATE_ADJUST", "").split(",") if name.strip()]:
        import gate_adjust

        gate_adjust.apply(names)
    if mutation := os.environ.get("GATE_MUTATE"):
        import gate_mutations

        gate_mutations.apply(mutation)
