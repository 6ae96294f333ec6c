"""DeepSeek-V3 with one MTP layer: MLA layers that read one mode channel each, and experts whose sum must be right.

Every token enters with a debt (`harness.zoo.debts`) in one dimension for each expert it is routed to, in each layer.
Expert e of layer l pays off exactly the dimension (l, e), so a lost, repeated or misplaced expert output shows in the
very next token.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from harness.zoo.chain import CHANNELS, Chain
from harness.zoo.debts import INTERMEDIATE, OWED, Each, constants, factors, owed_by, payer, watch
from harness.zoo.stream import (
    END,
    ERROR_AT,
    GUESS_AT,
    GUESS_VALUE,
    HIDDEN,
    QUERY_AT,
    Array,
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
DENSE_LAYERS = 1
EXPERTS = 8
EXPERTS_PER_TOKEN = 2
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
ROUTER_GAIN = 64.0


@dataclass(frozen=True)
class Ledger:
    """Embedding and head with the debts. ``target``: by layer. ``mtp``: its stream is a normed embedding."""

    embedding: Array
    head: Array
    target: tuple[Each, ...]
    mtp: Each


def debt_dim(layer: int, expert: int) -> int:
    """Where tokens owe ``expert`` (`SHARED` for the shared one) of MoE layer ``layer``."""
    return FIRST_MOE_DEBT + (layer - DENSE_LAYERS) * DEBTS_PER_LAYER + expert


def debts_of(layer: int) -> range:
    """Where tokens owe what ``layer`` pays."""
    if layer < DENSE_LAYERS:
        return range(DENSE_DEBT, FIRST_MOE_DEBT)
    return range(debt_dim(layer, 0), debt_dim(layer, 0) + DEBTS_PER_LAYER)


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
            weights |= payer(prefix + "mlp.", ledger.target[layer], DENSE_DEBT)
        else:
            weights |= _experts(prefix, ledger.target[layer], layer)
    prefix = f"model.layers.{LAYERS}."
    weights |= _attention(prefix, tuple(range(CHANNELS)), float(CHANNELS)) | _experts(prefix, ledger.mtp, DENSE_LAYERS)
    return weights | _mtp(prefix, ledger), _config()


def _ledger(chain: Chain) -> Ledger:
    stream = build_stream(chain)
    embedding, head = stream.embedding.copy(), stream.head.copy()
    amount = owed_by(chain)
    embedding[:, DENSE_DEBT] = amount
    draw = random.Random(chain.seed + 2)
    for layer in range(DENSE_LAYERS, LAYERS):
        for token in range(VOCAB_SIZE):
            owed = [*draw.sample(range(EXPERTS), EXPERTS_PER_TOKEN), SHARED]
            embedding[token, [debt_dim(layer, expert) for expert in owed]] = amount[token]
    watch(head, range(DENSE_DEBT, DEBTS_END))

    norms, target, still_owed = constants(chain, embedding), [], embedding.copy()
    for layer in range(LAYERS):
        target.append(factors(constants(chain, still_owed, (layer + 1) / 2)))
        still_owed[:, debts_of(layer)] = 0
    kept = constants(chain, embedding[:, _kept_by_mtp()], CHANNELS / 2)
    mtp = factors(kept, Each(OWED.plain * norms.plain, OWED.reader * norms.reader))
    return Ledger(embedding, head, tuple(target), mtp)


def _kept_by_mtp() -> list[int]:
    # The MTP layer is a copy of the first MoE layer; it has no one to pay the debts of the others, so it takes none on.
    return [*range(DENSE_DEBT), *debts_of(DENSE_LAYERS)]


def _experts(prefix: str, paid: Each, layer: int) -> Weights:
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
        weights |= payer(f"{prefix}mlp.experts.{expert}.", paid, debt_dim(layer, expert), share)
    return weights | payer(prefix + "mlp.shared_experts.", paid, debt_dim(layer, SHARED))


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
