"""Checkpoints that transformers writes and reads, compared with `compiler.checkpoint`; skipped without the extra
`capture`.
"""

import json

import numpy as np
import pytest

from compiler import model_config
from compiler.checkpoint import Checkpoint
from tests.compiler.checkpoints import CASES, CONFIGS, LLAMA3_SCALING, write_random

TEXT = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 60, "max_position_embeddings": 128,
}  # fmt: skip
TOWER = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 12,
    "patch_size": 4,
}  # fmt: skip
QWEN_VISION = {
    "depth": 2, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "out_hidden_size": 32, "patch_size": 4,
    "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 16, "fullatt_block_indexes": [1],
}  # fmt: skip
IMAGE, VIDEO = 58, 59
ROPES = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "linear": {"rope_type": "linear", "rope_theta": 500000.0, "factor": 4.0},
    "llama3": {**LLAMA3_SCALING, "rope_theta": 500000.0, "original_max_position_embeddings": 8192},
}
MODELS = ("llama", "llama-tied", "qwen2", "qwen2.5-vl", "llava", "llava-qwen2", "llava-siglip", "llava-siglip-qwen2")


@pytest.fixture
def transformers():
    """The library, with one thread of PyTorch."""
    torch = pytest.importorskip("torch", reason="the optional extra `capture` is not installed")
    library = pytest.importorskip("transformers", reason="the optional extra `capture` is not installed")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield library
    torch.set_num_threads(threads)


def config_of(transformers, name, rope=None):
    special = {"bos_token_id": 1, "eos_token_id": [2, 3]}
    if name in ("llama", "llama-tied"):
        rope = {} if rope is None else {"rope_parameters": rope}
        return transformers.LlamaConfig(**TEXT, **special, **rope, tie_word_embeddings=name == "llama-tied")
    if name == "qwen2":
        return transformers.Qwen2Config(**TEXT, **special)
    if name == "qwen2.5-vl":
        sections = {"rope_type": "default", "rope_theta": 1000000.0, "mrope_section": [1, 1, 2]}
        return transformers.Qwen2_5_VLConfig(
            text_config={**TEXT, **special, "rope_parameters": sections},
            vision_config=QWEN_VISION,
            image_token_id=IMAGE,
            video_token_id=VIDEO,
            vision_start_token_id=56,
            vision_end_token_id=57,
        )
    text = transformers.Qwen2Config if name.endswith("qwen2") else transformers.LlamaConfig
    siglip = "siglip" in name
    tower = transformers.SiglipVisionConfig if siglip else transformers.CLIPVisionConfig
    return transformers.LlavaConfig(
        text_config=text(**TEXT, **special, tie_word_embeddings=siglip),
        vision_config=tower(**TOWER, **({"vision_use_head": False} if siglip else {})),
        image_token_index=IMAGE,
        image_seq_length=9,
        vision_feature_layer=-1 if siglip else -2,
        vision_feature_select_strategy="full" if siglip else "default",
    )


def make(transformers, name, seed, rope=None):
    """A model whose parameters are all different, norms and biases included."""
    import torch

    torch.manual_seed(seed)
    config = config_of(transformers, name, rope)
    if name == "qwen2.5-vl":
        model = transformers.Qwen2_5_VLForConditionalGeneration(config)
    elif name.startswith("llava"):
        model = transformers.LlavaForConditionalGeneration(config)
    else:
        model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
    return model.eval()


def inputs_of(model, name):
    """A prompt, with an image if the model takes one."""
    import torch

    if name == "qwen2.5-vl":  # one image of 8 x 8 patches, which is 16 tokens
        pixels = torch.randn(64, 3 * 2 * 4 * 4)
        ids = torch.tensor([[5, 56, *[IMAGE] * 16, 57, 6]])
        grid = torch.tensor([[1, 8, 8]])
        return {"input_ids": ids, "pixel_values": pixels, "image_grid_thw": grid, "mm_token_type_ids": ids == IMAGE}
    if name.startswith("llava"):
        ids = torch.tensor([[5, *[IMAGE] * 9, 6, 7]])
        return {"input_ids": ids, "pixel_values": torch.randn(1, 3, 12, 12)}
    return {"input_ids": torch.tensor([[5, 6, 7, 8]])}


def bits(parameter):
    """Bytes of a parameter in BF16."""
    import torch

    return parameter.detach().to(torch.bfloat16).contiguous().view(torch.int16).numpy().tobytes()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("name", MODELS)
def test_tensors_that_inference_needs_are_in_the_table(name, dtype, transformers, seed, tmp_path):
    """Parameters with a gradient after a forward pass are those whose values the table names, rounded as by PyTorch."""
    import torch

    model = make(transformers, name, seed)
    model(**inputs_of(model, name)).logits.square().sum().backward()
    needed = {key for key, parameter in model.named_parameters() if parameter.grad is not None}
    model = model.to(getattr(torch, dtype))
    model.save_pretrained(tmp_path, max_shard_size="10KB" if dtype == "bfloat16" else "5GB")
    assert (tmp_path / "model.safetensors.index.json").exists() == (dtype == "bfloat16")
    checkpoint = Checkpoint(tmp_path)
    expected = {bits(parameter): key for key, parameter in model.named_parameters() if key in needed}
    used = {entry.name for entry in checkpoint.table.values()}
    actual = {checkpoint.tensor(tensor).tobytes(): tensor for tensor in used}
    assert {expected[content] for content in expected.keys() - actual.keys()} == set()
    assert {actual[content] for content in actual.keys() - expected.keys()} == set()
    assert len(actual) == len(used) == len(needed)


def test_matrices_are_those_of_the_modules(transformers, seed, tmp_path):
    """Each name of this project leads to the parameter of the module with this function."""
    model = make(transformers, "qwen2.5-vl", seed)
    model.save_pretrained(tmp_path)
    checkpoint = Checkpoint(tmp_path)
    layer, block = model.model.language_model.layers[1], model.model.visual.blocks[1]
    for matrix in ("q", "k", "v", "o"):
        module = getattr(layer.self_attn, f"{matrix}_proj")
        assert checkpoint.layer_matrix(1, matrix).tobytes() == bits(module.weight)
        if matrix != "o":
            assert checkpoint.layer_bias(1, matrix).tobytes() == bits(module.bias)
    for matrix in ("gate", "up", "down"):
        assert checkpoint.layer_matrix(1, matrix).tobytes() == bits(getattr(layer.mlp, f"{matrix}_proj").weight)
        assert checkpoint.load(f"vision.layers.1.{matrix}").tobytes() == bits(
            getattr(block.mlp, f"{matrix}_proj").weight
        )
    attention, ffn = checkpoint.layer_norms(1)
    assert attention.tobytes() == bits(layer.input_layernorm.weight)
    assert ffn.tobytes() == bits(layer.post_attention_layernorm.weight)
    hidden = model.config.vision_config.hidden_size
    for number, matrix in enumerate("qkv"):
        rows = slice(number * hidden, (number + 1) * hidden)
        assert checkpoint.load(f"vision.layers.1.{matrix}").tobytes() == bits(block.attn.qkv.weight[rows])
    assert checkpoint.lm_head().tobytes() == bits(model.lm_head.weight)


@pytest.mark.parametrize(("family", "layout"), CASES)
def test_checkpoints_of_the_tests_load_in_transformers(family, layout, transformers, rng, tmp_path):
    """transformers loads them completely; what it writes again has the same description and the same values."""
    import torch

    write_random(tmp_path / "first", family, rng, layout=layout)
    architecture = CONFIGS[family]["architectures"][0]
    model, report = getattr(transformers, architecture).from_pretrained(
        tmp_path / "first", dtype=torch.bfloat16, output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["mismatched_keys"]
    assert not report["unexpected_keys"]
    model.save_pretrained(tmp_path / "second")
    first, second = Checkpoint(tmp_path / "first"), Checkpoint(tmp_path / "second")
    assert first.spec == second.spec
    assert first.table.keys() == second.table.keys()
    for key in first.table:
        np.testing.assert_array_equal(first.load(key), second.load(key), err_msg=key)


@pytest.mark.parametrize("head_dim", [8, 128])
@pytest.mark.parametrize("kind", ROPES)
def test_frequencies(kind, head_dim, transformers, tmp_path):
    """transformers computes in FP32."""
    config = transformers.LlamaConfig(**TEXT, head_dim=head_dim, rope_parameters=ROPES[kind])
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(tmp_path)
    rope = Checkpoint(tmp_path).spec.text.rope
    assert rope.scaling == kind
    expected = model.model.rotary_emb.inv_freq.double().numpy()
    np.testing.assert_allclose(rope.frequencies(), expected, rtol=2e-6)


def test_frequencies_with_several_position_axes(transformers, seed, tmp_path):
    model = make(transformers, "qwen2.5-vl", seed)
    model.save_pretrained(tmp_path)
    rope = Checkpoint(tmp_path).spec.text.rope
    assert rope.sections == (1, 1, 2)
    expected = model.model.language_model.rotary_emb.inv_freq.double().numpy()
    np.testing.assert_allclose(rope.frequencies(), expected, rtol=2e-6)


@pytest.mark.parametrize("kind", ["dynamic", "yarn"])
def test_scaling_that_depends_on_the_length(kind, transformers, seed, tmp_path):
    rope = {"rope_type": kind, "rope_theta": 10000.0, "factor": 2.0, "original_max_position_embeddings": 64}
    make(transformers, "llama", seed, rope).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=f"rope_parameters.rope_type in config.json must be one of .*, got '{kind}'"):
        Checkpoint(tmp_path)


CLASSES = {
    "llama": "LlamaConfig",
    "qwen2": "Qwen2Config",
    "qwen2_5_vl_text": "Qwen2_5_VLTextConfig",
    "clip_vision_model": "CLIPVisionConfig",
    "siglip_vision_model": "SiglipVisionConfig",
    "qwen2_5_vl_vision": "Qwen2_5_VLVisionConfig",
}


@pytest.mark.parametrize("model_type", model_config.DEFAULTS)
def test_defaults_are_those_of_the_configuration_classes(model_type, transformers):
    config = transformers.AutoConfig.for_model(model_type)
    assert type(config).__name__ == CLASSES[model_type]
    values = {**config.to_dict(), **(getattr(config, "rope_parameters", None) or {})}
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    expected = dict(model_config.DEFAULTS[model_type])
    if expected.get("num_key_value_heads", 0) is None:  # the class replaces None
        expected["num_key_value_heads"] = expected["num_attention_heads"]
    assert {key: values[key] for key in expected} == expected


def test_nested_sections_without_keys(transformers, tmp_path):
    """LLaVA 1.5 states few keys of its text model; transformers and the compiler complete them alike."""
    config = {
        "architectures": ["LlavaForConditionalGeneration"], "model_type": "llava", "image_token_index": 32000,
        "text_config": {"model_type": "llama", "max_position_embeddings": 4096, "vocab_size": 32064},
        "vision_config": {"model_type": "clip_vision_model", "image_size": 336, "patch_size": 14},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    complete = transformers.AutoConfig.from_pretrained(tmp_path).to_dict()
    assert len(complete["text_config"]) > 10
    complete["architectures"] = config["architectures"]
    assert model_config.model_spec(config) == model_config.model_spec(complete)
