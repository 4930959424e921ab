"""Checkpoints of each family: description, tensors under the names of this project, and errors of invalid folders."""

import json
import re
import resource
import shutil
from pathlib import Path

import numpy as np
import pytest
from ml_dtypes import bfloat16

from compiler.checkpoint import Checkpoint
from golden import bf16
from tests.compiler.checkpoints import CASES, config_of, random_tensors, shapes_of, write, write_random

INDEX = "model.safetensors.index.json"


def codes(tensor):
    return tensor.view(np.uint16)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize(("family", "layout"), CASES)
def test_every_tensor_has_a_name_of_this_project(family, layout, shards, rng, tmp_path):
    tensors = write_random(tmp_path, family, rng, layout=layout, shards=shards)
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.names == tuple(sorted(tensors))
    for name, tensor in tensors.items():
        assert checkpoint.shape(name) == tensor.shape
        np.testing.assert_array_equal(checkpoint.tensor(name), codes(tensor), err_msg=name)
    used = {entry.name for entry in checkpoint.table.values()}
    unused = set(tensors) - used
    after = "post_layernorm|encoder.layers.2" if family == "llava" else "post_layernorm"  # feature layers -2 and -1
    assert unused == {name for name in tensors if re.search(after, name)}


def test_text_tensors(rng, tmp_path):
    weights = write_random(tmp_path, "qwen2", rng)
    checkpoint = Checkpoint(tmp_path)
    layer = "model.layers.1."
    for matrix in ("q", "k", "v", "o"):
        np.testing.assert_array_equal(
            checkpoint.layer_matrix(1, matrix), codes(weights[f"{layer}self_attn.{matrix}_proj.weight"])
        )
    for matrix in ("gate", "up", "down"):
        np.testing.assert_array_equal(
            checkpoint.layer_matrix(1, matrix), codes(weights[f"{layer}mlp.{matrix}_proj.weight"])
        )
        assert checkpoint.layer_bias(1, matrix) is None
    for matrix in ("q", "k", "v"):
        np.testing.assert_array_equal(
            checkpoint.layer_bias(1, matrix), codes(weights[f"{layer}self_attn.{matrix}_proj.bias"])
        )
    attention, ffn = checkpoint.layer_norms(1)
    np.testing.assert_array_equal(attention, codes(weights[f"{layer}input_layernorm.weight"]))
    np.testing.assert_array_equal(ffn, codes(weights[f"{layer}post_attention_layernorm.weight"]))
    np.testing.assert_array_equal(checkpoint.embedding(), codes(weights["model.embed_tokens.weight"]))
    np.testing.assert_array_equal(checkpoint.final_norm(), codes(weights["model.norm.weight"]))
    np.testing.assert_array_equal(checkpoint.lm_head(), codes(weights["lm_head.weight"]))


def test_tied_head_is_the_embedding(rng, tmp_path):
    weights = write_random(tmp_path, "llama3", rng)
    assert "lm_head.weight" not in weights
    checkpoint = Checkpoint(tmp_path)
    np.testing.assert_array_equal(checkpoint.lm_head(), codes(weights["model.embed_tokens.weight"]))
    assert checkpoint.layer_bias(0, "q") is None


def test_clip_tensors(rng, tmp_path):
    weights = write_random(tmp_path, "llava", rng)
    checkpoint, tower = Checkpoint(tmp_path), "vision_tower.vision_model."
    expected = {
        "vision.patch": f"{tower}embeddings.patch_embedding.weight",
        "vision.class_token": f"{tower}embeddings.class_embedding",
        "vision.positions": f"{tower}embeddings.position_embedding.weight",
        "vision.input_norm": f"{tower}pre_layrnorm.weight",
        "vision.input_norm_bias": f"{tower}pre_layrnorm.bias",
        "vision.layers.1.v": f"{tower}encoder.layers.1.self_attn.v_proj.weight",
        "vision.layers.1.o_bias": f"{tower}encoder.layers.1.self_attn.out_proj.bias",
        "vision.layers.1.up": f"{tower}encoder.layers.1.mlp.fc1.weight",
        "vision.layers.1.down_bias": f"{tower}encoder.layers.1.mlp.fc2.bias",
        "vision.layers.1.attention_norm": f"{tower}encoder.layers.1.layer_norm1.weight",
        "vision.layers.1.ffn_norm_bias": f"{tower}encoder.layers.1.layer_norm2.bias",
        "projector.linear_1": "multi_modal_projector.linear_1.weight",
        "projector.linear_2_bias": "multi_modal_projector.linear_2.bias",
    }
    for key, name in expected.items():
        np.testing.assert_array_equal(checkpoint.load(key), codes(weights[name]), err_msg=key)
    assert "vision.patch_bias" not in checkpoint.table


def test_qwen_vision_tensors(rng, tmp_path):
    """The checkpoint holds query, key and value projection as rows of one matrix."""
    weights = write_random(tmp_path, "qwen2.5-vl", rng)
    checkpoint, block = Checkpoint(tmp_path), "visual.blocks.2."
    fused, fused_bias = codes(weights[f"{block}attn.qkv.weight"]), codes(weights[f"{block}attn.qkv.bias"])
    for number, matrix in enumerate("qkv"):
        rows = slice(16 * number, 16 * number + 16)
        np.testing.assert_array_equal(checkpoint.load(f"vision.layers.2.{matrix}"), fused[rows])
        np.testing.assert_array_equal(checkpoint.load(f"vision.layers.2.{matrix}_bias"), fused_bias[rows])
    expected = {
        "vision.patch": "visual.patch_embed.proj.weight",
        "vision.layers.2.o": f"{block}attn.proj.weight",
        "vision.layers.2.gate": f"{block}mlp.gate_proj.weight",
        "vision.layers.2.up_bias": f"{block}mlp.up_proj.bias",
        "vision.layers.2.down": f"{block}mlp.down_proj.weight",
        "vision.layers.2.attention_norm": f"{block}norm1.weight",
        "vision.layers.2.ffn_norm": f"{block}norm2.weight",
        "projector.norm": "visual.merger.ln_q.weight",
        "projector.linear_1": "visual.merger.mlp.0.weight",
        "projector.linear_2": "visual.merger.mlp.2.weight",
    }
    for key, name in expected.items():
        np.testing.assert_array_equal(checkpoint.load(key), codes(weights[name]), err_msg=key)


def test_generation_config_determines_the_end_tokens(rng, tmp_path):
    write_random(tmp_path, "llama", rng)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    assert Checkpoint(tmp_path).spec.eos_ids == (7, 9)
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": 1}))
    assert Checkpoint(tmp_path).spec.eos_ids == (2,)


def test_head_size_differs_from_hidden_size_by_heads(rng, tmp_path):
    write_random(tmp_path, "llama", rng, changes={"head_dim": 6})
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.spec.text.head_dim == checkpoint.spec.text.rope.head_dim == 6
    assert checkpoint.layer_matrix(0, "q").shape == (24, 32)


def test_missing_kv_heads_are_query_heads(rng, tmp_path):
    config = config_of("llama", {"num_key_value_heads": 4})
    weights = random_tensors(shapes_of(config), rng)
    del config["num_key_value_heads"]
    assert Checkpoint(write(tmp_path, config, weights)).spec.text.kv_heads == 4


# ties between BF16 neighbours, values beside ties, both zeros, subnormals, infinities
EDGES = [1.00390625, 1.01171875, 1.0039063, 1.0039062, -1.00390625, 0.0, -0.0, np.inf, -np.inf, 1e-40, 65504.0, 3e-8]


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("shards", [1, 2])
def test_other_floats_are_rounded_to_nearest_even(dtype, shards, rng, tmp_path):
    config = config_of("qwen2")
    weights = random_tensors(shapes_of(config), rng, dtype)
    with np.errstate(over="ignore", under="ignore"):
        weights["model.norm.weight"][: len(EDGES)] = np.array(EDGES).astype(dtype)
    write(tmp_path, config, weights, shards)
    checkpoint = Checkpoint(tmp_path)
    for name, values in weights.items():
        normal = (values == 0) | (np.abs(values) >= 2.0**-126)
        expected = bf16.encode(values.astype(np.float64))
        np.testing.assert_array_equal(checkpoint.tensor(name)[normal], expected[normal], err_msg=name)
    subnormal = checkpoint.tensor("model.norm.weight")[EDGES.index(1e-40)]
    assert subnormal == (round(1e-40 / 2.0**-133) if dtype is np.float32 else 0)


def test_largest_float32_becomes_infinity(rng, tmp_path):
    config = config_of("llama")
    weights = random_tensors(shapes_of(config), rng, np.float32)
    weights["model.norm.weight"][:2] = np.finfo(np.float32).max, np.nan
    codes = Checkpoint(write(tmp_path, config, weights)).final_norm()
    assert codes[0] == bf16.BF16.infinity
    assert np.isnan(codes[1:2].view(bfloat16)).all()


def test_tensors_are_read_only_views_of_the_file(rng, tmp_path):
    weights = write_random(tmp_path, "llama", rng)
    checkpoint = Checkpoint(tmp_path)
    embedding = checkpoint.embedding()
    with pytest.raises(ValueError, match="read-only"):
        embedding[0, 0] = 0
    content = (tmp_path / "model.safetensors").read_bytes()
    data = weights["model.embed_tokens.weight"].tobytes()
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.seek(content.index(data))
        file.write(bytes(len(data)))
    assert not embedding.any()


def test_only_the_data_in_use_is_read(tmp_path):
    """An embedding of 4 GiB, stored sparsely, does not become resident."""
    config = config_of("llama3", {"vocab_size": 1 << 26})
    contents, end = {}, 0
    for name, shape in shapes_of(config).items():
        start, end = end, end + 2 * int(np.prod(shape))
        contents[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    header = json.dumps(contents).encode()
    (tmp_path / "config.json").write_text(json.dumps(config))
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + end)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    embedding = Checkpoint(tmp_path).embedding()
    assert not embedding[[0, 1 << 25, -1]].any()
    resident_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert embedding.nbytes == 1 << 32
    assert resident_kib < 1 << 18


def test_unaligned_data(rng, tmp_path):
    """The format allows a table of contents of any length, so data can start at an odd byte."""
    weights = write_random(tmp_path, "llama", rng)
    path = tmp_path / "model.safetensors"
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    path.write_bytes((size + 1).to_bytes(8, "little") + content[8 : 8 + size] + b" " + content[8 + size :])
    np.testing.assert_array_equal(Checkpoint(tmp_path).lm_head(), codes(weights["lm_head.weight"]))


def test_tensors_without_effect_are_ignored(rng, tmp_path):
    config = config_of("llama3")
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": (4,), "lm_head.weight": (48, 32)}
    Checkpoint(write(tmp_path / "text", config, random_tensors(shapes_of(config) | extra, rng)))
    config = config_of("llava")
    extra = {"vision_tower.vision_model.embeddings.position_ids": (1, 10)}
    Checkpoint(write(tmp_path / "vision", config, random_tensors(shapes_of(config) | extra, rng)))
    config = config_of("llava-siglip")
    extra = {"vision_tower.vision_model.head.mlp.fc1.weight": (4, 4)}
    Checkpoint(write(tmp_path / "siglip", config, random_tensors(shapes_of(config) | extra, rng)))


def test_invalid_names(rng, tmp_path):
    write_random(tmp_path, "llama", rng)
    checkpoint = Checkpoint(tmp_path)
    with pytest.raises(ValueError, match=r"name must be a tensor of checkpoint .*, got 'visual'"):
        checkpoint.tensor("visual")
    with pytest.raises(ValueError, match="name must be a tensor of checkpoint"):
        checkpoint.shape("visual")
    with pytest.raises(ValueError, match=r"key must be a tensor of the llama model, got 'vision\.patch'"):
        checkpoint.load("vision.patch")
    with pytest.raises(ValueError, match="layer must be between 0 and 1, got 2"):
        checkpoint.layer_matrix(2, "q")
    with pytest.raises(ValueError, match="layer must be between 0 and 1, got -1"):
        checkpoint.layer_norms(-1)
    with pytest.raises(ValueError, match=r"matrix must be one of .*, got 'fc1'"):
        checkpoint.layer_matrix(0, "fc1")


def test_weights_in_one_file_have_priority(rng, tmp_path):
    """As in transformers, if both forms are in the folder."""
    write_random(tmp_path / "sharded", "llama", rng, shards=3)
    weights = write_random(tmp_path / "whole", "llama", rng)
    for file in (tmp_path / "sharded").glob("model*"):
        shutil.copy(file, tmp_path / "whole")
    np.testing.assert_array_equal(Checkpoint(tmp_path / "whole").lm_head(), codes(weights["lm_head.weight"]))


def test_folder_of_a_checkpoint_can_be_text(rng, tmp_path):
    write_random(tmp_path, "llama", rng)
    assert Checkpoint(str(tmp_path)).path == Path(tmp_path)
