"""The residual stream that all tiny checkpoints share, and the embedding and output head that write and read it.

Dimensions, in this order: a random +-1 code of the token, one-hot reader class, +1/-1 query flag (reader or not), the
mode flags (one-hot over channel and value), a reader flag, a drafter-error flag, the readings that the layers write
(two for each channel), the drafter's guess of `POISON`, a poison flag and a constant.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.zoo.chain import CHANNELS, CLASSES, MODE_TOKENS, POISON, READINGS, Chain, mode_index
from harness.zoo.tokens import VOCAB_SIZE

Array = npt.NDArray[np.float32]
Weights = dict[str, Array]
Config = dict[str, Any]

HIDDEN = 256
CODE = 160
CLASS_AT = CODE
QUERY_AT = CLASS_AT + CLASSES
MODE_AT = QUERY_AT + 1
READER_AT = MODE_AT + len(MODE_TOKENS)
ERROR_AT = READER_AT + 1
READING_AT = ERROR_AT + 1
READING_DIMS = 2 * CHANNELS
GUESS_AT = READING_AT + READING_DIMS
POISON_AT = GUESS_AT + 1
CONST_AT = POISON_AT + 1
END = CONST_AT + 1

CLASS_VALUE = 4.0
# Head weights: a wrong class or reading must lose more than the cross-talk of two random codes (below CODE) can win.
CLASS_WEIGHT = 160.0
READING_WEIGHT = 240.0
# A shared-head drafter raises GUESS_AT to GUESS_VALUE for its errors; nothing else may outweigh the product.
GUESS_VALUE = 8.0
GUESS_WEIGHT = 400.0


@dataclass(frozen=True)
class Stream:
    """``embedding`` and ``head`` are [vocabulary, hidden]; ``codes`` is [vocabulary, CODE]."""

    codes: Array
    embedding: Array
    head: Array
    draft_head: Array


def zeros(*shape: int) -> Array:
    return np.zeros(shape, dtype=np.float32)


def ones(*shape: int) -> Array:
    return np.ones(shape, dtype=np.float32)


def mode_dim(channel: int, reading: int) -> int:
    """Where the embedding of the mode token (``channel``, ``reading`` 1 or 2) holds its flag."""
    return MODE_AT + 2 * channel + reading - 1


def reading_dim(channel: int, reading: int) -> int:
    """Where a layer writes that it found the mode token (``channel``, ``reading`` 1 or 2)."""
    return READING_AT + 2 * channel + reading - 1


def build_stream(chain: Chain) -> Stream:
    """Embedding and heads of ``chain``. ``draft_head``: for drafters that have their own."""
    codes = _codes(chain.seed)
    embedding = zeros(VOCAB_SIZE, HIDDEN)
    embedding[:, :CODE] = codes
    embedding[:, QUERY_AT] = -1
    for token, reader in enumerate(chain.reader_class):
        if reader >= 0:
            embedding[token, CLASS_AT + reader] = CLASS_VALUE
            embedding[token, QUERY_AT] = 1
            embedding[token, READER_AT] = 1
    for token, (channel, reading) in MODE_TOKENS.items():
        embedding[token, mode_dim(channel, reading)] = 1
    embedding[sorted(chain.wrong), ERROR_AT] = 1
    embedding[POISON, POISON_AT] = 1
    embedding[:, CONST_AT] = 1

    readers = _reader_rows(chain)
    readers[POISON, GUESS_AT] = GUESS_WEIGHT
    head, draft_head = readers.copy(), readers.copy()
    for token, reader in enumerate(chain.reader_class):
        if reader < 0:
            head[chain.successor[token], :CODE] += codes[token]
            guess = chain.wrong_guess[token] if token in chain.wrong else chain.successor[token]
            draft_head[guess, :CODE] += codes[token]
    return Stream(codes=codes, embedding=embedding, head=head, draft_head=draft_head)


def _codes(seed: int) -> Array:
    # random.Random, not numpy: its bit stream is the same in every version, and a checkpoint outlives the process.
    draw = random.Random(seed + 1)
    bits = [draw.getrandbits(CODE) for _ in range(VOCAB_SIZE)]
    return np.array([[(word >> place & 1) * 2 - 1 for place in range(CODE)] for word in bits], dtype=np.float32)


def _reader_rows(chain: Chain) -> Array:
    rows = zeros(VOCAB_SIZE, HIDDEN)
    for modes in np.ndindex(*(READINGS,) * CHANNELS):
        for reader in range(CLASSES):
            row = rows[chain.landing[reader][mode_index(modes)]]
            row[CLASS_AT + reader] += CLASS_WEIGHT
            for channel, wanted in enumerate(modes):
                # Scores of the three readings differ by at least READING_WEIGHT whatever was found, also where a
                # reading is larger than 1; the absent one needs no cache to win, the others do.
                if wanted == 0:
                    row[READER_AT] += READING_WEIGHT
                    row[[reading_dim(channel, 1), reading_dim(channel, 2)]] -= READING_WEIGHT
                else:
                    row[reading_dim(channel, wanted)] += 2 * READING_WEIGHT
                    row[reading_dim(channel, 3 - wanted)] -= 2 * READING_WEIGHT
    return rows
