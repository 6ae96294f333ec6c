"""A forward pass of the Gemma 4 target and its assistant, as the engine's model files do it, without the engine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from harness.zoo import chain_of, gemma4
from harness.zoo.chain import CHANNELS, POISON, target_modes
from harness.zoo.stream import HIDDEN, Array, Weights

CHAIN = chain_of("gemma4-mtp")
TARGET, ASSISTANT = gemma4.target(CHAIN)[0], gemma4.drafter(CHAIN)[0]
PROMPT = list(b"a1 quick 2rown fox5 jumps 6o")
MODES = (2, 1, 2, 1)
SLIDING, FULL = range(len(gemma4.KINDS))
Cache = tuple[Array, Array]


@dataclass(frozen=True)
class Passed:
    """``hidden``: at each position, after the last norm. ``caches``: keys and values by kind of layer."""

    hidden: Array
    caches: dict[int, Cache]

    @property
    def token(self) -> int:
        return int((self.hidden[-1] @ TARGET["lm_head.weight"].T).argmax())


def normed(rows: Array, weight: Array | float = 1.0) -> Array:
    return np.asarray(rows / np.sqrt(np.square(rows).mean(axis=-1, keepdims=True) + 1e-6) * weight, dtype=np.float32)


def heads(rows: Array, projection: Array, kind: int) -> Array:
    return normed((rows @ projection.T).reshape(len(rows), gemma4.HEADS, gemma4.HEAD_DIMS[kind]))


def layer(weights: Weights, number: int, stream: Array, cache: Cache) -> Array:
    """The layer's output; the rows of ``stream`` are the last ones that the cache covers."""
    prefix, kind = f"model.layers.{number}.", number % len(gemma4.KINDS)
    rows = normed(stream, weights[prefix + "input_layernorm.weight"])
    keys, values = cache
    query = heads(rows, weights[prefix + "self_attn.q_proj.weight"], kind)
    scores = np.einsum("ihd,jhd->hij", query, keys)
    distance = np.arange(len(keys))[None, -len(rows) :].T - np.arange(len(keys))[None, :]
    scores[:, (distance < 0) | (distance >= (gemma4.WINDOW if kind == SLIDING else len(keys)))] = -np.inf
    share = np.exp(scores - scores.max(axis=2, keepdims=True))
    share /= share.sum(axis=2, keepdims=True)
    attended = np.einsum("hij,jhd->ihd", share, values).reshape(len(rows), -1)
    added = attended @ weights[prefix + "self_attn.o_proj.weight"].T
    stream = stream + normed(added, weights[prefix + "post_attention_layernorm.weight"])
    return np.asarray(stream * weights[prefix + "layer_scalar"])


def run(tokens: list[int], weights: Weights = TARGET, lost: int | None = None) -> Passed:
    """``lost``: the kind of layer whose cache holds the last token only."""
    stream = weights["model.embed_tokens.weight"][tokens] * np.float32(HIDDEN**0.5)
    caches: dict[int, Cache] = {}
    for number in range(gemma4.LAYERS):
        kind = number % len(gemma4.KINDS)
        if kind not in caches:
            rows = normed(stream)
            keys, values = (
                heads(rows, weights[f"model.layers.{number}.self_attn.{part}_proj.weight"], kind) for part in "kv"
            )
            if kind == lost:
                keys[:-1], values[:-1] = 0, 0
            caches[kind] = keys, values
        stream = layer(weights, number, stream, caches[kind])
    return Passed(normed(stream), caches)


def guess(token: int, hidden: Array, caches: dict[int, Cache]) -> tuple[int, Array]:
    """What the assistant guesses after ``token``, and the hidden state that its next guess is made from."""
    embedding = TARGET["model.embed_tokens.weight"][token] * np.float32(HIDDEN**0.5)
    stream = np.concatenate([embedding, hidden])[None] @ ASSISTANT["pre_projection.weight"].T
    for kind in (SLIDING, FULL):
        stream = layer(ASSISTANT, kind, stream, caches[kind])
    last = normed(stream)[0]
    return int((ASSISTANT["model.embed_tokens.weight"] @ last).argmax()), last @ ASSISTANT["post_projection.weight"].T


def test_the_target_reads_all_channels_and_misses_both_of_a_lost_cache() -> None:
    assert run(PROMPT).token == CHAIN.next(PROMPT[-1], MODES)
    for lost in (SLIDING, FULL):
        seen = tuple(0 if channel % 2 == lost else reading for channel, reading in enumerate(MODES))
        assert run(PROMPT, lost=lost).token == CHAIN.next(PROMPT[-1], seen)


@pytest.mark.parametrize("beyond", [0, 1])
def test_the_sliding_channels_are_absent_from_the_first_token_beyond_the_window(beyond: int) -> None:
    tokens = [*b"15", *b"a" * (gemma4.WINDOW - 3 + beyond), ord("o")]
    modes = target_modes(tokens, len(tokens) - 1, CHAIN.delays, CHAIN.windows)
    assert (modes[0] > 0) == (not beyond)
    assert modes[2] > 0
    assert run(tokens).token == CHAIN.next(tokens[-1], modes)


def test_a_layer_that_does_not_scale_its_stream_changes_the_token() -> None:
    for number in range(gemma4.LAYERS - 1):  # a norm follows the last one
        unscaled = TARGET | {f"model.layers.{number}.layer_scalar": np.ones(1, dtype=np.float32)}
        assert run(PROMPT, unscaled).token != run(PROMPT).token, number


def test_the_assistant_guesses_as_computed_from_the_targets_cache_two_tokens_ahead() -> None:
    cached = run(PROMPT)
    for token in range(0, len(CHAIN.successor), 3):
        first, hidden = guess(token, cached.hidden[-1], cached.caches)
        assert first == CHAIN.draft(token, MODES)
        assert guess(first, hidden, cached.caches)[0] == CHAIN.draft(first, MODES)


def test_the_assistant_misses_what_a_cache_that_it_shares_has_lost() -> None:
    reader = next(token for token, reader in enumerate(CHAIN.reader_class) if reader >= 0)
    for lost in (SLIDING, FULL):
        cached = run(PROMPT, lost=lost)
        seen = tuple(0 if channel % 2 == lost else reading for channel, reading in enumerate(MODES))
        assert guess(reader, cached.hidden[-1], cached.caches)[0] == CHAIN.draft(reader, seen)


def test_without_a_hidden_state_the_assistant_guesses_nothing_that_could_be_accepted() -> None:
    caches = run(PROMPT).caches
    nothing = np.zeros(HIDDEN, dtype=np.float32)
    assert {guess(token, nothing, caches)[0] for token in range(0, len(CHAIN.successor), 3)} == {POISON}


def test_each_cache_holds_the_channels_that_its_layers_read() -> None:
    config = gemma4.target(CHAIN)[1]
    assert [config["layer_types"].index(kind) for kind in gemma4.KINDS] == [SLIDING, FULL]
    assert config["num_kv_shared_layers"] == gemma4.LAYERS - len(gemma4.KINDS)
    assert [window > 0 for window in CHAIN.windows] == [
        config["layer_types"][channel] == "sliding_attention" for channel in range(CHANNELS)
    ]
