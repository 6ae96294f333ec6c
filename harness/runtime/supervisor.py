"""The process that owns the servers: ``python -m harness.runtime.supervisor --state-dir DIR --run-id ID``.

It lives in a session of its own and reads commands from the runner on stdin. When that pipe ends, however the runner
ended, it tears everything down, removes the run record and exits. Orphans of the servers come to it (subreaper).
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import logging
import os
import signal
import sys
from pathlib import Path

from harness.runtime import record as records
from harness.runtime.identity import own_identity
from harness.runtime.supervision import Supervisor

_PR_SET_CHILD_SUBREAPER = 36

_log = logging.getLogger("supervisor")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m harness.runtime.supervisor")
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--run-id", required=True)
    options = parser.parse_args()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(message)s")

    wakeup_read, wakeup_write = os.pipe()
    os.set_blocking(wakeup_read, False)
    os.set_blocking(wakeup_write, False)
    signal.set_wakeup_fd(wakeup_write)
    # Handlers that do nothing, not SIG_IGN: a server would inherit an ignored signal, but not a handler.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, lambda *_: None)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        _log.warning("cannot become the reaper of orphans: %s", os.strerror(ctypes.get_errno()))

    record = records.read(records.record_path(options.state_dir, options.run_id))
    if record is None:
        _log.error("there is no record of run %s in %s", options.run_id, options.state_dir)
        return 1
    record = dataclasses.replace(record, supervisor=own_identity())
    supervisor = Supervisor(options.state_dir, record, sys.stdin.fileno(), sys.stdout.fileno(), wakeup_read)

    def terminate(*_: object) -> None:
        supervisor.terminated = True

    signal.signal(signal.SIGTERM, terminate)
    supervisor.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
