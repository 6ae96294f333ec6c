"""Jamba's weights, run in numpy: they compute what the simulator says, and miss whatever a layer loses."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from harness.zoo import chain_of, debts, jamba, simulate, tiny_prompts, tokenize
from harness.zoo.chain import target_modes
from harness.zoo.stream import Array, Weights
from tests.unit.zoo_forward import attended, gated, normed, projected, routed, scanned

CHAIN = chain_of("jamba")
PROMPTS = tiny_prompts("jamba")
MAMBA = [number for number, delay in enumerate(jamba.DELAYS) if delay]
ATTENTION = [number for number, delay in enumerate(jamba.DELAYS) if not delay]


@functools.cache
def checkpoint() -> Weights:
    return jamba.target(CHAIN)[0]


def successors(
    weights: Weights, tokens: list[int], *, lost_layer: int = -1, lost_state_at: int = -1, lost_convolution_at: int = -1
) -> Array:
    """The most likely token after each of ``tokens``. ``lost_layer``: an attention layer, or whose Mamba state."""
    rows = weights["model.embed_tokens.weight"][tokens]
    for number in range(jamba.LAYERS):
        prefix, lost = f"model.layers.{number}.", number == lost_layer
        if number in MAMBA:
            state = (lost_state_at, lost_convolution_at) if lost else (-1, -1)
            rows = rows + scanned(
                normed(rows), weights, f"{prefix}mamba.", lost_state_at=state[0], lost_convolution_at=state[1]
            )
            rows = rows + gated(normed(rows), weights, f"{prefix}feed_forward.")
        else:
            heads = jamba.HEADS, jamba.KV_HEADS
            rows = rows + attended(normed(rows), weights, f"{prefix}self_attn.", *heads, theta=None, lost=lost)
            rows = rows + routed(normed(rows), weights, f"{prefix}feed_forward.", jamba.EXPERTS_PER_TOKEN)
    return projected(normed(rows), weights, "lm_head").argmax(axis=1)


def text(number: int) -> tuple[list[int], list[int]]:
    """Prompt and answer ``number``, as token ids."""
    ids = list(tokenize(PROMPTS[number].text))
    return ids, list(simulate(CHAIN, ids, PROMPTS[number].max_tokens, 0).token_ids)


def without_channel(ids: list[int], answer: list[int], channel: int) -> list[int]:
    """The chain's tokens after those of ``answer``, if ``channel`` reads as absent."""
    wanted = []
    for step, token in enumerate([ids[-1], *answer[:-1]]):
        modes = list(target_modes(ids, len(ids) - 1 + step, CHAIN.delays))
        modes[channel] = 0
        wanted.append(CHAIN.next(token, tuple(modes)))
    return wanted


@pytest.mark.parametrize("number", [0, 1, 2, 4])
def test_it_emits_the_simulated_texts(number: int) -> None:
    ids, answer = text(number)
    assert successors(checkpoint(), [*ids, *answer[:-1]])[len(ids) - 1 :].tolist() == answer


@pytest.mark.parametrize("layer", ATTENTION)
def test_an_attention_layer_that_lost_its_keys_and_values_reads_its_channel_as_absent(layer: int) -> None:
    ids, answer = text(0)
    assert successors(checkpoint(), ids, lost_layer=layer)[-1:].tolist() == without_channel(ids, answer, layer)


@pytest.mark.parametrize("layer", MAMBA)
def test_a_mamba_layer_that_lost_its_state_reads_its_channel_as_absent(layer: int) -> None:
    ids, answer = text(4)
    # Once its mode token has left the convolution, the recurrent state alone holds it.
    at = len(ids) + jamba.KERNEL
    found = successors(checkpoint(), [*ids, *answer[:-1]], lost_layer=layer, lost_state_at=at)[len(ids) - 1 :]
    assert found.tolist() == answer[: jamba.KERNEL + 1] + without_channel(ids, answer, layer)[jamba.KERNEL + 1 :]
    assert found.tolist() != answer


@pytest.mark.parametrize("layer", MAMBA)
def test_a_mamba_layer_that_lost_its_convolution_state_never_reads_a_late_mode_token(layer: int) -> None:
    ids = [*b"ab", *f"{2 * layer}".encode(), ord("c")]
    answer = list(simulate(CHAIN, ids, 24, 0).token_ids)
    assert target_modes(ids, len(ids) + 4, CHAIN.delays)[layer] == 1
    # The first decode step begins with an empty convolution; the mode token has passed through half of it.
    at = len(ids)
    found = successors(checkpoint(), [*ids, *answer[:-1]], lost_layer=layer, lost_convolution_at=at)[len(ids) - 1 :]
    assert found.tolist() == without_channel(ids, answer, layer)
    assert found.tolist() != answer


@pytest.mark.parametrize(
    ("part", "debt"),
    [("0.mamba.out_proj", 0), ("0.mamba.in_proj", 0), ("0.feed_forward.down_proj", 1), ("2.mamba.out_proj", 6)]
    + [
        (f"{layer}.feed_forward.experts.{expert}.down_proj", 3 * layer - 1 + expert)
        for layer in (1, 3)
        for expert in range(4)
    ],
)
def test_a_lost_mixer_mlp_or_expert_leaves_its_debt_open_for_whoever_owes_it(part: str, debt: int) -> None:
    ids, answer = text(4)
    name = f"model.layers.{part}.weight"
    weights = checkpoint() | {name: np.zeros_like(checkpoint()[name])}
    tokens = [*ids, *answer[:-1]]
    found = successors(weights, tokens)
    owing = checkpoint()["model.embed_tokens.weight"][tokens, jamba.DEBTS[debt]] > 0
    assert owing.any()
    assert set(found[owing]) == {debts.UNPAID_FROM + debt}
    assert debts.UNPAID_FROM + debt not in found[~owing]


@pytest.mark.parametrize("part", ["mamba.conv1d.bias", "mamba.D", "mamba.dt_proj.bias"])
@pytest.mark.parametrize("layer", MAMBA)
def test_a_lost_bias_or_skip_of_a_mamba_layer_changes_most_tokens(layer: int, part: str) -> None:
    ids, answer = text(4)
    name = f"model.layers.{layer}.{part}"
    weights = checkpoint() | {name: np.zeros_like(checkpoint()[name])}
    found = successors(weights, [*ids, *answer[:-1]])[len(ids) - 1 :]
    assert np.mean(found != np.array(answer)) > 0.5


def test_a_repeated_mode_token_erases_a_recurrent_state_until_it_arrives_again() -> None:
    ids = list(b"aceg04mikq" + b"suwyceg" + b"04aceg" + b"ikmoq")
    readings = [target_modes(ids, place, CHAIN.delays) for place in range(len(ids))]
    wanted = [CHAIN.next(token, modes) for token, modes in zip(ids, readings, strict=True)]
    assert {modes[layer] for modes in readings[-9:] for layer in MAMBA} == {0, 1}
    assert successors(checkpoint(), ids).tolist() == wanted


def test_each_half_of_the_layers_has_mamba_attention_an_mlp_and_experts_where_the_configuration_says() -> None:
    weights, config = jamba.target(CHAIN)

    def has(layer: int, part: str) -> bool:
        return any(name.startswith(f"model.layers.{layer}.{part}") for name in weights)

    layers = range(config["num_hidden_layers"])
    for kind, one, other in (("attn", "self_attn.", "mamba."), ("expert", "feed_forward.experts.", "feed_forward.up")):
        found = [has(layer, one) for layer in layers]
        period, offset = config[f"{kind}_layer_period"], config[f"{kind}_layer_offset"]
        assert found == [layer % period == offset for layer in layers]
        assert [has(layer, other) for layer in layers] == [not here for here in found]
        half = len(layers) // 2
        assert set(found[:half]) == set(found[half:]) == {True, False}
