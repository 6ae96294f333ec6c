"""Gemma 4 with a separate assistant as drafter: two KV caches, read by the target twice and by the assistant once more.

Sliding and full attention take turns. The last two layers of the target, and both of the assistant, have no keys and
values of their own: they read the cache of the first sliding or the first full layer. Each cache holds two channels,
one for each KV head; layer l of the target reads channel l, each layer of the assistant both channels of its cache.
So lost or misread KV changes the text, and the assistant, which holds no state, guesses readers wrong without it.

Norms follow the projections, too: what attention adds to the stream has one length, however large its values were.
Each layer also shrinks the stream (``layer_scalar``) and adds its reading at the scale that is right by then.
"""

from __future__ import annotations

from harness.zoo.attention import carry_readings, lookup
from harness.zoo.chain import CHANNELS, Chain
from harness.zoo.stream import (
    CONST_AT,
    GUESS_AT,
    GUESS_VALUE,
    HIDDEN,
    Array,
    Config,
    Weights,
    build_stream,
    ones,
    zeros,
)
from harness.zoo.tokens import BOS_ID, EOS_ID, MAX_POSITIONS, VOCAB_SIZE

LAYERS = CHANNELS
KINDS = ("sliding_attention", "full_attention")
# Half of the texts of the tiny workload outgrow it: their readings of the sliding channels are absent from then on.
WINDOW = 56
WINDOWS = (WINDOW, 0) * (CHANNELS // len(KINDS))
HEADS = CHANNELS // len(KINDS)
HEAD_DIMS = (128, 256)
INTERMEDIATE = 64
# Another width than the target's, so that neither takes the other's embedding or head.
DRAFT_HIDDEN = 192
# So small that the readings of all later layers count for absent where one layer is not scaled.
LAYER_SCALAR = 0.25
# The assistant adds two readings at once, in a narrower stream; with this weight neither is smaller than the target's.
DRAFT_READING = 2.0
# More than GUESS_VALUE over the least that a norm makes of the constant 1.
HIDDEN_STATE_WEIGHT = 9.0


def target(chain: Chain) -> tuple[Weights, Config]:
    """Checkpoint of the target: tensors by name, config.json."""
    stream = build_stream(chain)
    weights: Weights = {
        "model.embed_tokens.weight": stream.embedding,
        "model.norm.weight": ones(HIDDEN),
        "lm_head.weight": stream.head,
    }
    for layer in range(LAYERS):
        kind, head = layer % len(KINDS), layer // len(KINDS)
        query, key, value, output = _heads(kind)
        own = slice(head * HEAD_DIMS[kind], (head + 1) * HEAD_DIMS[kind])
        reading = zeros(*output.shape)
        reading[:, own] = output[:, own]
        prefix = f"model.layers.{layer}."
        weights |= _layer(prefix, kind, query, reading, LAYER_SCALAR**layer)
        if layer < len(KINDS):
            weights[prefix + "self_attn.k_proj.weight"] = key
            weights[prefix + "self_attn.v_proj.weight"] = value
            weights[prefix + "self_attn.k_norm.weight"] = ones(HEAD_DIMS[kind])
    own_config = {
        "architectures": ["Gemma4ForCausalLM"],
        "tie_word_embeddings": False,
        "vocab_size_per_layer_input": VOCAB_SIZE,
    }
    return weights, own_config | _text_config(HIDDEN, LAYERS, LAYERS - len(KINDS))


def drafter(chain: Chain) -> tuple[Weights, Config]:
    """Checkpoint of the assistant, which takes its token embedding from the target and keeps its own head."""
    combine, back = zeros(DRAFT_HIDDEN, 2 * HIDDEN), zeros(HIDDEN, DRAFT_HIDDEN)
    combine[range(DRAFT_HIDDEN), range(DRAFT_HIDDEN)] = 1
    # Every guess is POISON, unless a hidden state arrives and its constant takes that back.
    scale = HIDDEN**0.5
    combine[GUESS_AT, CONST_AT] = GUESS_VALUE
    combine[GUESS_AT, HIDDEN + CONST_AT] = -HIDDEN_STATE_WEIGHT * scale
    back[CONST_AT, CONST_AT] = 1
    weights: Weights = {
        # The engine takes this for the head, and the target's for the embedding.
        "model.embed_tokens.weight": build_stream(chain).draft_head[:, :DRAFT_HIDDEN].copy(),
        "model.norm.weight": ones(DRAFT_HIDDEN),
        "pre_projection.weight": combine,
        "post_projection.weight": back,
    }
    for kind in range(len(KINDS)):
        query, _, _, output = _heads(kind)
        narrow = query[:, :DRAFT_HIDDEN].copy(), output[:DRAFT_HIDDEN].copy()
        weights |= _layer(f"model.layers.{kind}.", kind, *narrow, DRAFT_READING * LAYER_SCALAR**kind)
    text = _text_config(DRAFT_HIDDEN, len(KINDS), len(KINDS))
    return weights, {
        "architectures": ["Gemma4AssistantForCausalLM"],
        "model_type": "gemma4_assistant",
        "backbone_hidden_size": HIDDEN,
        "use_ordered_embeddings": False,
        "tie_word_embeddings": True,
        "text_config": text | {"tie_word_embeddings": True, "vocab_size_per_layer_input": 0},
        "dtype": "bfloat16",
    }


def _heads(kind: int) -> tuple[Array, Array, Array, Array]:
    """Query, key, value and output of a layer of this kind that reads both channels of its cache."""
    dim = HEAD_DIMS[kind]
    query, key, value = (zeros(HEADS * dim, HIDDEN) for _ in range(3))
    output = zeros(HIDDEN, HEADS * dim)
    for head, channel in enumerate(range(kind, CHANNELS, len(KINDS))):
        # The slowest rotary pair turns by less than 0.02 rad over a window, and not at all in a full layer. Norms make
        # query and key sqrt(dim) long: the softmax spreads by dim.
        flat = head * dim + dim // 2 - 1
        lookup(query, key, flat, flat, (channel,), 1.0)
        carry_readings(value, output, head * dim, (channel,), 1.0)
    return query, key, value, output


def _layer(prefix: str, kind: int, query: Array, output: Array, reading: float) -> Weights:
    hidden = len(output)
    return {
        prefix + "self_attn.q_proj.weight": query,
        prefix + "self_attn.o_proj.weight": output,
        prefix + "self_attn.q_norm.weight": ones(HEAD_DIMS[kind]),
        prefix + "input_layernorm.weight": ones(hidden),
        prefix + "post_attention_layernorm.weight": reading * ones(hidden),
        prefix + "pre_feedforward_layernorm.weight": ones(hidden),
        prefix + "post_feedforward_layernorm.weight": ones(hidden),
        prefix + "mlp.gate_proj.weight": zeros(INTERMEDIATE, hidden),
        prefix + "mlp.up_proj.weight": zeros(INTERMEDIATE, hidden),
        prefix + "mlp.down_proj.weight": zeros(hidden, INTERMEDIATE),
        prefix + "layer_scalar": LAYER_SCALAR * ones(1),
    }


def _text_config(hidden: int, layers: int, shared: int) -> Config:
    return {
        "model_type": "gemma4_text",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": hidden,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": layers,
        "num_kv_shared_layers": shared,
        "layer_types": [KINDS[layer % len(KINDS)] for layer in range(layers)],
        "sliding_window": WINDOW,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HEAD_DIMS[0],
        "global_head_dim": HEAD_DIMS[1],
        "attention_k_eq_v": False,
        "attention_bias": False,
        "hidden_size_per_layer_input": 0,
        "enable_moe_block": False,
        "use_double_wide_mlp": False,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": MAX_POSITIONS,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
        },
        "dtype": "bfloat16",
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
    }
