"""Jamba: Mamba and attention layers take turns and read one mode channel each; so do MLPs and experts, which pay debts.

A Mamba layer keeps its reading in one cell of each of two inner channels, and gets it there through its convolution:

- the time step is `TIME_STEP` at a mode token and ``delay`` steps after it, which erases the cell; otherwise it is 0,
  and the cell stays as it is;
- what is written is the mode flag of ``delay`` steps ago, so the cell is erased at once and written ``delay`` steps
  later;
- a third inner channel keeps nothing: from the convolution's bias alone, past the recurrence (D), it pays a debt.

Lost recurrent state reads as absent; lost convolution state never writes a mode token of the last ``delay`` positions;
a lost layer, MLP or expert leaves a debt open (`harness.zoo.debts`). Each half of the layers has one of every kind, so
under PP=2 each stage does.
"""

from __future__ import annotations

import math
import random

from harness.zoo.attention import carry_readings, lookup
from harness.zoo.chain import CHANNELS, Chain
from harness.zoo.debts import INTERMEDIATE, OWED, Each, constants, factors, owed_by, payer, watch
from harness.zoo.stream import (
    CONST_AT,
    END,
    HIDDEN,
    QUERY_AT,
    READER_AT,
    Config,
    Weights,
    build_stream,
    mode_dim,
    ones,
    reading_dim,
    zeros,
)
from harness.zoo.tokens import BOS_ID, EOS_ID, MAX_POSITIONS, VOCAB_SIZE

LAYERS = CHANNELS
# Even layers are Mamba with an MLP, odd ones attention with experts.
PERIOD = 2
# One for each channel; 0: an attention layer.
DELAYS = (3, 0, 2, 0)

HEADS = 4
KV_HEADS = 2
HEAD_DIM = HIDDEN // HEADS
LOOKUP_GAIN = 24.0
EXPERTS = 4
EXPERTS_PER_TOKEN = 2
ROUTER_GAIN = 16.0

KERNEL = 4
INNER = HIDDEN
STATES = 16
RANK = 16
# Inner channels: one for each value of a mode, whether either is there, and a constant.
EVENT = 2
CONSTANT = 3
TIME_STEP = 8.0
NO_TIME_STEP = -24.0
DECAY = 4.0
DRIVE = 8.0
GATE = 12.0
# The gate of the constant is far enough out on silu to be a straight line, for plain tokens, too.
PAYING_GATE = 80.0

# Debts of Mamba layer l: its mixer's, then its MLP's. Of attention layer l: one for each expert.
DEBTS_PER_PAIR = 2 + EXPERTS
DEBTS = range(END, END + DEBTS_PER_PAIR * LAYERS // PERIOD)


def debts_of(layer: int) -> range:
    """Where tokens owe what ``layer`` pays."""
    pair, odd = divmod(layer, PERIOD)
    first = DEBTS[DEBTS_PER_PAIR * pair :]
    return first[2:DEBTS_PER_PAIR] if odd else first[:2]


def target(chain: Chain) -> tuple[Weights, Config]:
    """The checkpoint: tensors by name, config.json. No drafter exists for this family."""
    stream = build_stream(chain)
    embedding, head = stream.embedding.copy(), stream.head.copy()
    amount = owed_by(chain)
    draw = random.Random(chain.seed + 2)
    for layer in range(LAYERS):
        for token in range(VOCAB_SIZE):
            owed = draw.sample(debts_of(layer), EXPERTS_PER_TOKEN)  # a Mamba layer has no more than these two
            embedding[token, owed] = amount[token]
    watch(head, DEBTS)
    weights: Weights = {
        "model.embed_tokens.weight": embedding,
        "model.final_layernorm.weight": ones(HIDDEN),
        "lm_head.weight": head,
    }
    still_owed = embedding.copy()
    for layer, delay in enumerate(DELAYS):
        prefix, debts = f"model.layers.{layer}.", debts_of(layer)
        if delay:
            weights |= _mamba(prefix, layer, delay, constants(chain, still_owed, layer / 2), debts[0])
            still_owed[:, debts[0]] = 0
        paid = factors(constants(chain, still_owed, (layer + 1) / 2))
        if delay:
            weights |= payer(prefix + "feed_forward.", paid, debts[1])
        else:
            weights |= _attention(prefix, layer) | _experts(prefix + "feed_forward.", paid, debts)
        still_owed[:, debts] = 0
        weights |= {prefix + "input_layernorm.weight": ones(HIDDEN), prefix + "pre_ff_layernorm.weight": ones(HIDDEN)}
    return weights, _config()


def _mamba(prefix: str, channel: int, delay: int, seen: Each, debt: int) -> Weights:
    """``seen``: what the constant 1 of the stream, and the flag of a mode token, are under the layer's norm."""
    projection, taps, bias = zeros(2 * INNER, HIDDEN), zeros(INNER, 1, KERNEL), zeros(INNER)
    parameters, step = zeros(RANK + 2 * STATES, INNER), zeros(INNER, RANK)
    output, skip, now = zeros(HIDDEN, INNER), zeros(INNER), KERNEL - 1
    written, gate = _silu(DRIVE * seen.plain), _silu(GATE * seen.reader)
    for slot, reading in enumerate((1, 2)):
        projection[[slot, EVENT], mode_dim(channel, reading)] = DRIVE
        projection[INNER + slot, QUERY_AT] = GATE
        taps[slot, 0, now - delay] = 1
        step[slot, 0] = (TIME_STEP - NO_TIME_STEP) / RANK**0.5  # the norm makes an event a vector of this length
        output[reading_dim(channel, reading), slot] = 1 / (TIME_STEP * written * gate)
    taps[EVENT, 0, [now, now - delay]] = 1
    bias[CONSTANT] = DRIVE
    parameters[0, EVENT] = 1
    parameters[[RANK, RANK + STATES], CONSTANT] = 1

    skip[CONSTANT] = 1
    plain = PAYING_GATE * OWED.plain / seen.plain
    projection[INNER + CONSTANT, CONST_AT] = plain
    projection[INNER + CONSTANT, READER_AT] = PAYING_GATE * OWED.reader / seen.reader - plain
    output[debt, CONSTANT] = -1 / (PAYING_GATE * _silu(DRIVE))
    mixer = {
        "in_proj.weight": projection,
        "conv1d.weight": taps,
        "conv1d.bias": bias,
        "x_proj.weight": parameters,
        "dt_proj.weight": step,
        "dt_proj.bias": NO_TIME_STEP * ones(INNER),
        "A_log": math.log(DECAY) * ones(INNER, STATES),
        "D": skip,
        "out_proj.weight": output,
        "dt_layernorm.weight": ones(RANK),
        "b_layernorm.weight": ones(STATES) / STATES**0.5,
        "c_layernorm.weight": ones(STATES) / STATES**0.5,
    }
    return {f"{prefix}mamba.{name}": tensor for name, tensor in mixer.items()}


def _silu(value: float) -> float:
    return value / (1 + math.exp(-value))


def _attention(prefix: str, channel: int) -> Weights:
    width, kv_width = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    query, key, value = zeros(width, HIDDEN), zeros(kv_width, HIDDEN), zeros(kv_width, HIDDEN)
    output = zeros(HIDDEN, width)
    lookup(query, key, 0, 0, (channel,), LOOKUP_GAIN)
    carry_readings(value, output, 0, (channel,), 1.0)
    parts = {"q": query, "k": key, "v": value, "o": output}
    return {f"{prefix}self_attn.{part}_proj.weight": tensor for part, tensor in parts.items()}


def _experts(prefix: str, paid: Each, debts: range) -> Weights:
    router = zeros(EXPERTS, HIDDEN)
    # 0 for the experts that a token owes, far below for the others: near 0, nothing is lost where the engine takes the
    # softmax in 16 bits, as the CPU's does.
    router[:, CONST_AT] = -ROUTER_GAIN
    router[:, READER_AT] = ROUTER_GAIN * (1 - OWED.reader / OWED.plain)
    router[range(EXPERTS), debts] = ROUTER_GAIN / OWED.plain
    weights: Weights = {prefix + "router.weight": router}
    for expert, debt in enumerate(debts):
        # The router weighs the chosen experts alike, to a sum of 1.
        weights |= payer(f"{prefix}experts.{expert}.", paid, debt, 1 / EXPERTS_PER_TOKEN)
    return weights


def _config() -> Config:
    return {
        "architectures": ["JambaForCausalLM"],
        "model_type": "jamba",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "attn_layer_period": PERIOD,
        "attn_layer_offset": 1,
        "expert_layer_period": PERIOD,
        "expert_layer_offset": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "num_experts": EXPERTS,
        "num_experts_per_tok": EXPERTS_PER_TOKEN,
        "mamba_expand": INNER // HIDDEN,
        "mamba_d_conv": KERNEL,
        "mamba_d_state": STATES,
        "mamba_dt_rank": RANK,
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
        "use_mamba_kernels": False,
        "hidden_act": "silu",
        "max_position_embeddings": MAX_POSITIONS,
        "rms_norm_eps": 1e-6,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "pad_token_id": BOS_ID,
    }
