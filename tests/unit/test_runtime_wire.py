"""Messages over a pipe arrive whole, in pieces, or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from harness.runtime import wire
from harness.runtime.wire import LineReader, encode

Pipe = tuple[int, int]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_a_message_in_pieces_is_one_message(pipe: Pipe) -> None:
    data = encode({"op": "start", "name": "decode-0"})
    reader = LineReader(pipe[0])
    os.write(pipe[1], data[:5])
    assert list(reader.read()) == []
    os.write(pipe[1], data[5:] + encode({"op": "watch"}))
    assert [message["op"] for message in reader.read()] == ["start", "watch"]
    assert not reader.at_end


def test_a_side_that_never_ends_its_line_is_taken_for_gone(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_LARGEST_MESSAGE_BYTES", 1000)
    reader = LineReader(pipe[0])
    os.write(pipe[1], encode({"op": "stop"}) + b"x" * 1000)
    assert [message["op"] for message in reader.read()] == ["stop"]
    assert not reader.at_end
    os.write(pipe[1], b"x")
    assert list(reader.read()) == []
    assert reader.at_end
