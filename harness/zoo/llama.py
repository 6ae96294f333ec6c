"""Llama with a separate EAGLE3 drafter. Each of the four target layers reads one mode channel from its own KV cache.

The drafter copies the current token to itself through attention and reads all four channels from its own KV cache, so
without that cache its guesses after readers are wrong and fewer drafts are accepted.
"""

from __future__ import annotations

from harness.zoo.attention import carry_readings, lookup
from harness.zoo.chain import CHANNELS, Chain
from harness.zoo.stream import HIDDEN, Array, Config, Weights, build_stream, ones, zeros
from harness.zoo.tokens import BOS_ID, EOS_ID, MAX_POSITIONS, VOCAB_SIZE

LAYERS = CHANNELS
HEADS = 4
HEAD_DIM = 64
INTERMEDIATE = 64
# MAX_POSITIONS turn the slowest rotary pair by less than 0.02 rad: attention over it ignores distance.
ROPE_THETA = 500_000.0
FLAT_DIM = HEAD_DIM // 2 - 1
# With these gains a softmax over thousands of tokens is one-hot to the last float32 bit.
LOOKUP_GAIN = 24.0
MATCH_GAIN = 10.0


def target(chain: Chain) -> tuple[Weights, Config]:
    """Checkpoint of the target: tensors by name, config.json."""
    stream = build_stream(chain)
    weights: Weights = {
        "model.embed_tokens.weight": stream.embedding,
        "model.norm.weight": ones(HIDDEN),
        "lm_head.weight": stream.head,
    }
    width = HEADS * HEAD_DIM
    for layer in range(LAYERS):
        query, key, value, output = (
            zeros(width, HIDDEN),
            zeros(width, HIDDEN),
            zeros(width, HIDDEN),
            zeros(HIDDEN, width),
        )
        head = layer % HEADS
        row = head * HEAD_DIM + FLAT_DIM
        lookup(query, key, row, row, (layer,), LOOKUP_GAIN)
        carry_readings(value, output, head * HEAD_DIM, (layer,), 1.0)
        prefix = f"model.layers.{layer}."
        weights |= _attention(prefix, query, key, value, output) | _mlp(prefix)
        weights[prefix + "input_layernorm.weight"] = ones(HIDDEN)
    return weights, {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": LAYERS} | _config()


def drafter(chain: Chain) -> tuple[Weights, Config]:
    """Checkpoint of the EAGLE3 drafter, which takes its token embedding from the target."""
    stream = build_stream(chain)
    prefix = "midlayer."
    weights: Weights = {
        "norm.weight": ones(HIDDEN),
        "fc.weight": zeros(HIDDEN, 3 * HIDDEN),
        "lm_head.weight": stream.draft_head,
        # Zero: the drafter depends on tokens and on its own KV cache only, at every draft position alike.
        prefix + "hidden_norm.weight": zeros(HIDDEN),
        prefix + "input_layernorm.weight": ones(HIDDEN),
    }
    weights |= _attention(prefix, *_drafter_attention()) | _mlp(prefix)
    layer_ids = [1, 2, 3]
    own = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": VOCAB_SIZE,
        "norm_before_residual": True,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": layer_ids},
        "eagle_aux_hidden_state_layer_ids": layer_ids,
    }
    return weights, own | _config()


def _drafter_attention() -> tuple[Array, Array, Array, Array]:
    width = HEADS * HEAD_DIM
    query, key, value = (zeros(width, 2 * HIDDEN) for _ in range(3))
    output = zeros(HIDDEN, width)
    for head in range(HEADS - 1):
        for dim in range(HEAD_DIM):
            query[head * HEAD_DIM + dim, dim] = key[head * HEAD_DIM + dim, dim] = MATCH_GAIN
    for dim in range((HEADS - 1) * HEAD_DIM):
        value[dim, dim] = output[dim, dim] = 1
    last, every = (HEADS - 1) * HEAD_DIM, tuple(range(CHANNELS))
    lookup(query, key, last + FLAT_DIM, last + FLAT_DIM, every, LOOKUP_GAIN)
    # Four mode tokens share the softmax; where some are absent the readings come out larger, never smaller.
    carry_readings(value, output, last, every, float(CHANNELS))
    return query, key, value, output


def _attention(prefix: str, query: Array, key: Array, value: Array, output: Array) -> Weights:
    return {
        prefix + "self_attn.q_proj.weight": query,
        prefix + "self_attn.k_proj.weight": key,
        prefix + "self_attn.v_proj.weight": value,
        prefix + "self_attn.o_proj.weight": output,
        prefix + "post_attention_layernorm.weight": ones(HIDDEN),
    }


def _mlp(prefix: str) -> Weights:
    return {
        prefix + "mlp.gate_proj.weight": zeros(INTERMEDIATE, HIDDEN),
        prefix + "mlp.up_proj.weight": zeros(INTERMEDIATE, HIDDEN),
        prefix + "mlp.down_proj.weight": zeros(HIDDEN, INTERMEDIATE),
    }


def _config() -> Config:
    return {
        "model_type": "llama",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": MAX_POSITIONS,
        "rms_norm_eps": 1e-6,
        "torch_dtype": "float32",
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "rope_theta": ROPE_THETA,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA},
    }
