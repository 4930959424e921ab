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
def make_model(torch, seed):
    """Function that makes a decoder of a family, `sdpa` attention, random weights."""
    import transformers

    classes = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    }

    def make(family="llama", **sizes):
        config, model = classes[family]
        torch.manual_seed(seed)
        return model(config(**{**SIZES, **sizes})).eval()

    return make
