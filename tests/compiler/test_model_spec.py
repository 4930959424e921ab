"""Descriptions of models: values read from config.json, RoPE frequencies, invalid values."""

import re

import numpy as np
import pytest

from compiler.checkpoint import Checkpoint
from compiler.model_spec import ModelSpec, ProjectorSpec, RopeSpec, TextSpec, VisionSpec
from tests.compiler.checkpoints import CONFIGS, config_of, random_tensors, shapes_of, write, write_random


def text_spec(**changes):
    values = {
        "hidden": 32, "ffn": 48, "layers": 2, "q_heads": 4, "kv_heads": 2, "head_dim": 8, "vocabulary": 48,
        "norm_epsilon": 1e-5, "qkv_bias": False, "tied_embeddings": False, "rope": RopeSpec(8, 10000.0),
        "max_positions": 512,
    }  # fmt: skip
    return TextSpec(**{**values, **changes})


TOWER = {
    "hidden": 16, "ffn": 24, "layers": 3, "heads": 2, "patch_size": 4, "temporal_patch": 1, "image_size": 12,
    "norm": "layer_norm", "gated": False,
}  # fmt: skip
CLIP = VisionSpec(
    kind="clip", activation="quick_gelu", norm_epsilon=1e-5, class_token=True, input_norm=True, patch_bias=False,
    **TOWER,
)  # fmt: skip
SIGLIP = VisionSpec(
    kind="siglip", activation="gelu_pytorch_tanh", norm_epsilon=1e-6, class_token=False, input_norm=False,
    patch_bias=True, **TOWER,
)  # fmt: skip
QWEN_VISION = VisionSpec(
    kind="qwen2.5-vl", hidden=16, ffn=24, layers=3, heads=2, patch_size=4, temporal_patch=2, image_size=None,
    activation="silu", norm="rms_norm", norm_epsilon=1e-6, class_token=False, input_norm=False, patch_bias=False,
    gated=True, rope_theta=10000.0, window_size=16, full_attention_layers=(1,), spatial_merge=2, tokens_per_second=2,
)  # fmt: skip
LLAMA3_ROPE = RopeSpec(8, 500000.0, "llama3", 8.0, 1.0, 4.0, 64)
QWEN_TEXT = text_spec(qkv_bias=True, rope=RopeSpec(8, 10000.0, sections=(1, 1, 2)))
SPECS = {
    "llama": ModelSpec("llama", text_spec(), eos_ids=(2,)),
    "llama3": ModelSpec("llama", text_spec(tied_embeddings=True, rope=LLAMA3_ROPE), eos_ids=(45, 46)),
    "qwen2": ModelSpec("qwen2", text_spec(qkv_bias=True, rope=RopeSpec(8, 1e6))),
    "qwen2.5-vl": ModelSpec(
        "qwen2.5-vl", QWEN_TEXT, QWEN_VISION,
        ProjectorSpec("patch_merger", 64, 64, 32, "gelu", True, -1, "full", 1e-6), 46, 47, (151645,),
    ),
    "llava": ModelSpec(
        "llava", text_spec(), CLIP, ProjectorSpec("mlp2x", 16, 32, 32, "gelu", True, -2, "default"), 47, None, (2,),
    ),
    "llava-siglip": ModelSpec(
        "llava", text_spec(qkv_bias=True, tied_embeddings=True), SIGLIP,
        ProjectorSpec("mlp2x", 16, 32, 32, "gelu", True, -1, "full"), 47,
    ),
}  # fmt: skip


@pytest.mark.parametrize("family", CONFIGS)
def test_spec(family, rng, tmp_path):
    write_random(tmp_path, family, rng)
    assert Checkpoint(tmp_path).spec == SPECS[family]


def test_derived_sizes_of_vision_towers():
    assert (CLIP.positions, SIGLIP.positions, QWEN_VISION.positions) == (10, 9, 0)
    assert [QWEN_VISION.has_window(layer) for layer in range(3)] == [True, False, True]
    assert not CLIP.has_window(0)
    assert {name: SPECS[name].vision_layers for name in SPECS} == {
        "llama": 0, "llama3": 0, "qwen2": 0, "qwen2.5-vl": 3, "llava": 2, "llava-siglip": 3,
    }  # fmt: skip


def test_spec_of_a_nested_text_section(rng, tmp_path):
    """Qwen2.5-VL as transformers writes it since 4.52, RoPE parameters as since 5."""
    config = config_of("qwen2.5-vl")
    sections = config.pop("rope_scaling")["mrope_section"]
    keys = [key for key in CONFIGS["llama"] if key in config and key not in ("architectures", "model_type")]
    text = {"model_type": "qwen2_5_vl_text", **{key: config.pop(key) for key in keys}, "eos_token_id": None}
    theta = text.pop("rope_theta")
    text["rope_parameters"] = {"rope_type": "default", "rope_theta": theta, "mrope_section": sections}
    config["text_config"] = text
    config["vision_config"]["rope_parameters"] = {"rope_type": "axial", "rope_theta": 10000.0}
    write(tmp_path, config, random_tensors(shapes_of(config, "new"), rng))
    assert Checkpoint(tmp_path).spec == SPECS["qwen2.5-vl"]


def test_frequencies_of_llama3_scaling():
    """Frequencies with at least 4 turns in the original positions stay, those with at most 1 are divided."""
    spec = RopeSpec(128, 500_000.0, "llama3", 8.0, 1.0, 4.0, 8192)
    base = RopeSpec(128, 500_000.0).frequencies()
    ratio = spec.frequencies() / base
    turns = 8192 * base / (2 * np.pi)
    np.testing.assert_allclose(ratio[turns >= 4], 1, rtol=1e-15)
    np.testing.assert_allclose(ratio[turns <= 1], 1 / 8, rtol=1e-15)
    between = (turns > 1) & (turns < 4)
    weight = (turns[between] - 1) / 3
    np.testing.assert_allclose(ratio[between], (1 - weight) / 8 + weight, rtol=1e-14)
    assert between.any()
    assert (turns < 1).any()
    assert spec.frequencies().dtype == np.float64


def test_frequencies_of_linear_scaling():
    base = RopeSpec(16, 10000.0).frequencies()
    np.testing.assert_allclose(base, [10000.0 ** (-pair / 8) for pair in range(8)], rtol=1e-15)
    np.testing.assert_array_equal(RopeSpec(16, 10000.0, "linear", 4.0).frequencies(), base / 4)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: RopeSpec(8, 1e4, "yarn"), "scaling must be one of default, linear, llama3, got 'yarn'"),
        (lambda: RopeSpec(7, 1e4), "head_dim must be even, got 7"),
        (lambda: text_spec(layers=0), "layers must be at least 1, got 0"),
        (lambda: text_spec(qkv_bias=1), "qkv_bias must be True or False, got 1"),
        (lambda: text_spec(head_dim=16), "rope.head_dim must be head_dim = 16, got 8"),
        (lambda: ModelSpec("gpt", text_spec()), "family must be one of llama, llava, qwen2, qwen2.5-vl, got 'gpt'"),
        (lambda: ModelSpec("llava", text_spec(), CLIP), "projector must be a ProjectorSpec with vision, got None"),
        (
            lambda: ModelSpec("llava", text_spec(), None, SPECS["llava"].projector),
            "projector must be None without vision, got ProjectorSpec(kind='mlp2x'",
        ),
        (
            lambda: ModelSpec("llava", text_spec(hidden=64), CLIP, SPECS["llava"].projector),
            "outputs of the projector must be the hidden size 64 of the text decoder, got 32",
        ),
        (
            lambda: ProjectorSpec("mlp2x", 16, 32, 32, "gelu", True, -2, "full", 1e-6),
            "norm_epsilon must be None for mlp2x, got 1e-06",
        ),
        (
            lambda: ProjectorSpec("patch_merger", 64, 64, 32, "gelu", True, -1, "full"),
            "norm_epsilon must be a number for patch_merger, got None",
        ),
    ],
)
def test_invalid_specs(build, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        build()
