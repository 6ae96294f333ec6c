"""The processes below one server: which of them are ours to stop, and which are parts of the engine to watch."""

from __future__ import annotations

from collections.abc import Mapping

from harness.runtime.identity import ProcessId, ProcessRow, descendants

# vLLM names its processes VLLM::EngineCore, VLLM::Worker_TP0 ...; without setproctitle they show the command line of
# the multiprocessing child that was spawned, or of the server that they were forked from.
_ENGINE_TITLES = ("VLLM::", "multiprocessing.spawn", "multiprocessing.forkserver")


def is_engine_process(title: str, server_title: str) -> bool:
    """Whether a process below a server is part of the engine, so that its death is the engine's.

    Compilers, resource trackers and other short-lived programs are not: their end means nothing.
    """
    return bool(title) and (title == server_title or any(mark in title for mark in _ENGINE_TITLES))


def family(
    server: ProcessId, remembered: frozenset[ProcessId], table: Mapping[int, ProcessRow]
) -> frozenset[ProcessId]:
    """The running processes of one server: itself, its session, what was seen below it, and what is below all of these.

    The session counts only while its leader is the server: the number may belong to a stranger later.
    """
    running = {row.identity for row in table.values() if not row.gone}
    pids = {process.pid for process in (remembered | {server}) & running}
    if server in running:
        pids |= {row.pid for row in table.values() if row.session == server.pid}
    pids |= descendants(pids, table)
    return frozenset(table[pid].identity for pid in pids if not table[pid].gone)
