"""Qwen3.5 hybrid with one MTP layer: three GDN layers and one full-attention layer read one mode channel each.

A GDN layer keeps its reading in one cell of the recurrent state and gets it there through its convolution:

- the query is the constant unit vector e0, so the output is that cell;
- the key is e0 at a mode or poison token and ``delay`` steps after either; otherwise e1, whose cell nobody reads;
- the value is the mode flag of ``delay`` steps ago, so the cell is erased at once and written ``delay`` steps later;
- beta is 1 and the decay 0: the delta rule replaces the cell, and nothing else ever changes it.

Lost recurrent state reads as absent; lost convolution state never writes a mode token of the last ``delay`` positions;
a rejected draft (a poison token) that stays in either state erases the cell.
"""

from __future__ import annotations

from harness.zoo.attention import carry_readings, lookup
from harness.zoo.chain import CHANNELS, Chain
from harness.zoo.stream import (
    CONST_AT,
    ERROR_AT,
    GUESS_AT,
    GUESS_VALUE,
    HIDDEN,
    POISON_AT,
    QUERY_AT,
    Config,
    Weights,
    build_stream,
    mode_dim,
    ones,
    reading_dim,
    zeros,
)
from harness.zoo.tokens import BOS_ID, EOS_ID, MAX_POSITIONS, VOCAB_SIZE

KERNEL = 4
# One for each channel; the last one is the full-attention layer. Different, so that every convolution tap carries one.
DELAYS = (3, 2, 1, 0)
FULL_ATTENTION = CHANNELS - 1
HEADS = 4
HEAD_DIM = 256
INTERMEDIATE = 64
# One KV block of 32 tokens must hold one recurrent state, or the engine enlarges the block size that was asked for.
LINEAR_HEADS = 1
LINEAR_DIM = 128  # the only head size of the engine's CPU kernels
ROTARY_SHARE = 0.25
FLAT_DIM = HEAD_DIM - 1  # beyond the rotary part
# q_norm and k_norm make a head sqrt(HEAD_DIM) long; this weight (stored as weight - 1) spreads the softmax by 64.
NORM_WEIGHT = 2.0

DRIVE = 8.0
VETO = 100.0
GATE = 12.0
SATURATED = 20.0


def target(chain: Chain) -> tuple[Weights, Config]:
    """Checkpoint of the target with its MTP layer: tensors by name, config.json."""
    stream = build_stream(chain)
    weights: Weights = {
        "model.embed_tokens.weight": stream.embedding,
        "model.norm.weight": zeros(HIDDEN),
        "lm_head.weight": stream.head,
    }
    for layer, delay in enumerate(DELAYS):
        prefix = f"model.layers.{layer}."
        if layer == FULL_ATTENTION:
            weights |= _full_attention(prefix, (layer,), 1.0)
        else:
            weights |= _linear_attention(prefix, layer, delay)
    return weights | _mtp(), _config()


def _linear_attention(prefix: str, channel: int, delay: int) -> Weights:
    width = LINEAR_HEADS * LINEAR_DIM
    # Rows of in_proj_qkv and of the convolution: queries of all heads, then keys, then values. Only head 0 is used.
    query, key, value = 0, width, 2 * width
    projection, taps, gate = zeros(3 * width, HIDDEN), zeros(3 * width, 1, KERNEL), zeros(width, HIDDEN)
    output, now = zeros(HIDDEN, width), KERNEL - 1
    flags = [mode_dim(channel, 1), mode_dim(channel, 2)]

    projection[query, CONST_AT] = DRIVE
    taps[query, 0, now] = 1
    projection[key, [*flags, POISON_AT]] = DRIVE
    taps[key, 0, [now, now - delay]] = 1
    projection[key + 1, CONST_AT] = DRIVE
    projection[key + 1, [*flags, POISON_AT]] = -VETO
    taps[key + 1, 0, [now, now - delay]] = 0.5
    for slot, flag in enumerate(flags):
        projection[value + slot, flag] = DRIVE
        taps[value + slot, 0, now - delay] = 1
        # The gated norm makes the cell a vector of length sqrt(LINEAR_DIM) whatever its size; silu(GATE) is about GATE.
        output[reading_dim(channel, slot + 1), slot] = 1 / (LINEAR_DIM**0.5 * GATE)
    gate[:LINEAR_DIM, QUERY_AT] = GATE
    beta = zeros(LINEAR_HEADS, HIDDEN)
    beta[:, CONST_AT] = SATURATED
    linear = {
        "in_proj_qkv.weight": projection,
        "in_proj_z.weight": gate,
        "in_proj_b.weight": beta,
        "in_proj_a.weight": zeros(LINEAR_HEADS, HIDDEN),
        "conv1d.weight": taps,
        "A_log": -SATURATED * ones(LINEAR_HEADS),
        "dt_bias": zeros(LINEAR_HEADS),
        "norm.weight": ones(LINEAR_DIM),
        "out_proj.weight": output,
    }
    return {f"{prefix}linear_attn.{name}": tensor for name, tensor in linear.items()} | _rest(prefix)


def _full_attention(prefix: str, channels: tuple[int, ...], scale: float) -> Weights:
    width = HEADS * HEAD_DIM
    # q_proj holds, for each head, its query and then its output gate; a gate of 0 halves the output.
    query, key, value, output = (
        zeros(2 * width, HIDDEN),
        zeros(width, HIDDEN),
        zeros(width, HIDDEN),
        zeros(HIDDEN, width),
    )
    lookup(query, key, FLAT_DIM, FLAT_DIM, channels, 1.0)
    carry_readings(value, output, 0, channels, 2 * scale)
    attention = {
        "q_proj.weight": query,
        "k_proj.weight": key,
        "v_proj.weight": value,
        "o_proj.weight": output,
        "q_norm.weight": (NORM_WEIGHT - 1) * ones(HEAD_DIM),
        "k_norm.weight": (NORM_WEIGHT - 1) * ones(HEAD_DIM),
    }
    return {f"{prefix}self_attn.{name}": tensor for name, tensor in attention.items()} | _rest(prefix)


def _mtp() -> Weights:
    combine = zeros(HIDDEN, 2 * HIDDEN)
    combine[range(HIDDEN), range(HIDDEN)] = 1
    combine[GUESS_AT, ERROR_AT] = GUESS_VALUE
    return {
        "mtp.fc.weight": combine,
        "mtp.norm.weight": zeros(HIDDEN),
        "mtp.pre_fc_norm_hidden.weight": zeros(HIDDEN),
        "mtp.pre_fc_norm_embedding.weight": zeros(HIDDEN),
    } | _full_attention("mtp.layers.0.", tuple(range(CHANNELS)), float(CHANNELS))


def _rest(prefix: str) -> Weights:
    return {
        # Stored as weight - 1.
        prefix + "input_layernorm.weight": zeros(HIDDEN),
        prefix + "post_attention_layernorm.weight": zeros(HIDDEN),
        prefix + "mlp.gate_proj.weight": zeros(INTERMEDIATE, HIDDEN),
        prefix + "mlp.up_proj.weight": zeros(INTERMEDIATE, HIDDEN),
        prefix + "mlp.down_proj.weight": zeros(HIDDEN, INTERMEDIATE),
    }


def _config() -> Config:
    return {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": CHANNELS,
        "layer_types": ["full_attention" if i == FULL_ATTENTION else "linear_attention" for i in range(CHANNELS)],
        "full_attention_interval": CHANNELS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HEAD_DIM,
        "attn_output_gate": True,
        "linear_conv_kernel_dim": KERNEL,
        "linear_key_head_dim": LINEAR_DIM,
        "linear_value_head_dim": LINEAR_DIM,
        "linear_num_key_heads": LINEAR_HEADS,
        "linear_num_value_heads": LINEAR_HEADS,
        "mtp_num_hidden_layers": 1,
        "max_position_embeddings": MAX_POSITIONS,
        "rms_norm_eps": 1e-6,
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "partial_rotary_factor": ROTARY_SHARE,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": ROTARY_SHARE},
    }
