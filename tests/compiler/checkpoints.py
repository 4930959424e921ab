"""Writes tiny checkpoints with random weights in the format of Hugging Face, without PyTorch.

Tensor names and shapes are written here a second time, from transformers' modules, so that tests of the compiler
compare two sources.
"""

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from ml_dtypes import bfloat16
from safetensors.numpy import save_file

from compiler.random_model import random_tensors

LLAMA3_SCALING = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
TEXT = {
    "vocab_size": 48, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "hidden_act": "silu", "rms_norm_eps": 1e-5, "max_position_embeddings": 512,
    "rope_theta": 10000.0,
}  # fmt: skip
TOWER = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 12,
    "patch_size": 4,
}  # fmt: skip
LLAVA = {
    "architectures": ["LlavaForConditionalGeneration"], "model_type": "llava", "image_token_index": 47,
    "projector_hidden_act": "gelu", "vision_feature_layer": -2, "vision_feature_select_strategy": "default",
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "eos_token_id": 2, **TEXT},
    "llama3": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": True,
        "eos_token_id": [45, 46], **TEXT, "rope_theta": 500000.0, "rope_scaling": LLAMA3_SCALING,
    },
    "qwen2": {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "use_sliding_window": False,
        "sliding_window": 512, **TEXT, "rope_theta": 1000000.0,
    },
    "qwen2.5-vl": {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl", **TEXT,
        "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}, "image_token_id": 46, "video_token_id": 47,
        "vision_config": {
            "depth": 3, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "hidden_act": "silu",
            "patch_size": 4, "temporal_patch_size": 2, "spatial_merge_size": 2, "window_size": 16,
            "fullatt_block_indexes": [1], "out_hidden_size": 32, "tokens_per_second": 2,
        },
    },
    "llava": {
        **LLAVA, "text_config": {"model_type": "llama", **TEXT},
        "vision_config": {"model_type": "clip_vision_model", **TOWER},
    },
    "llava-siglip": {
        **LLAVA, "vision_feature_layer": -1, "vision_feature_select_strategy": "full",
        "text_config": {"model_type": "qwen2", "tie_word_embeddings": True, **TEXT},
        "vision_config": {"model_type": "siglip_vision_model", "vision_use_head": False, **TOWER},
    },
}  # fmt: skip
# prefixes of text decoder and projector, LM head, vision tower, by the layout of the names
LLAVA_PREFIXES = {
    "old": ("language_model.model.", "", "language_model.lm_head.weight", "vision_tower.vision_model."),
    "new": ("model.language_model.", "model.", "lm_head.weight", "model.vision_tower.vision_model."),
    "flat": ("language_model.model.", "", "language_model.lm_head.weight", "vision_tower."),
}
LAYOUTS = {
    "qwen2.5-vl": ("old", "new"), "llava": tuple(LLAVA_PREFIXES), "llava-siglip": tuple(LLAVA_PREFIXES),
}  # fmt: skip
CASES = [(family, layout) for family in CONFIGS for layout in LAYOUTS.get(family, ("old",))]
Shapes = dict[str, tuple[int, ...]]


def _text_shapes(text: Mapping[str, Any], prefix: str, lm_head: str, qkv_bias: bool, tied: bool) -> Shapes:
    hidden, ffn, vocabulary = text["hidden_size"], text["intermediate_size"], text["vocab_size"]
    head_dim = text.get("head_dim", hidden // text["num_attention_heads"])
    q, kv = head_dim * text["num_attention_heads"], head_dim * text["num_key_value_heads"]
    shapes: Shapes = {f"{prefix}embed_tokens.weight": (vocabulary, hidden), f"{prefix}norm.weight": (hidden,)}
    if not tied:
        shapes[lm_head] = (vocabulary, hidden)
    for layer in range(text["num_hidden_layers"]):
        name = f"{prefix}layers.{layer}."
        for projection, rows in (("q_proj", q), ("k_proj", kv), ("v_proj", kv)):
            shapes[f"{name}self_attn.{projection}.weight"] = (rows, hidden)
            if qkv_bias:
                shapes[f"{name}self_attn.{projection}.bias"] = (rows,)
        shapes |= {
            f"{name}self_attn.o_proj.weight": (hidden, q),
            f"{name}mlp.gate_proj.weight": (ffn, hidden),
            f"{name}mlp.up_proj.weight": (ffn, hidden),
            f"{name}mlp.down_proj.weight": (hidden, ffn),
            f"{name}input_layernorm.weight": (hidden,),
            f"{name}post_attention_layernorm.weight": (hidden,),
        }
    return shapes


def _affine(name: str, *shape: int) -> Shapes:
    return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}


def _tower_shapes(vision: Mapping[str, Any], prefix: str) -> Shapes:
    hidden, ffn, patch = vision["hidden_size"], vision["intermediate_size"], vision["patch_size"]
    clip = vision["model_type"] == "clip_vision_model"
    positions = (vision["image_size"] // patch) ** 2
    shapes: Shapes = {
        f"{prefix}embeddings.patch_embedding.weight": (hidden, 3, patch, patch),
        f"{prefix}embeddings.position_embedding.weight": (positions + clip, hidden),
    }
    if clip:
        shapes[f"{prefix}embeddings.class_embedding"] = (hidden,)
        shapes |= _affine(f"{prefix}pre_layrnorm", hidden)
    else:
        shapes[f"{prefix}embeddings.patch_embedding.bias"] = (hidden,)
    for layer in range(vision["num_hidden_layers"]):
        name = f"{prefix}encoder.layers.{layer}."
        for projection in ("q_proj", "k_proj", "v_proj", "out_proj"):
            shapes |= _affine(f"{name}self_attn.{projection}", hidden, hidden)
        shapes |= _affine(f"{name}mlp.fc1", ffn, hidden) | _affine(f"{name}mlp.fc2", hidden, ffn)
        shapes |= _affine(f"{name}layer_norm1", hidden) | _affine(f"{name}layer_norm2", hidden)
    return shapes | _affine(f"{prefix}post_layernorm", hidden)


def _qwen_vision_shapes(vision: Mapping[str, Any], prefix: str) -> Shapes:
    hidden, ffn, patch = vision["hidden_size"], vision["intermediate_size"], vision["patch_size"]
    merged = hidden * vision["spatial_merge_size"] ** 2
    shapes: Shapes = {
        f"{prefix}patch_embed.proj.weight": (hidden, 3, vision["temporal_patch_size"], patch, patch),
        f"{prefix}merger.ln_q.weight": (hidden,),
    }
    shapes |= _affine(f"{prefix}merger.mlp.0", merged, merged)
    shapes |= _affine(f"{prefix}merger.mlp.2", vision["out_hidden_size"], merged)
    for layer in range(vision["depth"]):
        name = f"{prefix}blocks.{layer}."
        shapes |= _affine(f"{name}attn.qkv", 3 * hidden, hidden) | _affine(f"{name}attn.proj", hidden, hidden)
        shapes |= _affine(f"{name}mlp.gate_proj", ffn, hidden) | _affine(f"{name}mlp.up_proj", ffn, hidden)
        shapes |= _affine(f"{name}mlp.down_proj", hidden, ffn)
        shapes |= {f"{name}norm1.weight": (hidden,), f"{name}norm2.weight": (hidden,)}
    return shapes


def shapes_of(config: Mapping[str, Any], layout: str = "old") -> Shapes:
    """Names and shapes of all tensors of a model. `layout`: old, new, or flat (LLaVA only)."""
    architecture = config["architectures"][0]
    text = config.get("text_config", config)
    tied = bool(config.get("tie_word_embeddings") or text.get("tie_word_embeddings"))
    if architecture == "Qwen2_5_VLForConditionalGeneration":
        prefix, vision = {"old": ("model.", "visual."), "new": ("model.language_model.", "model.visual.")}[layout]
        shapes = _text_shapes(text, prefix, "lm_head.weight", True, tied)
        return shapes | _qwen_vision_shapes(config["vision_config"], vision)
    if architecture == "LlavaForConditionalGeneration":
        prefix, projector, lm_head, tower = LLAVA_PREFIXES[layout]
        hidden, projector = text["hidden_size"], f"{projector}multi_modal_projector."
        shapes = _text_shapes(text, prefix, lm_head, text["model_type"] == "qwen2", tied)
        shapes |= _tower_shapes(config["vision_config"], tower)
        shapes |= _affine(f"{projector}linear_1", hidden, config["vision_config"]["hidden_size"])
        return shapes | _affine(f"{projector}linear_2", hidden, hidden)
    return _text_shapes(text, "model.", "lm_head.weight", architecture == "Qwen2ForCausalLM", tied)


def config_of(family: str, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Configuration of a family with changed values. A key such as `text_config.hidden_size` is inside an object."""
    config = copy.deepcopy(CONFIGS[family])
    for path, value in (changes or {}).items():
        *parents, key = path.split(".")
        section = config
        for parent in parents:
            section = section[parent]
        section[key] = value
    return config


def write(folder: Path, config: Any, tensors: Mapping[str, np.ndarray], shards: int = 1) -> Path:
    """Write a checkpoint in one file, or in several shards with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        save_file(dict(tensors), folder / "model.safetensors")
        return folder
    names, weight_map = sorted(tensors), {}
    for number in range(shards):
        shard = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        weight_map |= dict.fromkeys(names[number::shards], shard)
        save_file({name: tensors[name] for name in names[number::shards]}, folder / shard)
    index = {"metadata": {"total_size": sum(array.nbytes for array in tensors.values())}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def write_random(
    folder: Path,
    family: str,
    rng: np.random.Generator,
    *,
    changes: Mapping[str, Any] | None = None,
    layout: str = "old",
    shards: int = 1,
    dtype: Any = bfloat16,
) -> dict[str, np.ndarray]:
    """Write a checkpoint of a family with random weights, and return the weights by their names."""
    config = config_of(family, changes)
    tensors = random_tensors(shapes_of(config, layout), rng, dtype)
    write(folder, config, tensors, shards)
    return tensors
