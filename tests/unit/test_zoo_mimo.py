"""MiMo's weights, run in numpy: they compute what the simulator says, and miss whatever a layer loses."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from harness.zoo import chain_of, mimo, simulate, tiny_prompts, tokenize
from harness.zoo.chain import POISON, read_modes
from harness.zoo.stream import Array, Weights
from tests.unit.zoo_forward import attended, gated, normed, projected

CHAIN = chain_of("mimo-mtp")
PROMPTS = tiny_prompts("mimo-mtp")[1:5:3]
MTP = "model.mtp_layers.0."


@functools.cache
def checkpoint() -> Weights:
    return mimo.target(CHAIN)[0]


def layer(
    rows: Array, weights: Weights, prefix: str, *, theta: float | None = mimo.ROPE_THETA, lost: bool = False
) -> Array:
    heads = mimo.HEADS, mimo.KV_HEADS
    rows = rows + attended(normed(rows), weights, f"{prefix}self_attn.", *heads, theta=theta, lost=lost)
    return rows + gated(normed(rows), weights, f"{prefix}mlp.")


def hidden_states(
    weights: Weights, tokens: list[int], *, theta: float | None = mimo.ROPE_THETA, lost_layer: int = -1
) -> Array:
    rows = weights["model.embed_tokens.weight"][tokens]
    for number in range(mimo.LAYERS):
        rows = layer(rows, weights, f"model.layers.{number}.", theta=theta, lost=number == lost_layer)
    return rows


def successors(
    weights: Weights, tokens: list[int], *, theta: float | None = mimo.ROPE_THETA, lost_layer: int = -1
) -> Array:
    """The most likely token after each of ``tokens``."""
    rows = hidden_states(weights, tokens, theta=theta, lost_layer=lost_layer)
    return projected(normed(rows), weights, "lm_head").argmax(axis=1)


def guesses(weights: Weights, tokens: list[int], hidden: Array) -> Array:
    """The drafter's guess after each of ``tokens`` but the first. It is one token ahead of the hidden states."""
    embedded = weights["model.embed_tokens.weight"][tokens[1:]].copy()
    embedded[0] = 0  # at position 0, which the MTP layer masks
    rows = projected(np.concatenate((normed(hidden), normed(embedded)), axis=1), weights, f"{MTP}input_proj")
    return projected(normed(layer(rows, weights, MTP)), weights, "lm_head").argmax(axis=1)


def texts() -> list[tuple[list[int], tuple[int, ...]]]:
    """Prompt and answer, as token ids."""
    prompts = [(list(tokenize(prompt.text)), prompt.max_tokens) for prompt in PROMPTS]
    return [(ids, simulate(CHAIN, ids, max_tokens, 1).token_ids) for ids, max_tokens in prompts]


def without(weights: Weights, *names: str) -> Weights:
    return weights | {name: np.zeros_like(weights[name]) for name in names}


def wrong_share(weights: Weights, number: int, *, theta: float | None = mimo.ROPE_THETA) -> float:
    """The share of tokens of answer ``number`` that ``weights`` do not emit after those before them."""
    ids, answer = texts()[number]
    found = successors(weights, [*ids, *answer[:-1]], theta=theta)[len(ids) - 1 :]
    return float(np.mean(found != np.array(answer)))


def test_the_target_emits_the_simulated_texts() -> None:
    assert [wrong_share(checkpoint(), number) for number in range(len(PROMPTS))] == [0] * len(PROMPTS)


@pytest.mark.parametrize("lost_layer", range(mimo.LAYERS))
def test_a_layer_that_lost_its_keys_and_values_reads_its_channel_as_absent(lost_layer: int) -> None:
    for ids, _ in texts():
        modes = list(read_modes(ids))
        modes[lost_layer] = 0
        assert successors(checkpoint(), ids, lost_layer=lost_layer)[-1] == CHAIN.next(ids[-1], tuple(modes))


@pytest.mark.parametrize(
    "part", ["self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias", "mlp.down_proj.weight"]
)
@pytest.mark.parametrize("number", range(mimo.LAYERS))
def test_a_lost_bias_or_mlp_of_any_layer_changes_most_tokens(number: int, part: str) -> None:
    assert wrong_share(without(checkpoint(), f"model.layers.{number}.{part}"), 0) > 0.5


def test_a_lost_rotation_changes_most_tokens() -> None:
    assert wrong_share(checkpoint(), 0, theta=None) > 0.5


@pytest.mark.parametrize("part", ["k_proj.bias", "v_proj.bias", "v_proj.weight"])
def test_key_value_heads_that_change_places_change_most_tokens(part: str) -> None:
    name = f"model.layers.0.self_attn.{part}"
    swapped = np.roll(checkpoint()[name], mimo.HEAD_DIM, axis=0)
    assert wrong_share(checkpoint() | {name: swapped}, 0) > 0.5


def test_the_drafter_guesses_as_the_chain_says() -> None:
    for ids, answer in texts():
        tokens = [*ids, *answer]
        found = guesses(checkpoint(), tokens, hidden_states(checkpoint(), tokens[:-1]))[len(ids) - 1 :]
        modes = read_modes(ids[CHAIN.drafter_from :])
        assert found.tolist() == [CHAIN.draft(token, modes) for token in answer]


def test_the_drafter_guesses_poison_where_the_hidden_state_is_lost() -> None:
    for ids, answer in texts():
        tokens = [*ids, *answer]
        found = guesses(checkpoint(), tokens, np.zeros((len(tokens) - 1, mimo.HIDDEN), dtype=np.float32))
        assert set(found[len(ids) - 1 :]) == {POISON}


@pytest.mark.parametrize(
    "part", ["self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias", "mlp.down_proj.weight"]
)
def test_a_drafter_that_lost_a_bias_or_its_mlp_guesses_little_right(part: str) -> None:
    weights = without(checkpoint(), f"{MTP}{part}")
    for ids, answer in texts():
        tokens = [*ids, *answer]
        found = guesses(weights, tokens, hidden_states(weights, tokens[:-1]))[len(ids) - 1 : -1]
        assert sum(guess == token for guess, token in zip(found, answer[1:], strict=True)) < 0.25 * len(answer)
