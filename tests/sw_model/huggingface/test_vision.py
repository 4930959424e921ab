"""Streaming sessions of vision-language models with random weights: Qwen2.5-VL, LLaVA-OneVision, LLaVA-Next."""

import numpy as np
import pytest

from golden.resv import ResvConfig
from tests.sw_model.huggingface.conftest import TEXT

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


@pytest.mark.parametrize("policy", WHOLE)
@pytest.mark.parametrize("family", ["LlavaOnevision", "LlavaNext"])
def test_frames_of_llava_give_the_logits_of_the_dynamic_cache(family, policy, torch, seed):
    import transformers

    from sw_model.huggingface import StreamingSession

    text = transformers.Qwen2Config(**TEXT) if family == "LlavaOnevision" else transformers.LlamaConfig(**TEXT)
    tower = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
             "image_size": 16, "patch_size": 8}  # fmt: skip
    vision = (
        transformers.SiglipVisionConfig(**tower, vision_use_head=False)
        if family == "LlavaOnevision"
        else transformers.CLIPVisionConfig(**tower)
    )
    torch.manual_seed(seed)
    config = getattr(transformers, f"{family}Config")(
        vision_config=vision, text_config=text, image_token_index=290, image_grid_pinpoints=[[16, 16]]
    )
    model = getattr(transformers, f"{family}ForConditionalGeneration")(config).eval()
    session = StreamingSession(model, policy=policy, device_tokens=7, **WHOLE[policy])
    cache, collected = transformers.DynamicCache(config=config), []
    for number in range(3):
        inputs = image_inputs(model, torch, number)
        session.frame(**inputs)
        model(**inputs, past_key_values=cache)
    expected = model(input_ids=torch.tensor([[5, 6]]), past_key_values=cache).logits[0, -1]
    session.ask([5, 6], max_new_tokens=1, keep=False, end=-1, choose=lambda x: collected.append(x) or 0)
    assert np.abs((collected[0] - expected).numpy()).max() < 1e-5
    assert session.cache.tokens == cache.get_seq_length() - 2


def image_inputs(model, torch, number):
    """One picture of 16 x 16 pixels with its tokens, as a step of the stream."""
    generator = torch.Generator().manual_seed(number)
    pixels = torch.randn((1, 2, 3, 16, 16), generator=generator)  # the whole picture and its one tile
    sizes = torch.tensor([[16, 16]])
    features = model.model.get_image_features(pixels, sizes)
    features = getattr(features, "pooler_output", features)
    count = sum(len(x.reshape(-1, 64)) for x in features)
    ids = torch.tensor([[1, *[290] * count, 2]])
    return {"input_ids": ids, "pixel_values": pixels, "image_sizes": sizes}
