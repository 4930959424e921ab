"""Streaming sessions of vision-language models with random weights: Qwen2.5-VL, LLaVA (two families), InternVL."""

import numpy as np
import pytest

from golden.hybrid import HybridConfig
from golden.quickvideo import QuickVideoConfig
from golden.resv import ResvConfig
from sw_model.policies import POLICIES
from tests.sw_model.huggingface.conftest import TEXT

FAMILIES = ("Qwen2_5_VL", "LlavaOnevision", "LlavaNext", "InternVL")
WHOLE = {"full": {}, "resv": {"options": {"config": ResvConfig(wics_ratio=1.0)}}}


@pytest.mark.parametrize("policy", WHOLE)
def test_video_of_qwen_gives_the_logits_of_the_dynamic_cache(policy, qwen, torch, tmp_path):
    from transformers import DynamicCache

    from sw_model.huggingface import StreamingSession
    from sw_model.media import capture, clip

    pictures = clip.synthesise(48, width=96, height=64, scene_frames=20, seed=7)
    video = clip.encode(pictures, tmp_path / "small.mp4", gop=16)

    session = StreamingSession(qwen, policy=policy, device_tokens=7, **WHOLE[policy])
    cache, collected, expected = DynamicCache(config=qwen.config), [], []
    for call in capture.video_calls(qwen, tmp_path, video, fps=5, size=16, max_frames=7):
        session.frame(**call.inputs)
        qwen(**call.inputs, past_key_values=cache)
    start = session.next_position
    answer = session.ask([5, 6], max_new_tokens=3, end=-1, choose=lambda x: collected.append(x) or int(x.argmax()))
    ids, position = torch.tensor([[5, 6]]), start
    for _ in range(3):
        where = position + torch.arange(ids.shape[1])[None]
        expected.append(qwen(input_ids=ids, position_ids=where, past_key_values=cache).logits[0, -1])
        position, ids = position + ids.shape[1], expected[-1].argmax()[None, None]
    assert answer.tokens == [int(x.argmax()) for x in expected]
    assert np.abs(torch.stack(collected).numpy() - torch.stack(expected).numpy()).max() < 1e-5
    assert session.cache.tokens == 4 * 6 + 2 + 3


def test_policy_that_needs_one_position_axis_rejects_qwen(qwen, torch):
    from sw_model.huggingface import StreamingSession

    for options in ({"policy": "rekv"}, {"policy": "mosaic"}, {"policy": "hybrid", "positions": "compact"}):
        session = StreamingSession(qwen, **options)
        with pytest.raises(ValueError, match=r"must have one position axis, got mrope_section = \[2, 3, 3\]"):
            session.tell([1, 2, 3])


TOWER = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
PICTURE, VIDEO = 290, 291  # special tokens


@pytest.fixture
def make_vision_model(torch, qwen, seed):
    """Function that makes a vision-language model of a family with random weights."""
    import transformers as t

    def make(family):
        torch.manual_seed(seed)
        if family == "Qwen2_5_VL":
            return qwen
        squares = {"image_size": 16, "patch_size": 8}
        if family == "LlavaNext":
            vision, text = t.CLIPVisionConfig(**TOWER, **squares), t.LlamaConfig(**TEXT)
            special = {"image_token_index": PICTURE, "image_grid_pinpoints": [[16, 16]]}
        elif family == "LlavaOnevision":
            vision, text = t.SiglipVisionConfig(**TOWER, **squares, vision_use_head=False), t.Qwen2Config(**TEXT)
            special = {"image_token_index": PICTURE, "video_token_index": VIDEO, "image_grid_pinpoints": [[16, 16]]}
        else:
            vision = t.InternVLVisionConfig(**TOWER, image_size=[16, 16], patch_size=[4, 4])
            text, special = t.Qwen2Config(**TEXT), {"image_token_id": PICTURE, "image_seq_length": 4}
        config = getattr(t, f"{family}Config")(vision_config=vision, text_config=text, **special)
        return getattr(t, f"{family}ForConditionalGeneration")(config).eval()

    return make


def picture_step(family, model, torch, number):
    """One picture of 16 x 16 pixels with its tokens, as a step of the stream; the first steps are similar."""
    scene = torch.Generator().manual_seed(number // 3)
    generator = torch.Generator().manual_seed(100 + number)
    pixels = torch.randn((1, 3, 16, 16), generator=scene) + 0.1 * torch.randn((1, 3, 16, 16), generator=generator)
    if family == "Qwen2_5_VL":
        rows = pixels.reshape(16, 48).repeat(1, 2)  # 16 patches of 4 x 4 pixels in two frames
        grid = torch.tensor([[1, 4, 4]])
        ids = torch.tensor([[290, *[292] * 4, 291]])
        kinds = torch.tensor([[0, 2, 2, 2, 2, 0]])
        positions, _ = model.model.get_rope_index(ids, kinds, video_grid_thw=grid)
        positions = positions + number * (int(positions.max()) + 1)
        return {"input_ids": ids, "pixel_values_videos": rows, "video_grid_thw": grid, "position_ids": positions}
    inputs = {"pixel_values": pixels}
    if family.startswith("Llava"):
        # the whole picture and its one tile
        inputs = {"pixel_values": pixels[None].repeat(1, 2, 1, 1, 1), "image_sizes": torch.tensor([[16, 16]])}
    features = model.model.get_image_features(**inputs)
    features = getattr(features, "pooler_output", features)
    count = sum(len(x.reshape(-1, 64)) for x in features)
    return {"input_ids": torch.tensor([[1, *[PICTURE] * count, 2]]), **inputs}


@pytest.mark.parametrize("policy", WHOLE)
@pytest.mark.parametrize("family", FAMILIES[1:])
def test_pictures_give_the_logits_of_the_dynamic_cache(family, policy, make_vision_model, torch):
    import transformers

    from sw_model.huggingface import StreamingSession

    model = make_vision_model(family)
    session = StreamingSession(model, policy=policy, device_tokens=7, **WHOLE[policy])
    cache, collected = transformers.DynamicCache(config=model.config), []
    for number in range(3):
        inputs = picture_step(family, model, torch, number)
        session.frame(**inputs)
        model(**inputs, past_key_values=cache)
    expected = model(input_ids=torch.tensor([[5, 6]]), past_key_values=cache).logits[0, -1]
    session.ask([5, 6], max_new_tokens=1, keep=False, end=-1, choose=lambda x: collected.append(x) or 0)
    assert np.abs((collected[0] - expected).numpy()).max() < 1e-5
    assert session.cache.tokens == cache.get_seq_length() - 2


GOLDEN = {
    "resv": {"config": ResvConfig(wics_ratio=0.2, hamming_threshold=9)},
    "infinigenp": {"alpha": 0.5, "budget": 9},
    "quickprefill": {"config": QuickVideoConfig(group_frames=2, head_mode="per_head")},
    "hybrid": {"config": HybridConfig(block=4, sink_blocks=1, recent_blocks=3, max_tokens=20)},
}


@pytest.mark.parametrize("policy", GOLDEN)
@pytest.mark.parametrize("family", FAMILIES)
def test_selections_of_a_stream_of_pictures_are_those_of_the_golden_models(family, policy, make_vision_model, torch):
    """Frames, a question and its answer: the policy of `sw_model.policies` selects the same tokens from the same keys;
    the attention output follows, so that the keys of the second layer depend on the selections of the first."""
    from sw_model.huggingface import StreamingSession
    from sw_model.huggingface.cache import bf16_array

    model = make_vision_model(family)
    session = StreamingSession(model, policy=policy, device_tokens=7, block_tokens=5, options=GOLDEN[policy])
    golden, compared, fewer = None, 0, 0

    def compare(layer, queries, selection, scaling):
        nonlocal golden, compared, fewer
        if golden is None:
            golden = POLICIES[policy](session.cache.policy.model, **GOLDEN[policy])
        tokens = queries.shape[1]
        keys, values = (bf16_array(x.transpose(0, 1)) for x in layer.store.rows[-tokens:].unbind(2))
        golden.append(layer.index, keys, values)
        expected = golden.select(layer.index, bf16_array(queries), session.cache.stage)
        for h in range(2):
            assert np.array_equal(selection.tokens[h], expected.tokens[h])
            if expected.allowed is not None:
                assert np.array_equal(selection.allowed[h], expected.allowed[h])
            fewer += len(expected.tokens[h]) < layer.store.length - tokens
        compared += 1

    session.cache.observer = compare
    for number in range(7):
        session.frame(**picture_step(family, model, torch, number))
    session.ask([5, 6, 7], max_new_tokens=3, end=-1)
    assert compared == 2 * (7 + 1 + 3)
    assert fewer > 0


@pytest.mark.parametrize("family", ["LlavaOnevision", "InternVL"])
def test_frames_of_a_video_are_steps_of_a_stream(family, make_vision_model, torch, tmp_path):
    """One frame per step, in the size of the vision tower and with one token for each feature."""
    from sw_model.huggingface import StreamingSession
    from sw_model.huggingface.frames import steps
    from sw_model.media import clip

    pictures = clip.synthesise(48, width=96, height=64, scene_frames=20, seed=7)
    path = clip.encode(pictures, tmp_path / "small.mp4", gop=16)
    model = make_vision_model(family)
    session = StreamingSession(model, policy="resv", device_tokens=7)
    times = []
    for step in steps(model, tmp_path, path, fps=5.0, size=224, max_frames=4):
        session.frame(**step.inputs)
        times.append(step.time_s)
    assert times == [0.2, 0.4, 0.6, 0.8]
    tokens = {"LlavaOnevision": 2, "InternVL": 4}[family]
    assert session.cache.tokens == 4 * tokens
    (name,) = {"pixel_values", "pixel_values_videos"} & set(step.inputs)
    assert step.inputs[name].shape[-3:] == (3, 16, 16)
