"""The command line, with a stranger that moves onto the decode server's port between lease and launch.

python -m tests.e2e.stranger run eagle3-pd
"""

from __future__ import annotations

import socket
import subprocess
import sys
from typing import Any

import harness.run.execute as execute
from harness.cli import main
from harness.plan.types import Plan
from harness.runtime.deadline import Deadline

_UP_WITHIN_S = 20.0


def move_in(plan: Plan) -> Plan:
    """Start an HTTP server that answers where a server of ``plan`` is to be; its pid goes to stdout."""
    port = plan.stages[0].server("decode").port
    stranger = subprocess.Popen(
        [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    sys.stdout.write(f"stranger {stranger.pid}\n")
    sys.stdout.flush()
    deadline = Deadline.after(_UP_WITHIN_S)
    while not deadline.expired:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
    return plan


if __name__ == "__main__":
    planned = execute.build_plan  # type: ignore[attr-defined]

    def build_plan(*arguments: Any) -> Plan:
        return move_in(planned(*arguments))

    execute.build_plan = build_plan  # type: ignore[attr-defined, assignment]
    main()
