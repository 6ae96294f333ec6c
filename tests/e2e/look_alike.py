"""A foreign vLLM beside the run: a server with an engine core and a worker that nothing of ours may touch."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from harness.runtime.identity import ProcessId, alive, command_line, identify, process_table


@contextlib.contextmanager
def foreign_vllm(folder: Path) -> Iterator[list[ProcessId]]:
    """Start one in ``folder`` and end it afterwards; its three processes, server first."""
    package = folder / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("foreign_vllm.py"), package / "api_server.py")
    module = ["-m", "vllm.entrypoints.openai.api_server", "--model", "meta-llama/Llama-3.1-8B-Instruct"]
    with subprocess.Popen(
        [sys.executable, *module, "--served-model-name", "eagle3-pd", "--host", "127.0.0.1", "--port", "8100"],
        cwd=folder,
        # A run of somebody else's gate, even: only the value of its marker is another one.
        env={**os.environ, "GATE_RUN": "20200101T000000-eagle3-pd-0.0", "SPT_NOENV": "1"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "up\n"
        leader = identify(server.pid)
        assert leader is not None
        below = [row.identity for row in process_table().values() if row.parent == server.pid]
        try:
            yield [leader, *below]
        finally:
            for process in (leader, *below):
                if alive(process):
                    os.kill(process.pid, signal.SIGKILL)


def untouched(strangers: list[ProcessId]) -> None:
    """Fail unless all of them still run."""
    gone = [process for process in strangers if not alive(process)]
    assert not gone, f"foreign processes were ended: {gone}; left: {[command_line(p.pid) for p in strangers]}"
