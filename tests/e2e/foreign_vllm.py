"""Somebody else's vLLM, as far as the process table can tell: same argv, same titles, same variables. Serves nothing.

python -m vllm.entrypoints.openai.api_server ARGV, in a folder where `look_alike` has put this file as that module.
"""

from __future__ import annotations

import os
import signal
import sys

if __name__ == "__main__":
    import setproctitle

    for title in ("VLLM::EngineCore", "VLLM::Worker_TP0"):
        if os.fork() == 0:
            setproctitle.setproctitle(title)
            signal.pause()
    sys.stdout.write("up\n")
    sys.stdout.flush()
    signal.pause()
