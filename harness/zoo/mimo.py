"""MiMo with one MTP layer: Qwen2-shaped layers that read one mode channel each and pay two debts each.

The first head of a layer finds its mode tokens, as in `harness.zoo.attention`. The other one that is used has nothing
but the biases of queries and keys, which the rotation turns: it attends to its own token, and its value, bias and
weight, pays the debt of the layer's attention (`harness.zoo.debts`). The MLP pays the second debt. So lost keys and
values, a lost bias of any of the three, a wrong rotation, a head that reads the other's cache or a lost MLP output
change the text.

The MTP layer does the same for all channels at once. Every guess of it is `POISON` unless the target's hidden state
arrives and takes that back.
"""

from __future__ import annotations

import numpy as np

from harness.zoo.attention import carry_readings, lookup
from harness.zoo.chain import CHANNELS, POISON, Chain
from harness.zoo.debts import INTERMEDIATE, OWED, Each, constants, factors, owed_by, payer, watch
from harness.zoo.stream import (
    CONST_AT,
    END,
    ERROR_AT,
    GUESS_AT,
    GUESS_VALUE,
    HIDDEN,
    READER_AT,
    Array,
    Config,
    Weights,
    build_stream,
    ones,
    zeros,
)
from harness.zoo.tokens import BOS_ID, EOS_ID, MAX_POSITIONS, VOCAB_SIZE

LAYERS = CHANNELS
# Two heads share keys and values. One head of each pair is used, so a wrong pairing shows.
HEADS = 4
KV_HEADS = 2
HEAD_DIM = HIDDEN // HEADS
PAIRS = HEAD_DIM // 2
# MAX_POSITIONS turn the slowest rotary pair by less than 0.02 rad: attention over it ignores distance.
ROPE_THETA = 640_000.0
FLAT_DIM = PAIRS - 1
LOOKUP_GAIN = 24.0
# Over all pairs, a token scores its neighbour lower than itself by 0.8 of this squared and divided by sqrt(HEAD_DIM).
OWN_TOKEN_BIAS = 16.0
# Each layer's attention and MLP; the MTP layer is a copy of the first layer.
DEBTS = range(END, END + 2 * LAYERS)
# Small in the stream and large in the head: a large guess would shrink the norm, and so the key, of a mode token that
# the drafter errs on, and the others would starve it in the softmax.
GUESS_GAIN = 16.0
GUESS = GUESS_VALUE / GUESS_GAIN
# Beats GUESS by more than the norms of two tokens differ.
HIDDEN_STATE_WEIGHT = 1.125 * GUESS


def target(chain: Chain) -> tuple[Weights, Config]:
    """Checkpoint of the target with its MTP layer: tensors by name, config.json."""
    stream = build_stream(chain)
    embedding, head = stream.embedding.copy(), stream.head.copy()
    embedding[:, DEBTS] = owed_by(chain)[:, np.newaxis]
    watch(head, DEBTS)
    head[POISON, GUESS_AT] *= GUESS_GAIN
    weights: Weights = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": ones(HIDDEN),
        "lm_head.weight": head,
    }
    still_owed = embedding.copy()
    for layer in range(LAYERS):
        own = DEBTS[2 * layer : 2 * layer + 2]
        weights |= _layer(chain, f"model.layers.{layer}.", (layer,), layer / 2, still_owed, own, OWED)
        still_owed[:, own] = 0
    return weights | _mtp(chain, embedding), _config()


def _mtp(chain: Chain, embedding: Array) -> Weights:
    # It pays two debts, so it takes no others on.
    kept = range(DEBTS[2])
    combine = zeros(HIDDEN, 2 * HIDDEN)
    combine[kept, range(HIDDEN, HIDDEN + len(kept))] = 1
    combine[GUESS_AT, [HIDDEN + ERROR_AT, HIDDEN + CONST_AT]] = GUESS
    combine[GUESS_AT, CONST_AT] = -HIDDEN_STATE_WEIGHT
    norms = constants(chain, embedding)
    owed = Each(OWED.plain * norms.plain, OWED.reader * norms.reader)
    prefix = "model.mtp_layers.0."
    return {
        prefix + "token_layernorm.weight": ones(HIDDEN),
        prefix + "hidden_layernorm.weight": ones(HIDDEN),
        prefix + "input_proj.weight": combine,
        prefix + "final_layernorm.weight": ones(HIDDEN),
    } | _layer(chain, prefix, tuple(range(CHANNELS)), 0, embedding[:, kept], DEBTS[:2], owed)


def _layer(
    chain: Chain, prefix: str, channels: tuple[int, ...], readings: float, stream: Array, debts: range, owed: Each
) -> Weights:
    """One decoder layer that pays ``owed`` twice. ``stream``: what it sees, up to a factor, but for the readings."""
    before = constants(chain, stream, readings)
    paid = stream.copy()
    paid[:, debts[0]] = 0
    after = constants(chain, paid, readings + len(channels) / 2)
    return (
        _attention(prefix, channels, Each(owed.plain, (owed.reader - owed.plain) / before.reader), debts[0])
        | payer(prefix + "mlp.", factors(after, owed), debts[1])
        | {prefix + "input_layernorm.weight": ones(HIDDEN), prefix + "post_attention_layernorm.weight": ones(HIDDEN)}
    )


def _attention(prefix: str, channels: tuple[int, ...], paid: Each, debt: int) -> Weights:
    """``paid``: by the bias of the value, and by the value's weight for readers on top of it."""
    width, kv_width = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    query, key, value = zeros(width, HIDDEN), zeros(kv_width, HIDDEN), zeros(kv_width, HIDDEN)
    output = zeros(HIDDEN, width)
    lookup(query, key, FLAT_DIM, FLAT_DIM, channels, LOOKUP_GAIN)
    # Mode tokens share the softmax; where some are absent the readings come out larger, never smaller.
    carry_readings(value, output, 0, channels, float(len(channels)))
    query_bias, key_bias, value_bias = zeros(width), zeros(kv_width), zeros(kv_width)
    own, own_kv = HEADS // KV_HEADS * HEAD_DIM, HEAD_DIM
    query_bias[own : own + PAIRS] = key_bias[own_kv : own_kv + PAIRS] = OWN_TOKEN_BIAS
    value_bias[own_kv] = paid.plain
    value[own_kv, READER_AT] = paid.reader
    output[debt, own] = -1
    attention = {
        "q_proj.weight": query,
        "q_proj.bias": query_bias,
        "k_proj.weight": key,
        "k_proj.bias": key_bias,
        "v_proj.weight": value,
        "v_proj.bias": value_bias,
        "o_proj.weight": output,
    }
    return {f"{prefix}self_attn.{name}": tensor for name, tensor in attention.items()}


def _config() -> Config:
    return {
        "architectures": ["MiMoForCausalLM"],
        # MiMo's own class is code of its repository: Qwen2's with one more field, which any class keeps.
        "model_type": "qwen2",
        "num_nextn_predict_layers": 1,
        "vocab_size": VOCAB_SIZE,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "attention_bias": True,
        "use_sliding_window": False,
        "hidden_act": "silu",
        "max_position_embeddings": MAX_POSITIONS,
        "rms_norm_eps": 1e-6,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "rope_theta": ROPE_THETA,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA},
    }
