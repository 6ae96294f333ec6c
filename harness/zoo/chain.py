"""What a tiny checkpoint computes, as tables: the next token, and the drafter's guess of it.

A token is either *plain*, and its successor is fixed, or a *reader*: its successor depends on the mode tokens in the
prompt, one channel for each layer whose cache has to survive the transfer. A layer whose cache was lost reads 0
("absent"), which leads to another token, so lost state shows in the text at the next reader.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from harness.zoo.tokens import VOCAB_SIZE, WORD_IDS

CHANNELS = 4
READINGS = 3  # absent, first value, second value
CLASSES: int = len(WORD_IDS) // READINGS**CHANNELS
# Channel c has the mode tokens '2c' (reading 1) and '2c+1' (reading 2).
MODE_TOKENS: dict[int, tuple[int, int]] = {ord(str(2 * c + v)): (c, v + 1) for c in range(CHANNELS) for v in range(2)}
# What a drafter that shares the target's head proposes when it is wrong. No chain ever emits it, and it erases the
# recurrent state of the layer that computes it: a rejected draft that is not rolled back changes the text.
POISON = 258
NO_DELAY = (0,) * CHANNELS
NO_WINDOW = (0,) * CHANNELS
REPEATS = 2

Modes = tuple[int, ...]


class AmbiguousPrompt(ValueError):
    """What the mode tokens of a prompt add up to is not computed; see `read_modes`."""


@dataclass(frozen=True)
class Chain:
    """Tables by token id, except ``landing``, which is by reader class and then by `mode_index`.

    ``reader_class`` -1: a plain token. ``wrong``: plain tokens that the drafter gets wrong; it never errs on readers.
    ``delays``: for each channel, how many tokens later than its mode token the reading appears (see `target_modes`).
    ``windows``: for each channel, over how many tokens its layer attends; 0: all.
    ``drafter_from``: the first prompt position that the drafter sees.
    """

    seed: int
    delays: tuple[int, ...]
    windows: tuple[int, ...]
    drafter_from: int
    successor: tuple[int, ...]
    reader_class: tuple[int, ...]
    landing: tuple[tuple[int, ...], ...]
    wrong: frozenset[int]
    wrong_guess: tuple[int, ...]

    def next(self, token: int, modes: Modes) -> int:
        """The token that the target emits after ``token``."""
        reader = self.reader_class[token]
        return self.successor[token] if reader < 0 else self.landing[reader][mode_index(modes)]

    def draft(self, token: int, modes: Modes) -> int:
        """The token that the drafter proposes after ``token``."""
        return self.wrong_guess[token] if token in self.wrong else self.next(token, modes)


def mode_index(modes: Modes) -> int:
    """Position of ``modes`` (one reading for each channel) in a row of `Chain.landing`."""
    index = 0
    for reading in modes:
        index = index * READINGS + reading
    return index


def read_modes(prompt_ids: Sequence[int]) -> Modes:
    """The reading of each channel in a prompt.

    Raises `AmbiguousPrompt` where a channel holds both of its values, or more than `REPEATS` mode tokens: they would
    starve the other channels in the drafter's softmax.
    """
    readings = [0] * CHANNELS
    found = [MODE_TOKENS[token] for token in prompt_ids if token in MODE_TOKENS]
    for channel, reading in found:
        if readings[channel] not in (0, reading):
            raise AmbiguousPrompt(f"prompt holds both mode tokens of channel {channel}; keep one of them")
        readings[channel] = reading
        count = sum(there == channel for there, _ in found)
        if count > REPEATS:
            raise AmbiguousPrompt(
                f"prompt holds {count} mode tokens of channel {channel}; at most {REPEATS} are computed"
            )
    return tuple(readings)


def target_modes(
    prompt_ids: Sequence[int], position: int, delays: tuple[int, ...], windows: tuple[int, ...] = NO_WINDOW
) -> Modes:
    """What the target's layers read at ``position``, which may lie past the prompt.

    A channel with a delay of d > 0 is recurrent: a mode token erases its state at once and writes it d steps later,
    having passed through the convolution state. A channel without delay is attention and sees the mode token at once,
    until the mode token leaves its window.
    """
    readings: list[int] = []
    for channel, (delay, window) in enumerate(zip(delays, windows, strict=True)):
        oldest = max(0, position - window + 1) if window else 0
        found = [MODE_TOKENS[token][1] if MODE_TOKENS.get(token, (-1,))[0] == channel else 0 for token in prompt_ids]
        # The last event up to `position` decides; where a write and an erasure fall together, the write does.
        for place in range(min(position, len(found) - 1 + delay), oldest - 1, -1):
            if place >= delay and place - delay < len(found) and found[place - delay]:
                readings.append(found[place - delay])
                break
            if place < len(found) and found[place]:
                readings.append(0)
                break
        else:
            readings.append(0)
    return tuple(readings)


def build_chain(
    seed: int,
    *,
    shared_head: bool,
    delays: tuple[int, ...] = NO_DELAY,
    windows: tuple[int, ...] = NO_WINDOW,
    drafter_from: int = 1,
    wrong_share: float = 0.4,
) -> Chain:
    """Draw the tables. ``shared_head``: the drafter has the target's output head, so all its errors are `POISON`.

    The words form one ring of 81 segments of 9; the last word of each segment is a reader. Readers of class c land in a
    segment that ends in class c + 1, so whatever the modes, a text passes readers of every class before it repeats.
    """
    draw = random.Random(seed)
    words = list(WORD_IDS)
    draw.shuffle(words)
    follows = dict(zip(words, words[1:] + words[:1], strict=True))
    others = [token for token in range(VOCAB_SIZE) if token not in follows]
    # One word each: a head row that had to match many predecessors would drown in their cross-talk.
    follows |= dict(zip(others, draw.sample(words, len(others)), strict=True))

    reader_class = [-1] * VOCAB_SIZE
    segments = [words[start : start + CLASSES] for start in range(0, len(words), CLASSES)]
    for place, segment in enumerate(segments):
        reader_class[segment[-1]] = place % CLASSES
    for value in range(1, 256, 2):
        if value not in MODE_TOKENS:
            reader_class[value] = value // 2 % CLASSES

    landing = []
    for reader in range(CLASSES):
        targets = [word for segment in segments[(reader + 1) % CLASSES :: CLASSES] for word in segment]
        draw.shuffle(targets)
        landing.append(tuple(targets))

    plain = [token for token in range(VOCAB_SIZE) if reader_class[token] < 0]
    guesses = {token: POISON if shared_head else follows[follows[token]] for token in plain}
    wrong = frozenset(draw.sample(plain, int(len(plain) * wrong_share)))
    return Chain(
        seed=seed,
        delays=delays,
        windows=windows,
        drafter_from=drafter_from,
        successor=tuple(follows[t] for t in range(VOCAB_SIZE)),
        reader_class=tuple(reader_class),
        landing=tuple(landing),
        wrong=wrong,
        wrong_guess=tuple(guesses.get(t, follows[t]) for t in range(VOCAB_SIZE)),
    )
