from __future__ import annotations

import itertools

import pytest

from harness.deployments import ZooName
from harness.zoo import chain_of, simulate, tiny_prompts, tokenize
from harness.zoo.chain import CHANNELS, MODE_TOKENS, READINGS, target_modes

NAMES: tuple[ZooName, ...] = ("llama-eagle3", "qwen35-mtp", "deepseek-mtp", "gemma4-mtp", "mimo-mtp", "jamba")


def text_with_lost_channel(name: ZooName, text: str, max_tokens: int, channel: int) -> tuple[int, ...]:
    """What the target would emit if it read ``channel`` as absent throughout."""
    chain, ids = chain_of(name), tokenize(text)
    emitted = [ids[-1]]
    for step in range(max_tokens):
        modes = list(target_modes(ids, len(ids) - 1 + step, chain.delays, chain.windows))
        modes[channel] = 0
        emitted.append(chain.next(emitted[-1], tuple(modes)))
    return tuple(emitted[1:])


@pytest.mark.parametrize("name", NAMES)
def test_prompts_are_the_same_every_time_and_differ_from_each_other(name: ZooName) -> None:
    assert tiny_prompts(name) == tiny_prompts(name, 24)[:16]
    assert len({prompt.text for prompt in tiny_prompts(name, 24)}) == 24
    assert len({prompt.prompt_id for prompt in tiny_prompts(name, 24)}) == 24


@pytest.mark.parametrize("name", NAMES)
def test_every_prompt_holds_one_mode_token_of_each_channel_and_never_first_or_last(name: ZooName) -> None:
    for prompt in tiny_prompts(name, 24):
        ids = tokenize(prompt.text)
        assert sorted(token for token in ids if token in MODE_TOKENS) == sorted(prompt.mode.encode())
        assert len(prompt.mode) == CHANNELS
        assert not {ids[0], ids[-1]} & set(MODE_TOKENS)


@pytest.mark.parametrize("name", NAMES)
def test_prompts_cross_blocks_and_ask_for_one_to_ninety_six_tokens(name: ZooName) -> None:
    prompts = tiny_prompts(name)
    lengths = {len(tokenize(prompt.text)) for prompt in prompts}
    assert min(lengths) < 16
    assert max(lengths) > 6 * 32
    assert {15, 0, 1} <= {length % 16 for length in lengths}
    assert {1, 2, 96} <= {prompt.max_tokens for prompt in prompts}


@pytest.mark.parametrize("name", NAMES)
def test_no_two_prompts_share_their_modes_so_a_swapped_cache_shows(name: ZooName) -> None:
    prompts = tiny_prompts(name, 24)
    assert len({prompt.mode for prompt in prompts[:16]}) == 16
    for one, other in itertools.pairwise(prompts):
        assert sum(a != b for a, b in zip(one.mode, other.mode, strict=True)) >= 3


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("channel", range(CHANNELS))
def test_a_lost_channel_changes_nearly_every_text(name: ZooName, channel: int) -> None:
    prompts = tiny_prompts(name)
    changed = [
        text_with_lost_channel(name, p.text, p.max_tokens, channel)
        != simulate(chain_of(name), tokenize(p.text), p.max_tokens, 1).token_ids
        for p in prompts
    ]
    assert sum(changed) >= len(prompts) - 3


def test_some_qwen_prompts_hold_each_recurrent_reading_in_the_convolution_state_only() -> None:
    chain = chain_of("qwen35-mtp")
    for channel, delay in enumerate(chain.delays[:-1]):
        held = 0
        for prompt in tiny_prompts("qwen35-mtp"):
            ids = tokenize(prompt.text)
            before, after = (target_modes(ids, len(ids) + offset, chain.delays)[channel] for offset in (-2, 4))
            held += before == 0 and 0 < after < READINGS
        assert held >= 3, (channel, delay)
