"""Exact output and speculation counts of a tiny checkpoint, without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.zoo.chain import MODE_TOKENS, NO_DELAY, AmbiguousPrompt, Chain, Modes, read_modes, target_modes


@dataclass(frozen=True)
class Simulated:
    """One request. ``accepted`` counts draft tokens, ``per_position`` those at draft position 1..k."""

    token_ids: tuple[int, ...]
    drafts: int
    draft_tokens: int
    accepted: int
    per_position: tuple[int, ...]


def simulate(
    chain: Chain,
    prompt_ids: Sequence[int],
    max_tokens: int,
    k: int,
    *,
    disaggregated: bool = False,
    padded: bool = True,
    max_model_len: int | None = None,
) -> Simulated:
    """What the engine emits and counts for one greedy request that runs to ``max_tokens``.

    The first token comes from the prefill step, which verifies no draft; every later step verifies ``k`` drafts and
    emits the accepted ones plus one. Accepted drafts count even where ``max_tokens`` cuts their text off.

    ``disaggregated``: as the decode server counts. It gets the prompt's KV and computes only its last token, a step
    that the scheduler pads with ``k`` drafts that are always rejected: one draft more, also where ``max_tokens`` is 1.

    ``max_model_len``: matters to the last ``k`` tokens that fit; a step there verifies only as many drafts as do.
    """
    _refuse(prompt_ids, max_tokens, k)
    seen = _readings(chain, prompt_ids, chain.delays)
    seen_by_drafter = _readings(chain, _drafter_prompt(chain, prompt_ids, disaggregated), NO_DELAY)
    emitted: list[int] = []

    def step_on(token: int) -> None:
        emitted.append(chain.next(token, seen[min(len(emitted), len(seen) - 1)]))

    step_on(prompt_ids[-1])
    padding = disaggregated and padded and k > 0
    drafts, draft_tokens, per_position = int(padding), k * padding, [0] * k
    while len(emitted) < max_tokens:
        room = k if max_model_len is None else min(k, max_model_len - len(prompt_ids) - len(emitted) - 1)
        guess = emitted[-1]
        # From the last token that the target has cached, for all drafts of the step.
        drafter_modes = seen_by_drafter[min(len(emitted), len(seen_by_drafter)) - 1]
        step_on(guess)
        for position in range(room):
            guess = chain.draft(guess, drafter_modes)
            if guess != emitted[-1]:
                break
            per_position[position] += 1
            step_on(guess)
        drafts += room > 0
        draft_tokens += max(room, 0)
    return Simulated(tuple(emitted[:max_tokens]), drafts, draft_tokens, sum(per_position), tuple(per_position))


def _readings(chain: Chain, prompt_ids: Sequence[int], delays: tuple[int, ...]) -> list[Modes]:
    """What is read at the last prompt token, one token later, and so on until nothing changes any more."""
    last, steps = len(prompt_ids) - 1, max(*chain.delays, *chain.windows) + 1
    return [target_modes(prompt_ids, last + step, delays, chain.windows) for step in range(steps)]


def _drafter_prompt(chain: Chain, prompt_ids: Sequence[int], disaggregated: bool) -> Sequence[int]:
    """The prompt tokens that the drafter has seen when it starts to draft."""
    # Of a recurrent model the prefill server computes all but the last prompt token, so its drafter, which is one token
    # ahead, ends with a token of its own; the decode server's drafter does not go back there.
    recurrent = max(chain.delays) > 0
    return prompt_ids[chain.drafter_from : -1 if disaggregated and recurrent else None]


def _refuse(prompt_ids: Sequence[int], max_tokens: int, k: int) -> None:
    if not prompt_ids:
        raise ValueError("a prompt needs at least one token")
    if max_tokens < 1 or k < 0:
        raise ValueError(f"max_tokens must be at least 1 and k at least 0, not {max_tokens} and {k}")
    if all(token in MODE_TOKENS for token in prompt_ids):
        raise AmbiguousPrompt("prompt holds nothing but mode tokens; add any other character")
    read_modes(prompt_ids)
