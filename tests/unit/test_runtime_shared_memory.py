from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

import pytest

from harness.runtime.identity import own_identity
from harness.runtime.shared_memory import mapped_segments, parse_maps, remove_leftovers


def test_what_lies_in_shared_memory_is_told_by_its_inode() -> None:
    text = """\
7f00-7f01 rw-s 00000000 00:17 5  /dev/shm/psm_1234
7f02-7f03 rw-s 00000000 00:17 6  /dev/shm/sem.mp-abc (deleted)
7f04-7f05 r-xp 00000000 00:17 7  /usr/lib/libc.so.6
"""
    assert parse_maps(text) == {5, 6}


def test_a_segment_is_found_under_the_name_that_it_has_now(segment: Path) -> None:
    scratch = segment.with_suffix(".scratch")
    scratch.write_bytes(bytes(4096))
    try:
        with scratch.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
            scratch.rename(segment)
            assert str(segment) in mapped_segments([own_identity()])
            segment.unlink()
            assert str(segment) not in mapped_segments([own_identity()])
    finally:
        segment.unlink(missing_ok=True)
        scratch.unlink(missing_ok=True)


@pytest.fixture
def segment() -> Path:
    return Path(f"/dev/shm/psm_test_{os.getpid()}_{time.monotonic_ns()}")


def test_a_segment_is_removed_only_when_nobody_maps_it_and_it_is_not_older(segment: Path) -> None:
    started = time.time() - 1
    segment.write_bytes(bytes(4096))
    try:
        with segment.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
            assert str(segment) in mapped_segments([own_identity()])
            assert remove_leftovers([str(segment)], started) == ()
        assert remove_leftovers([str(segment)], time.time() + 60) == ()
        assert remove_leftovers([str(segment)], started) == (str(segment),)
        assert remove_leftovers([str(segment)], started) == ()
    finally:
        segment.unlink(missing_ok=True)
