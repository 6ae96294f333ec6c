"""The fixed prompts of the tiny workload: every combination that a lost, cut or swapped cache should be noticed in."""

from __future__ import annotations

import random
from dataclasses import dataclass

from harness.deployments import ZooName
from harness.zoo.chain import CHANNELS

# One prompt shorter than a KV block of 16, others that end just before, on and after blocks of 16 and 32.
LENGTHS = (13, 48, 31, 97, 64, 33, 129, 20, 80, 47, 160, 65, 32, 112, 96, 223)
MAX_TOKENS = (1, 24, 2, 96, 33, 3, 48, 7, 64, 16, 32, 80, 5, 17, 4, 40)
_FILLER = "the quick brown fox jumps over a lazy dog and keeps walking through rain "
_ENDINGS = "acegikmoqsuwy"


@dataclass(frozen=True)
class TinyPrompt:
    """One request of the tiny workload. ``mode``: its mode tokens, channel 0 first."""

    prompt_id: str
    text: str
    max_tokens: int
    mode: str


def tiny_prompts(name: ZooName, n: int = 16) -> tuple[TinyPrompt, ...]:
    """``n`` prompts for ``name``, the same in every process. Each ends on a reader, so its first token needs the cache.

    Mode tokens lie in the first, second, third and last quarter of a prompt, in an order that varies: cutting any
    quarter off, or losing any one layer, changes its text. Two prompts in three also have mode tokens among the last
    positions but one, where recurrent layers hold them in the convolution state and nowhere else.
    """
    return tuple(_prompt(name, index) for index in range(n))


def _prompt(name: ZooName, index: int) -> TinyPrompt:
    draw = random.Random(f"{name} {index}")
    length, ending = LENGTHS[index % len(LENGTHS)], _ENDINGS[index % len(_ENDINGS)]
    start = index * 7 % len(_FILLER)
    characters = list((_FILLER * (length // len(_FILLER) + 2))[start : start + length - 1] + ending)
    # A Gray code in complementary pairs: 16 prompts in a row have 16 modes, and neighbours differ in three channels at
    # least, so the caches of any two requests that meet in an engine cannot be swapped unnoticed.
    half = index // 2
    bits = [(index ^ (half ^ half >> 1) >> channel) & 1 for channel in range(CHANNELS)]
    tokens = [str(2 * channel + bit) for channel, bit in enumerate(bits)]
    for channel, place in enumerate(_places(draw, index, length)):
        characters[place] = tokens[channel]
    return TinyPrompt(
        prompt_id=f"tiny-{index:02d}",
        text="".join(characters),
        max_tokens=MAX_TOKENS[index % len(MAX_TOKENS)],
        mode="".join(tokens),
    )


def _places(draw: random.Random, index: int, length: int) -> list[int]:
    quarters = [
        # From 2: drafters never embed the first prompt token, or the first two (`Chain.drafter_from`).
        draw.randrange(2 + (length - 6) * quarter // CHANNELS, 2 + (length - 6) * (quarter + 1) // CHANNELS)
        for quarter in draw.sample(range(CHANNELS), CHANNELS)
    ]
    tail = [length - 4, length - 3, length - 2]
    match index % 3:
        case 1:
            quarters[index // 3 % 3] = tail[index // 3 % 3]
        case 2:
            quarters[:3] = draw.sample(tail, 3)
    return quarters
