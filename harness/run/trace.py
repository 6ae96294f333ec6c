"""An import trace of a run: asked for through the servers' environment, summed up per server and process."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from harness.ci.deps import read_trace
from harness.deployments import Deployment, Role
from harness.files import LARGEST_DATA_BYTES, read_bounded
from harness.plan.build import server_name

TRACE_FOLDER = "trace"

# As `harness.engine_plugin.gate_trace` begins each list; the name of a process may hold blanks, so argv ends it.
_HEADER = re.compile(r"^# pid=(?P<pid>\d+) ppid=\d+ process=(?P<process>.*?) argv=", re.MULTILINE)


@dataclass(frozen=True)
class ProcessTrace:
    """One process: the server it belongs to, its own name (``MainProcess``, ``EngineCore``) and its vLLM files."""

    server: str
    process: str
    pid: int
    files: frozenset[str]


def trace_environment(deployment: Deployment) -> dict[str, dict[str, str]]:
    """The variables that make every process of every server write its list, by server name.

    The folders are relative: servers start in the run's own folder, whose name is not known before it exists.
    """
    names = [server_name(role) for role in (*deployment.roles, Role("reference"))]
    return {name: {"GATE_TRACE_DIR": f"{TRACE_FOLDER}/{name}"} for name in names}


def read_processes(folder: Path) -> tuple[ProcessTrace, ...]:
    """Every list below ``folder`` (RUN/trace), in the order of server and process id; empty when there is none."""
    found = []
    for path in folder.rglob("*.txt"):
        text = read_bounded(path, LARGEST_DATA_BYTES)
        header = _HEADER.search(text)
        process = header["process"] if header else "unnamed"
        found.append(ProcessTrace(path.parent.name, process, int(path.stem), read_trace([text])))
    return tuple(sorted(found, key=lambda one: (one.server, one.pid)))


def files_per_process(processes: tuple[ProcessTrace, ...]) -> dict[str, int]:
    """Number of vLLM files by ``server/process``; processes of one name are numbered. Pure."""
    counts: dict[str, int] = {}
    for one in processes:
        name, number = f"{one.server}/{one.process}", 2
        while name in counts:
            name, number = f"{one.server}/{one.process} {number}", number + 1
        counts[name] = len(one.files)
    return counts
