"""Debts: what every token enters with and a layer must pay off, so that a lost or wrong output of it shows in the text.

A debt left open, or paid twice, outweighs the true successor with a token that no chain contains.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from harness.zoo.chain import Chain
from harness.zoo.stream import CONST_AT, HIDDEN, READER_AT, Array, Weights, zeros
from harness.zoo.tokens import VOCAB_SIZE, WORD_IDS

INTERMEDIATE = 64
# Readers score higher than plain tokens, so they owe more. Half of either debt, left open, still outweighs the truth.
PLAIN_DEBT = 0.125
READER_DEBT = 1.0
DEBT_WEIGHT = 8000.0
UNPAID_FROM = WORD_IDS.stop
OVERPAID = VOCAB_SIZE - 1
GATE = 8.0


@dataclass(frozen=True)
class Each:
    """A number for plain tokens and one for readers."""

    plain: float
    reader: float


OWED = Each(PLAIN_DEBT, READER_DEBT)


def owed_by(chain: Chain) -> Array:
    """What each token owes in each of its debts."""
    return np.where(np.array(chain.reader_class) >= 0, OWED.reader, OWED.plain).astype(np.float32)


def watch(head: Array, dims: Iterable[int]) -> None:
    """Let the head notice debts in ``dims``; a row each, so that one moved to another dimension cannot cancel out."""
    for place, dim in enumerate(dims):
        head[UNPAID_FROM + place, dim] = DEBT_WEIGHT
        head[OVERPAID, dim] = -DEBT_WEIGHT / 2  # half, because small errors of all payments add up here


def constants(chain: Chain, stream: Array, readings: float = 0) -> Each:
    """What the constant 1 of ``stream``, a row for each token, becomes under a norm.

    ``readings``: how many a reader holds by then; between none and one for each channel, so the mean is near enough.
    """
    readers = np.array(chain.reader_class) >= 0
    normed = np.sqrt(HIDDEN / (np.square(stream).sum(axis=1) + readers * readings))
    return Each(float(normed[~readers].mean()), float(normed[readers].mean()))


def factors(constant: Each, owed: Each = OWED) -> Each:
    """What turns the output of a gated MLP with unit weights, which sees ``constant``, into ``owed``."""
    return Each(owed.plain / _swiglu(constant.plain), owed.reader / _swiglu(constant.reader))


def _swiglu(constant: float) -> float:
    return GATE * constant / (1 + float(np.exp(-GATE * constant))) * constant


def payer(prefix: str, paid: Each, dim: int, share: float = 1.0) -> Weights:
    """A gated MLP that pays ``paid`` (from `factors`) into ``dim``; ``share``: what its output is multiplied by."""
    gate, up, down = zeros(INTERMEDIATE, HIDDEN), zeros(INTERMEDIATE, HIDDEN), zeros(HIDDEN, INTERMEDIATE)
    gate[:, CONST_AT] = GATE
    up[:, CONST_AT] = paid.plain
    up[:, READER_AT] = paid.reader - paid.plain
    # Every intermediate unit pays its part: under tensor parallelism no rank can be left out.
    down[dim] = -1 / (share * INTERMEDIATE)
    return {prefix + "gate_proj.weight": gate, prefix + "up_proj.weight": up, prefix + "down_proj.weight": down}
