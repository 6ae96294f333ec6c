"""Files that are there whole or not at all, and files that are read up to a bound."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from harness.errors import Misconfigured

# The most that is read of a data set, of a file of a run, of a checkpoint's JSON, and of a file of a source tree. The
# facts of a run of 16 requests have 0.3 MiB; a weight index of half a million tensors fits.
LARGEST_DATA_BYTES = 64 << 20
# The most that is read of a table or a lock, written by hand: the longest here has 4 KiB.
LARGEST_TABLE_BYTES = 1 << 20


def read_bounded(path: Path, limit_bytes: int, errors: str = "strict") -> str:
    """The text of the regular file ``path``. Raises `Misconfigured` before more than ``limit_bytes`` are in memory.

    A device or a FIFO is refused, too: what it yields has no size, and may never come. Raises OSError and
    UnicodeDecodeError as `Path.read_text` does; ``errors`` is that of `bytes.decode`.
    """
    # O_NONBLOCK: a FIFO without a writer would hold the open itself.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise Misconfigured(f"{path} is no regular file; copy what it holds into one and give that.")
        # One byte more than allowed, because a file may grow between the question and the answer.
        content = stream.read(limit_bytes + 1) if status.st_size <= limit_bytes else b""
    if (size := max(status.st_size, len(content))) > limit_bytes:
        raise Misconfigured(
            f"{path} is larger ({size} bytes) than a file of its kind can be (at most {limit_bytes}); "
            "look whether it is the right one."
        )
    return content.decode(errors=errors)


def remove_with_scratch(path: Path) -> None:
    """Remove ``path``, and what writers of it left that were killed half-way; nobody may be writing it any more."""
    path.unlink(missing_ok=True)
    for scratch in path.parent.glob(_scratch(path, "*").name):
        scratch.unlink(missing_ok=True)


def write_atomically(path: Path, text: str) -> None:
    """Replace ``path`` so that a reader, a full disk or a power cut leaves the old text or the new one, never half.

    Raises OSError.
    """
    scratch = _scratch(path, str(os.getpid()))
    with scratch.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    scratch.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _scratch(path: Path, writer: str) -> Path:
    return path.with_name(f".{path.name}.{writer}.new")
