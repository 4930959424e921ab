"""Folders that are no complete checkpoint of a supported model: one-line errors that name file, tensor or key."""

import json
import re

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from compiler.checkpoint import Checkpoint, CheckpointError
from tests.compiler.checkpoints import config_of, random_tensors, shapes_of, write, write_random

INDEX = "model.safetensors.index.json"


def refused(folder):
    """One-line message of the error, without the folder."""
    with pytest.raises(CheckpointError) as error:
        Checkpoint(folder)
    message = str(error.value)
    assert "\n" not in message
    assert message.startswith(f"checkpoint {str(folder)!r}: ")
    return message.removeprefix(f"checkpoint {str(folder)!r}: ")


def test_missing_files(rng, tmp_path):
    assert refused(tmp_path / "none") == "config.json is missing"
    write_random(tmp_path, "llama", rng)
    (tmp_path / "model.safetensors").unlink()
    assert refused(tmp_path) == f"must hold model.safetensors or {INDEX}, got neither"


@pytest.mark.parametrize("file", ["config.json", "generation_config.json", INDEX])
@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"[" * 100_000])
def test_file_that_is_not_json(file, content, rng, tmp_path):
    write_random(tmp_path, "llama", rng, shards=2)
    (tmp_path / file).write_bytes(content)
    assert refused(tmp_path).startswith(f"file {tmp_path / file} is not JSON")


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_file_that_is_not_an_object(file, rng, tmp_path):
    write_random(tmp_path, "llama", rng)
    (tmp_path / file).write_text("[1, 2]")
    assert refused(tmp_path) == f"{file} must be an object, got [1, 2]"


@pytest.mark.parametrize("names", [["LlamaForSequenceClassification"], "GPT2LMHeadModel", [], None, [3]])
def test_unknown_architecture(names, rng, tmp_path):
    write_random(tmp_path, "llama", rng)
    (tmp_path / "config.json").write_text(json.dumps(config_of("llama", {"architectures": names})))
    message = refused(tmp_path)
    assert message.startswith("architectures in config.json must be one of LlamaForCausalLM, Qwen2ForCausalLM, ")
    got = names[0] if isinstance(names, list) and names else names
    assert message.endswith(f"got {got!r}")


def test_model_type_of_another_architecture(rng, tmp_path):
    write_random(tmp_path, "llava", rng)
    (tmp_path / "config.json").write_text(json.dumps(config_of("llava", {"model_type": "mamba"})))
    assert refused(tmp_path) == "model_type in config.json must be 'llava', got 'mamba'"


@pytest.mark.parametrize(
    ("family", "key"),
    [
        ("llama", "architectures"), ("llama", "hidden_size"), ("llama", "intermediate_size"),
        ("llama", "num_hidden_layers"), ("qwen2", "num_attention_heads"), ("qwen2", "vocab_size"),
        ("qwen2", "rms_norm_eps"), ("qwen2", "max_position_embeddings"), ("qwen2.5-vl", "vision_config"),
        ("qwen2.5-vl", "image_token_id"), ("qwen2.5-vl", "video_token_id"), ("llava", "text_config"),
        ("llava", "vision_config"), ("llava", "image_token_index"), ("llama3", "rope_scaling.factor"),
        ("llama3", "rope_scaling.low_freq_factor"), ("llama3", "rope_scaling.high_freq_factor"),
        ("llama3", "rope_scaling.original_max_position_embeddings"), ("qwen2.5-vl", "rope_scaling.mrope_section"),
        ("llava", "text_config.model_type"), ("llava", "vision_config.model_type"),
    ],
)  # fmt: skip
def test_missing_key(family, key, rng, tmp_path):
    write_random(tmp_path, family, rng)
    config = config_of(family)
    *parents, last = key.split(".")
    section = config
    for parent in parents:
        section = section[parent]
    del section[last]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert refused(tmp_path) == f"config.json must have the key {key}, got none"


INVALID = [
    ("llama", {"hidden_size": "32"}, "hidden_size in config.json must be an integer, got '32'"),
    ("llama", {"hidden_size": 33}, "hidden_size in config.json must be a multiple of num_attention_heads = 4, got 33"),
    ("llama", {"num_hidden_layers": 0}, "num_hidden_layers in config.json must be between 1 and 1024, got 0"),
    ("llama", {"num_hidden_layers": 10**9}, "num_hidden_layers in config.json must be between 1 and 1024"),
    ("llama", {"num_key_value_heads": 3}, "config.json: q_heads must be a multiple of kv_heads = 3, got 4"),
    ("llama", {"head_dim": 7}, "config.json: head_dim must be even, got 7"),
    ("llama", {"rms_norm_eps": 0}, "rms_norm_eps in config.json must be positive, got 0"),
    ("llama", {"rope_theta": -1.0}, "rope_theta in config.json must be positive, got -1.0"),
    ("llama", {"attention_bias": True}, "attention_bias in config.json must be false, got true"),
    ("llama", {"mlp_bias": True}, "mlp_bias in config.json must be false, got true"),
    ("llama", {"hidden_act": "gelu"}, "hidden_act in config.json must be one of silu, got 'gelu'"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor in config.json must be 1.0, got 0.5"),
    ("llama", {"tie_word_embeddings": "no"}, "tie_word_embeddings in config.json must be True or False, got 'no'"),
    ("llama", {"eos_token_id": "</s>"}, "eos_token_id in config.json must be an integer, got '</s>'"),
    ("llama", {"quantization_config": 4}, "quantization_config in config.json must be an object, got 4"),
    ("llama", {"quantization_config": {"bits": 4}}, "quant_method of quantization_config in config.json must be one "),
    ("llama", {"quantization_config": {"quant_method": "awq", "bits": 8}}, "bits of quantization_config in config.js"),
    ("llama", {"quantization_config": {"quant_method": "gptq", "bits": 3}}, "bits of quantization_config in config.j"),
    (
        "llama", {"quantization_config": {"quant_method": "awq", "bits": 4, "version": "gemv"}},
        "version of quantization_config in config.json must be one of gemm, got 'gemv'",
    ),
    ("llama3", {"rope_scaling": [8]}, "rope_scaling in config.json must be an object, got [8]"),
    ("llama3", {"rope_scaling.factor": 0}, "rope_scaling.factor in config.json must be positive, got 0"),
    ("llama3", {"rope_scaling.high_freq_factor": 1.0}, "config.json: high_frequency_factor must be above low_freq"),
    ("qwen2", {"use_sliding_window": True}, "use_sliding_window in config.json must be false, got true"),
    ("qwen2", {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types in config.json must be full_att"),
    ("qwen2.5-vl", {"rope_scaling.mrope_section": [1, 1, 1]}, "config.json: sections must sum to d/2 = 4, got [1, 1, "),
    ("qwen2.5-vl", {"vision_config.hidden_act": "relu"}, "vision_config.hidden_act in config.json must be one of gelu"),
    ("qwen2.5-vl", {"vision_config.out_hidden_size": 16}, "vision_config.out_hidden_size in config.json must be hid"),
    ("qwen2.5-vl", {"vision_config.window_size": 12}, "config.json: window_size must be a multiple of 8 pixels, got "),
    ("qwen2.5-vl", {"vision_config.fullatt_block_indexes": [3]}, "config.json: full_attention_layers must"),
    ("qwen2.5-vl", {"vision_config.num_heads": 3}, "config.json: hidden must be a multiple of heads = 3, got 16"),
    ("qwen2.5-vl", {"vision_config.num_heads": 8}, "config.json: hidden / heads must be a multiple of 4, got 2"),
    ("llava", {"text_config.model_type": "mistral"}, "text_config.model_type in config.json must be one of llama, qw"),
    ("llava", {"vision_config.model_type": "dinov2"}, "vision_config.model_type in config.json must be one of clip_v"),
    ("llava", {"vision_config.hidden_act": "gelu_new"}, "vision_config.hidden_act in config.json must be one of gelu"),
    ("llava", {"projector_hidden_act": "relu"}, "projector_hidden_act in config.json must be one of gelu"),
    ("llava", {"vision_feature_layer": [-2, -5]}, "vision_feature_layer in config.json must be an integer, got [-2"),
    ("llava", {"vision_feature_layer": -5}, "config.json: feature_layer must be between -4 and 3, got -5"),
    ("llava", {"vision_feature_select_strategy": "cls"}, "vision_feature_select_strategy in config.json must be one"),
    ("llava", {"text_config": 3}, "text_config in config.json must be an object, got 3"),
]  # fmt: skip


@pytest.mark.parametrize(("family", "changes", "message"), INVALID, ids=[f"{a}-{next(iter(b))}" for a, b, _ in INVALID])
def test_invalid_config(family, changes, message, rng, tmp_path):
    write_random(tmp_path, family, rng)
    (tmp_path / "config.json").write_text(json.dumps(config_of(family, changes)))
    assert refused(tmp_path).startswith(message)


def test_invalid_end_token_of_the_generation_config(rng, tmp_path):
    write_random(tmp_path, "llama", rng)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, -1]}))
    assert refused(tmp_path) == "eos_token_id in generation_config.json must be at least 0, got -1"


@pytest.mark.parametrize("kind", ["dynamic", "yarn", "longrope"])
@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_unsupported_rope_scaling(kind, key, rng, tmp_path):
    write_random(tmp_path, "llama", rng, changes={"rope_scaling": {key: kind, "factor": 2.0}})
    expected = f"rope_scaling.{key} in config.json must be one of default, linear, llama3, got {kind!r}"
    assert refused(tmp_path) == expected


CONTRADICTIONS = [
    ("llama", "hidden_size", 64, "model.embed_tokens.weight"),
    ("llama", "vocab_size", 49, "model.embed_tokens.weight"),
    ("llama", "intermediate_size", 47, "model.layers.0.mlp.gate_proj.weight"),
    ("llama", "num_key_value_heads", 4, "model.layers.0.self_attn.k_proj.weight"),
    ("llama", "head_dim", 16, "model.layers.0.self_attn.q_proj.weight"),
    ("qwen2.5-vl", "vision_config.patch_size", 2, "visual.patch_embed.proj.weight"),
    ("qwen2.5-vl", "vision_config.spatial_merge_size", 1, "visual.merger.mlp.0.weight"),
    ("llava", "vision_config.image_size", 16, "vision_tower.vision_model.embeddings.position_embedding.weight"),
    ("llava", "text_config.num_attention_heads", 2, "language_model.model.layers.0.self_attn.k_proj.weight"),
]


@pytest.mark.parametrize(("family", "key", "value", "tensor"), CONTRADICTIONS)
def test_config_that_contradicts_the_weights(family, key, value, tensor, rng, tmp_path):
    weights = write_random(tmp_path, family, rng)
    (tmp_path / "config.json").write_text(json.dumps(config_of(family, {key: value})))
    message = refused(tmp_path)
    assert re.fullmatch(rf"{re.escape(tensor)} must have shape \(.*\), as config.json says, got \(.*\)", message)
    assert message.endswith(f"got {weights[tensor].shape}")


def test_number_of_layers_that_contradicts_the_weights(rng, tmp_path):
    write_random(tmp_path, "llama", rng)
    (tmp_path / "config.json").write_text(json.dumps(config_of("llama", {"num_hidden_layers": 3})))
    assert refused(tmp_path) == "tensor model.layers.2.self_attn.q_proj.weight of shape (32, 32) is missing"
    (tmp_path / "config.json").write_text(json.dumps(config_of("llama", {"num_hidden_layers": 1})))
    message = "tensor model.layers.1.input_layernorm.weight does not belong to the model that config.json describes"
    assert refused(tmp_path) == message


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen2.5-vl", "llava"])
def test_every_missing_tensor_is_named(family, rng, tmp_path):
    """A checkpoint without one of the tensors that inference needs, for each of them."""
    weights = write_random(tmp_path, family, rng)
    needed = {entry.name for entry in Checkpoint(tmp_path).table.values()}
    for name in sorted(needed):
        save_file({other: weights[other] for other in weights if other != name}, tmp_path / "model.safetensors")
        assert refused(tmp_path) == f"tensor {name} of shape {weights[name].shape} is missing"


@pytest.mark.parametrize("name", ["model.layers.0.self_attn.o_proj.bias", "model.layers.0.self_attn.q_norm.weight"])
def test_tensor_that_the_model_does_not_have(name, rng, tmp_path):
    config = config_of("qwen2")
    write(tmp_path, config, random_tensors(shapes_of(config) | {name: (32,)}, rng))
    assert refused(tmp_path) == f"tensor {name} does not belong to the model that config.json describes"


@pytest.mark.parametrize(("dtype", "name"), [(np.int8, "I8"), (np.float64, "F64"), (np.uint16, "U16")])
def test_wrong_dtype(dtype, name, rng, tmp_path):
    weights = write_random(tmp_path, "llama", rng)
    weights["model.layers.1.mlp.up_proj.weight"] = np.zeros((48, 32), dtype)
    save_file(weights, tmp_path / "model.safetensors")
    assert refused(tmp_path) == f"model.layers.1.mlp.up_proj.weight must be one of BF16, F16, F32, got {name}"


def test_wrong_dtype_of_a_tensor_that_is_not_needed(rng, tmp_path):
    weights = write_random(tmp_path, "llava", rng)
    weights["vision_tower.vision_model.embeddings.position_ids"] = np.arange(10)
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"position_ids must be one of BF16, F16, F32, got I64"):
        Checkpoint(tmp_path).tensor("vision_tower.vision_model.embeddings.position_ids")


def sharded(folder, rng):
    write_random(folder, "llama", rng, shards=3)
    return folder / "model-00002-of-00003.safetensors"


def test_missing_shard(rng, tmp_path):
    shard = sharded(tmp_path, rng)
    shard.unlink()
    assert refused(tmp_path) == f"{shard.name} is missing"


@pytest.mark.parametrize("length", [0, 4, 40, -1])
def test_truncated_shard(length, rng, tmp_path):
    shard = sharded(tmp_path, rng)
    shard.write_bytes(shard.read_bytes()[:length])
    assert refused(tmp_path).startswith(f"{shard.name} is truncated or no safetensors file (")


def test_shard_without_a_tensor_of_the_index(rng, tmp_path):
    shard = sharded(tmp_path, rng)
    tensors = load_file(shard)
    name = sorted(tensors)[1]
    del tensors[name]
    save_file(tensors, shard)
    assert refused(tmp_path) == f"{shard.name} must hold {name}, as {INDEX} says, got no such tensor"


@pytest.mark.parametrize("index", [{}, [], {"weight_map": {}}, {"weight_map": "model.safetensors"}])
def test_index_without_a_map(index, rng, tmp_path):
    sharded(tmp_path, rng)
    (tmp_path / INDEX).write_text(json.dumps(index))
    assert refused(tmp_path) == f"{INDEX} must have the key weight_map with the shard of each tensor"


@pytest.mark.parametrize("shard", ["../model.safetensors", 3, "", "."])
def test_index_with_a_shard_that_is_no_file_name(shard, rng, tmp_path):
    sharded(tmp_path, rng)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"lm_head.weight": shard}}))
    assert refused(tmp_path) == f"shard of lm_head.weight in {INDEX} must be a file name, got {shard!r}"
