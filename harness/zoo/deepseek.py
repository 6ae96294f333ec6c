"""DeepSeek-V3 with one MTP layer: MLA layers that read one mode channel each, and experts whose sum must be right.

Every token enters with a debt in one dimension for each expert it is routed to, in each layer. Expert e of layer l pays
off exactly the dimension (l, e). A debt left open, or paid twice, outweighs the true successor with a token that no
chain contains, so a lost, repeated or misplaced expert output shows in the very next token.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.zoo.chain import CHANNELS, Chain
from harness.zoo.stream import (
    CONST_AT,
    END,
    ERROR_AT,
    GUESS_AT,
    GUESS_VALUE,
    HIDDEN,
    QUERY_AT,
    READER_AT,
    Array,
    Config,
    Weights,
    build_stream,
    mode_dim,
    ones,
    reading_dim,
    zeros,
)
from harness.zoo.tokens import BOS_ID, EOS_ID, MAX_POSITIONS, VOCAB_SIZE, WORD_IDS

LAYERS = CHANNELS
DENSE_LAYERS = 1
EXPERTS = 8
EXPERTS_PER_TOKEN = 2
INTERMEDIATE = 64
# Two heads, one for each value of a channel: under tensor parallelism each rank holds one, and both are needed.
HEADS = 2
# The engine's CPU kernels know these sizes only.
LATENT = 512
ROPE_DIM = 64
NOPE_DIM = 128
VALUE_DIM = 128
QUERY_LATENT = 64
# Norms make the query latent 8 long and the key latent sqrt(512): the softmax then spreads by about 75.
LOOKUP_GAIN = 2.4

# One debt for the dense layer; in each later layer one for each expert and one for the shared expert.
DENSE_DEBT = END
FIRST_MOE_DEBT = DENSE_DEBT + 1
DEBTS_PER_LAYER = EXPERTS + 1
SHARED = EXPERTS
DEBTS_END = FIRST_MOE_DEBT + (LAYERS - DENSE_LAYERS) * DEBTS_PER_LAYER
# Readers score higher than plain tokens, so they owe more. Half of either debt, left open, still outweighs the truth.
PLAIN_DEBT = 0.125
READER_DEBT = 1.0
DEBT_WEIGHT = 8000.0
UNPAID_FROM = WORD_IDS.stop
OVERPAID = VOCAB_SIZE - 1
GATE = 8.0
ROUTER_GAIN = 64.0


@dataclass(frozen=True)
class Factors:
    """What turns the output of a gated MLP with unit weights into the payment of one debt."""

    plain: float
    reader: float


@dataclass(frozen=True)
class Ledger:
    """Embedding and head with the debts. ``target``: by layer. ``mtp``: its stream is a normed embedding."""

    embedding: Array
    head: Array
    target: tuple[Factors, ...]
    mtp: Factors


def debt_dim(layer: int, expert: int) -> int:
    """Where tokens owe ``expert`` (`SHARED` for the shared one) of MoE layer ``layer``."""
    return FIRST_MOE_DEBT + (layer - DENSE_LAYERS) * DEBTS_PER_LAYER + expert


def target(chain: Chain) -> tuple[Weights, Config]:
    """Checkpoint of the target with its MTP layer: tensors by name, config.json."""
    ledger = _ledger(chain)
    weights: Weights = {
        "model.embed_tokens.weight": ledger.embedding,
        "model.norm.weight": ones(HIDDEN),
        "lm_head.weight": ledger.head,
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        weights |= _attention(prefix, (layer,), 1.0)
        if layer < DENSE_LAYERS:
            weights |= _payer(prefix + "mlp.", ledger.target[layer], DENSE_DEBT, 1.0)
        else:
            weights |= _experts(prefix, ledger.target[layer], layer)
    prefix = f"model.layers.{LAYERS}."
    weights |= _attention(prefix, tuple(range(CHANNELS)), float(CHANNELS)) | _experts(prefix, ledger.mtp, DENSE_LAYERS)
    return weights | _mtp(prefix, ledger), _config()


def _ledger(chain: Chain) -> Ledger:
    stream = build_stream(chain)
    embedding, head = stream.embedding.copy(), stream.head.copy()
    readers = np.array(chain.reader_class) >= 0
    amount = np.where(readers, READER_DEBT, PLAIN_DEBT)
    embedding[:, DENSE_DEBT] = amount
    draw = random.Random(chain.seed + 2)
    for layer in range(DENSE_LAYERS, LAYERS):
        for token in range(VOCAB_SIZE):
            owed = [*draw.sample(range(EXPERTS), EXPERTS_PER_TOKEN), SHARED]
            embedding[token, [debt_dim(layer, expert) for expert in owed]] = amount[token]
    for place, dim in enumerate(range(DENSE_DEBT, DEBTS_END)):
        # A row each, so that a debt moved from one expert to another cannot cancel out.
        head[UNPAID_FROM + place, dim] = DEBT_WEIGHT
        head[OVERPAID, dim] = -DEBT_WEIGHT / 2  # half, because small errors of all payments add up here

    squares = np.square(embedding)
    remaining = squares.sum(axis=1)
    norms = _constants(remaining, readers)
    target = []
    for layer in range(LAYERS):
        # A reader holds between none and one reading for each layer so far; the mean is near enough for both.
        constants = _constants(remaining + readers * (layer + 1) / 2, readers)
        target.append(Factors(PLAIN_DEBT / _swiglu(constants[0]), READER_DEBT / _swiglu(constants[1])))
        remaining = remaining - amount**2 * (1 if layer < DENSE_LAYERS else EXPERTS_PER_TOKEN + 1)
    kept = _constants(squares[:, _kept_by_mtp()].sum(axis=1) + readers * CHANNELS / 2, readers)
    mtp = Factors(PLAIN_DEBT * norms[0] / _swiglu(kept[0]), READER_DEBT * norms[1] / _swiglu(kept[1]))
    return Ledger(embedding, head, tuple(target), mtp)


def _constants(squares: Array, readers: npt.NDArray[np.bool_]) -> tuple[float, float]:
    """What the constant 1 becomes under the norm of plain tokens and of readers, given sums of squares by token."""
    normed = np.sqrt(HIDDEN / squares)
    return float(normed[~readers].mean()), float(normed[readers].mean())


def _swiglu(constant: float) -> float:
    return GATE * constant / (1 + float(np.exp(-GATE * constant))) * constant


def _kept_by_mtp() -> list[int]:
    # The MTP layer is a copy of the first MoE layer; it has no one to pay the debts of the others, so it takes none on.
    return [*range(DENSE_DEBT), *(debt_dim(DENSE_LAYERS, expert) for expert in range(DEBTS_PER_LAYER))]


def _payer(prefix: str, factors: Factors, dim: int, share: float) -> Weights:
    gate, up, down = zeros(INTERMEDIATE, HIDDEN), zeros(INTERMEDIATE, HIDDEN), zeros(HIDDEN, INTERMEDIATE)
    gate[:, CONST_AT] = GATE
    up[:, CONST_AT] = factors.plain
    up[:, READER_AT] = factors.reader - factors.plain
    # Every intermediate unit pays its part: under tensor parallelism no rank can be left out.
    down[dim] = -1 / (share * INTERMEDIATE)
    return {prefix + "gate_proj.weight": gate, prefix + "up_proj.weight": up, prefix + "down_proj.weight": down}


def _experts(prefix: str, factors: Factors, layer: int) -> Weights:
    router = zeros(EXPERTS, HIDDEN)
    for expert in range(EXPERTS):
        router[expert, debt_dim(layer, expert)] = ROUTER_GAIN
    weights: Weights = {
        prefix + "mlp.gate.weight": router,
        prefix + "mlp.gate.e_score_correction_bias": zeros(EXPERTS),
    }
    for expert in range(EXPERTS):
        # The router weighs the chosen experts alike, to a sum of 1.
        share = 1 / EXPERTS_PER_TOKEN
        weights |= _payer(f"{prefix}mlp.experts.{expert}.", factors, debt_dim(layer, expert), share)
    return weights | _payer(prefix + "mlp.shared_experts.", factors, debt_dim(layer, SHARED), 1.0)


def _attention(prefix: str, channels: tuple[int, ...], scale: float) -> Weights:
    # Only mode tokens have a latent at all: a norm of zeros is zero, and so are the keys and values of other tokens.
    query_latent, query = zeros(QUERY_LATENT, HIDDEN), zeros(HEADS * (NOPE_DIM + ROPE_DIM), QUERY_LATENT)
    latent, expand = zeros(LATENT + ROPE_DIM, HIDDEN), zeros(HEADS * (NOPE_DIM + VALUE_DIM), LATENT)
    output = zeros(HIDDEN, HEADS * VALUE_DIM)
    query_latent[0, QUERY_AT] = 1
    for channel in channels:
        for head, reading in enumerate((1, 2)):
            slot = 2 * channel + head
            latent[slot, mode_dim(channel, reading)] = 1
            expand[head * (NOPE_DIM + VALUE_DIM) + NOPE_DIM + slot, slot] = LATENT**-0.5
            output[reading_dim(channel, reading), head * VALUE_DIM + slot] = scale
    for head in range(HEADS):
        query[head * (NOPE_DIM + ROPE_DIM), 0] = LOOKUP_GAIN
        expand[head * (NOPE_DIM + VALUE_DIM), : 2 * CHANNELS] = LOOKUP_GAIN
    attention = {
        "q_a_proj.weight": query_latent,
        "q_a_layernorm.weight": ones(QUERY_LATENT),
        "q_b_proj.weight": query,
        "kv_a_proj_with_mqa.weight": latent,
        "kv_a_layernorm.weight": ones(LATENT),
        "kv_b_proj.weight": expand,
        "o_proj.weight": output,
    }
    norms = {prefix + "input_layernorm.weight": ones(HIDDEN), prefix + "post_attention_layernorm.weight": ones(HIDDEN)}
    return {f"{prefix}self_attn.{name}": tensor for name, tensor in attention.items()} | norms


def _mtp(prefix: str, ledger: Ledger) -> Weights:
    combine = zeros(HIDDEN, 2 * HIDDEN)
    kept = _kept_by_mtp()
    combine[kept, kept] = 1
    combine[GUESS_AT, ERROR_AT] = GUESS_VALUE
    return {
        prefix + "enorm.weight": ones(HIDDEN),
        prefix + "hnorm.weight": ones(HIDDEN),
        prefix + "eh_proj.weight": combine,
        prefix + "embed_tokens.weight": ledger.embedding,
        prefix + "shared_head.norm.weight": ones(HIDDEN),
        prefix + "shared_head.head.weight": ledger.head,
    }


def _config() -> Config:
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "moe_intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_nextn_predict_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "n_shared_experts": 1,
        "n_routed_experts": EXPERTS,
        "num_experts_per_tok": EXPERTS_PER_TOKEN,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
        "first_k_dense_replace": DENSE_LAYERS,
        "moe_layer_freq": 1,
        "q_lora_rank": QUERY_LATENT,
        "kv_lora_rank": LATENT,
        "qk_rope_head_dim": ROPE_DIM,
        "qk_nope_head_dim": NOPE_DIM,
        "v_head_dim": VALUE_DIM,
        "hidden_act": "silu",
        "max_position_embeddings": MAX_POSITIONS,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
    }
