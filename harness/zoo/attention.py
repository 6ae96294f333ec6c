"""Attention heads that find mode tokens, as every layer of the zoo with separate keys and values has them."""

from __future__ import annotations

from harness.zoo.chain import MODE_TOKENS
from harness.zoo.stream import QUERY_AT, Array, mode_dim, reading_dim


def lookup(query: Array, key: Array, query_row: int, key_row: int, channels: tuple[int, ...], gain: float) -> None:
    """Make one row of the projections attend from readers to the mode tokens of ``channels``.

    Plain tokens get the opposite query: they attend to anything but mode tokens, whose values are the only ones not 0.
    """
    query[query_row, QUERY_AT] = gain
    for channel in channels:
        key[key_row, [mode_dim(channel, 1), mode_dim(channel, 2)]] = gain


def carry_readings(value: Array, output: Array, first_slot: int, channels: tuple[int, ...], scale: float) -> None:
    """Make a head write ``scale`` into the reading dimensions of those mode tokens of ``channels`` it attends to.

    It uses two slots of the head for each channel that exists, from ``first_slot``.
    """
    for channel, reading in MODE_TOKENS.values():
        if channel in channels:
            slot = first_slot + 2 * channel + reading - 1
            value[slot, mode_dim(channel, reading)] = 1
            output[reading_dim(channel, reading), slot] = scale
