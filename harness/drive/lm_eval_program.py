"""lm-eval as a program that ends with whoever started it: it holds a pipe to this one's standard input.

An extra of the harness's own environment, always a process of its own: what lm-eval imports is no part of the runner.
"""

from __future__ import annotations

import os
import threading


def _end_with_the_pipe() -> None:
    # Closed on purpose, or by the end of a runner that was killed: either way nobody waits for the answer.
    # Not `sys.stdin`: a thread that waits in its buffer makes an ordinary exit abort.
    while os.read(0, 4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_the_pipe, daemon=True).start()
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
