"""Capture on tiny models with random weights: a trace has the tensors that the attention used."""

import sys

import numpy as np
import pytest

from golden import rope
from sw_model.media import capture, statistics
from sw_model.media.capture import CaptureError
from sw_model.media.trace import Trace
from sw_model.media.video import VideoError


@pytest.fixture
def torch():
    pytest.importorskip("transformers", reason="the optional extra `capture` is not installed")
    return pytest.importorskip("torch")


@pytest.fixture
def llama(torch, tmp_path):
    """Folder with the configuration of a three-layer Llama; no weights, no tokenizer."""
    from transformers import LlamaConfig

    config = LlamaConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=2,
        vocab_size=300,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
    )
    config.save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


@pytest.fixture
def qwen(torch, tmp_path):
    """Folder with the configuration of a tiny Qwen2.5-VL: M-RoPE over sections of 2, 3 and 3 pairs."""
    from transformers import Qwen2_5_VLConfig

    text = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 300,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]},
    }
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": 64,
        "patch_size": 4,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "window_size": 16,
        "fullatt_block_indexes": [1],
    }
    special = {"vision_start_token_id": 290, "vision_end_token_id": 291, "video_token_id": 292, "image_token_id": 293}
    Qwen2_5_VLConfig(text_config=text, vision_config=vision, **special).save_pretrained(tmp_path / "qwen")
    return tmp_path / "qwen"


def projections(model, kind, calls):
    """Outputs of each layer's `kind` projection (inputs for o_proj) over the forward passes that `calls` makes."""
    recorded, hooks = {}, []
    for name, module in model.named_modules():
        if name.endswith(f"self_attn.{kind}"):
            layer = int(name.split(".layers.")[1].split(".")[0])

            def record(_, inputs, output, layer=layer):
                recorded.setdefault(layer, []).append((inputs[0] if kind == "o_proj" else output)[0].float().numpy())

            hooks.append(module.register_forward_hook(record))
    calls()
    for hook in hooks:
        hook.remove()
    return np.stack([np.concatenate(recorded[layer]) for layer in sorted(recorded)])


def test_llama_trace_is_what_attention_computed_with(llama, tmp_path):
    """Keys are the projection's output rotated by the golden RoPE; outputs are recomputed from the trace in float64."""
    model = capture.load_model(llama, random_weights=True, seed=3)
    text, path = "the quick brown fox jumps over the lazy dog", tmp_path / "t.safetensors"
    tokens = [byte % 300 for byte in text.encode()]

    def go():
        capture.run(model, capture.prompt_calls(tokens, 10), path, {}, question=[7, 8, 9], answer_tokens=2)

    bare = projections(model, "k_proj", go)
    out = projections(model, "o_proj", go)
    trace = Trace(path)
    assert (trace.geometry.layers, trace.geometry.q_heads, trace.geometry.kv_heads) == (3, 8, 2)
    assert (trace.geometry.head_dim, trace.geometry.theta) == (16, 500000.0)
    assert trace.stages == ["frame"] * 5 + ["text"] * 3
    chunks = list(trace.chunks())
    assert [c.tokens for c in chunks] == [10, 10, 10, 10, 3, 3, 1, 1]
    where = np.concatenate([c.positions for c in chunks])
    assert where.tolist() == list(range(48))
    q, k, v = (np.concatenate([getattr(c, n) for c in chunks], axis=1).astype(np.float64) for n in "qkv")
    rotated = rope.rotate(bare.reshape(3, 48, 2, 16).astype(np.float64), where[:, None], 500000.0)
    assert np.abs(k - rotated).max() < 2**-8 * np.abs(rotated).max()
    for layer in range(3):
        for head in range(8):
            logits = q[layer, :, head] @ k[layer, :, head // 4].T / 4
            logits[np.triu_indices(48, 1)] = -np.inf
            weights = np.exp(logits - logits.max(1, keepdims=True))
            want = weights / weights.sum(1, keepdims=True) @ v[layer, :, head // 4]
            assert np.abs(out[layer, :, 16 * head : 16 * head + 16] - want).max() < 0.03 * np.abs(want).max()


def test_blocks_do_not_change_the_keys(llama, tmp_path):
    """A prompt in blocks of three has the same keys as in one block, so cache and mask continue correctly."""
    texts = [capture.capture(llama, tmp_path / f"{b}.st", prompt="a stream of words", block=b, random_weights=True)
             for b in (3, 100)]  # fmt: skip
    parts = [np.concatenate([c.k for c in Trace(path).chunks()], axis=1).astype(np.float32) for path in texts]
    assert parts[0].shape == (3, 17 + 8, 2, 16)
    assert np.abs(parts[0] - parts[1]).max() < 2**-7 * np.abs(parts[0]).max()
    assert capture.load_model(llama, random_weights=True).config._attn_implementation == "sdpa"


def test_qwen_on_a_video(qwen, tmp_path, small_video):
    """Two frames per chunk; keys equal the multi-axis golden RoPE at positions that this test computes."""
    model = capture.load_model(qwen, random_weights=True, seed=1)
    path = tmp_path / "t.safetensors"

    def go():
        calls = capture.video_calls(model, qwen, small_video, fps=5, size=16, max_frames=7)
        capture.run(model, calls, path, {}, question=[5, 6], answer_tokens=1)

    bare = projections(model, "k_proj", go)
    trace = Trace(path)
    assert trace.stages == ["frame"] * 4 + ["text"] * 2
    chunks = list(trace.chunks())
    assert [c.tokens for c in chunks] == [6, 6, 6, 6, 2, 1]
    # start token, 2 x 2 merged cells that share a time and start one further, end token after the largest
    chunk_positions = [(0, 0, 0), (1, 1, 1), (1, 1, 2), (1, 2, 1), (1, 2, 2), (3, 3, 3)]
    positions = [tuple(4 * chunk + p for p in position) for chunk in range(4) for position in chunk_positions]
    positions += [(16, 16, 16), (17, 17, 17), (18, 18, 18)]
    k = np.concatenate([c.k for c in chunks], axis=1).astype(np.float64)
    where = np.array(positions)[:, None, :]
    rotated = rope.rotate(bare.reshape(2, 27, 2, 16).astype(np.float64), where, 10000.0, sections=[2, 3, 3])
    assert np.abs(k - rotated).max() < 2**-8 * np.abs(rotated).max()
    (first, *_) = statistics.measure(trace.chunks())
    assert first.tokens == 27


def test_patches_are_read_as_the_model_embeds_them(torch, qwen, rng):
    """The model's own patch embedding on our rows equals its 3-D convolution over the pictures."""
    model = capture.load_model(qwen, random_weights=True)
    pictures = rng.integers(0, 256, (2, 16, 24, 3), np.uint8)
    rows = capture.patch_rows(pictures, 4, 2, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    embed = model.model.visual.patch_embed
    scaled = (pictures / 255.0 - [0.5, 0.4, 0.3]) / [0.2, 0.3, 0.4]
    with torch.no_grad():
        got = embed(torch.from_numpy(rows)).numpy()
        volume = torch.from_numpy(scaled.astype(np.float32)).permute(3, 0, 1, 2)[None]
        expected = embed.proj(volume)[0, :, 0].permute(1, 2, 0).numpy()  # (rows, columns, width)
    order = [(2 * r + i, 2 * c + j) for r in range(2) for c in range(3) for i in range(2) for j in range(2)]
    assert np.allclose(got, [expected[y, x] for y, x in order], atol=1e-4)


def test_whole_command(qwen, llama, tmp_path, small_video):
    progress_calls = []
    path = capture.capture(
        qwen,
        tmp_path / "v.safetensors",
        video_path=small_video,
        question="what?",
        fps=1,
        size=16,
        answer_tokens=1,
        random_weights=True,
        seed=4,
        progress=lambda *args: progress_calls.append(args),
    )
    trace = Trace(path)
    assert trace.source["weights"] == "random, seed 4"
    assert trace.source["type"] == "qwen2_5_vl"
    assert len(trace) == 3 + 2 == len(progress_calls)


def test_what_cannot_be_captured(llama, qwen, tmp_path, small_video):
    out = tmp_path / "t.safetensors"
    with pytest.raises(ValueError, match="give either a video or a prompt"):
        capture.capture(llama, out, random_weights=True)
    with pytest.raises(CaptureError, match="llama' takes no video"):
        capture.capture(llama, out, video_path=small_video, random_weights=True)
    with pytest.raises(CaptureError, match="nothing' cannot be loaded"):
        capture.capture(tmp_path / "nothing", out, prompt="x")
    with pytest.raises(CaptureError, match="llama' cannot be loaded"):  # a configuration without weights
        capture.capture(llama, out, prompt="x")
    with pytest.raises(VideoError, match="no such file"):
        capture.capture(qwen, out, video_path=tmp_path / "none.mp4", random_weights=True)
    with pytest.raises(ValueError, match="size must be a multiple of 8 pixels for this model, got 20"):
        capture.capture(qwen, out, video_path=small_video, size=20, random_weights=True)
    with pytest.raises(ValueError, match="block must be at least 1, got 0"):
        capture.capture(llama, out, prompt="x", block=0, random_weights=True)
    with pytest.raises(ValueError, match="token_ids must not be empty"):
        capture.capture(llama, out, prompt="", random_weights=True)
    assert not out.exists()
    assert not list(tmp_path.glob(".t*"))


def test_without_the_extra_one_line_says_so(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(CaptureError, match="capture needs PyTorch and transformers: pip install"):
        capture.capture("any/model", tmp_path / "t.safetensors", prompt="x")


def test_a_model_beside_the_interface_is_refused():
    recorder = capture.Recorder(layers=2)
    with pytest.raises(CaptureError, match=r"in all of its 2 layers, got calls from \[\]"):
        recorder.chunk("frame")
