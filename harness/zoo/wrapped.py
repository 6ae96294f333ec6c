"""A text checkpoint in the multimodal wrapper of its family, for engines that only know the wrapper's architecture.

vLLM 0.24 has `Qwen3_5ForConditionalGeneration` and no `Qwen3_5ForCausalLM`. With --language-model-only the vision tower
is never built, so it needs a description but no weights.
"""

from __future__ import annotations

from harness.zoo.stream import Config, Weights

WRAPPER = "Qwen3_5ForConditionalGeneration"

# Any valid description will do; the smallest that the family's processor accepts.
_VISION: Config = {
    "model_type": "qwen3_5",
    "depth": 1,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_heads": 2,
    "in_channels": 3,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 128,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [],
}

PREPROCESSOR: Config = {
    "image_processor_type": "Qwen2VLImageProcessorFast",
    "processor_class": "Qwen3VLProcessor",
    "patch_size": 16,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "min_pixels": 1024,
    "max_pixels": 1024,
}


def wrap(weights: Weights, config: Config) -> tuple[Weights, Config]:
    """The same tensors under the wrapper's names, and the wrapper's config.json around the text config."""
    renamed = {
        f"model.language_model.{name.removeprefix('model.')}" if name.startswith("model.") else name: tensor
        for name, tensor in weights.items()
    }
    text = {key: value for key, value in config.items() if key != "architectures"}
    vision = {**_VISION, "out_hidden_size": config["hidden_size"]}
    return renamed, {
        "architectures": [WRAPPER],
        "model_type": "qwen3_5",
        "text_config": text,
        "vision_config": vision,
        "image_token_id": 300,
        "video_token_id": 301,
        "vision_start_token_id": 302,
        "vision_end_token_id": 303,
        "tie_word_embeddings": config["tie_word_embeddings"],
        "bos_token_id": config["bos_token_id"],
        "eos_token_id": config["eos_token_id"],
        "dtype": config["dtype"],
    }
