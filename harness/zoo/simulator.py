"""Exact output and speculation counts of a tiny checkpoint, without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.zoo.chain import MODE_TOKENS, AmbiguousPrompt, Chain, read_modes, target_modes


@dataclass(frozen=True)
class Simulated:
    """One request. ``accepted`` counts draft tokens, ``per_position`` those at draft position 1..k."""

    token_ids: tuple[int, ...]
    drafts: int
    draft_tokens: int
    accepted: int
    per_position: tuple[int, ...]


def simulate(
    chain: Chain, prompt_ids: Sequence[int], max_tokens: int, k: int, *, disaggregated: bool = False
) -> Simulated:
    """What the engine emits and counts for one greedy request that runs to ``max_tokens``.

    The first token comes from the prefill step, which verifies no draft; every later step verifies ``k`` drafts and
    emits the accepted ones plus one. Accepted drafts count even where ``max_tokens`` cuts their text off.

    ``disaggregated``: as the decode server counts. It gets the prompt's KV and computes only its last token, a step
    that the scheduler pads with ``k`` drafts that are always rejected: one draft more, nothing else changes.
    """
    if not prompt_ids:
        raise ValueError("a prompt needs at least one token")
    if max_tokens < 1 or k < 0:
        raise ValueError(f"max_tokens must be at least 1 and k at least 0, not {max_tokens} and {k}")
    if len(prompt_ids) == sum(token in MODE_TOKENS for token in prompt_ids):
        raise AmbiguousPrompt("prompt holds nothing but mode tokens; add any other character")
    read_modes(prompt_ids)
    # The drafter is one step ahead of the target: it never embeds the first prompt token.
    drafter_modes = read_modes(prompt_ids[1:])
    last = len(prompt_ids) - 1
    seen = [target_modes(prompt_ids, last + step, chain.delays) for step in range(max(chain.delays) + 1)]

    def step_on(token: int) -> None:
        emitted.append(chain.next(token, seen[min(len(emitted), len(seen) - 1)]))

    emitted: list[int] = []
    step_on(prompt_ids[-1])
    drafts, per_position = 0, [0] * k
    while len(emitted) < max_tokens:
        guess = emitted[-1]
        step_on(guess)
        for position in range(k):
            guess = chain.draft(guess, drafter_modes)
            if guess != emitted[-1]:
                break
            per_position[position] += 1
            step_on(guess)
        drafts += 1
    if disaggregated:
        drafts += 1
    if k == 0:
        drafts = 0
    return Simulated(tuple(emitted[:max_tokens]), drafts, drafts * k, sum(per_position), tuple(per_position))
