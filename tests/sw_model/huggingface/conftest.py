"""Tiny models with random weights; tests that need PyTorch and transformers are skipped without the extra `capture`."""

import pytest

FAMILIES = ("llama", "qwen2")
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
}

TEXT = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
}


@pytest.fixture
def torch():
    pytest.importorskip("transformers", reason="the optional extra `capture` is not installed")
    torch = pytest.importorskip("torch", reason="the optional extra `capture` is not installed")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield torch
    torch.set_num_threads(threads)


@pytest.fixture
def device(request, torch):
    """Device of the models (`--torch-device`)."""
    torch.backends.cudnn.allow_tf32 = False  # full float32, as on the processor
    return torch.device(request.config.getoption("--torch-device"))


@pytest.fixture
def make_model(torch, device, seed):
    """Function that makes a decoder of a family, `sdpa` attention, random weights."""
    import transformers

    classes = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    }

    def make(family="llama", **sizes):
        config, model = classes[family]
        torch.manual_seed(seed)
        return model(config(**{**SIZES, **sizes})).eval().to(device)

    return make


@pytest.fixture
def make_qwen(torch, device, seed):
    """Function that makes a tiny Qwen2.5-VL: M-RoPE over sections of 2, 3 and 3 pairs; arguments change its decoder."""
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
    vision = {
        "depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 64, "patch_size": 4,
        "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 16, "fullatt_block_indexes": [1],
    }  # fmt: skip
    special = {"vision_start_token_id": 290, "vision_end_token_id": 291, "video_token_id": 292, "image_token_id": 293}

    def make(**sizes):
        torch.manual_seed(seed)
        text = {**TEXT, "rope_parameters": rope, **sizes}
        config = Qwen2_5_VLConfig(text_config=text, vision_config=vision, **special)
        return Qwen2_5_VLForConditionalGeneration(config).eval().to(device)

    return make


@pytest.fixture
def qwen(make_qwen):
    return make_qwen()
