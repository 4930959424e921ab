"""Streaming sessions of vision-language models with random weights: Qwen2.5-VL, LLaVA (two families), InternVL."""

import numpy as np
import pytest

from golden.hybrid import HybridConfig
from golden.quickvideo import QuickVideoConfig
from golden.resv import ResvConfig
from sw_model.policies import POLICIES
from tests.sw_model.huggingface.conftest import TEXT

FAMILIES = ("Qwen2_5_VL", "LlavaOnevision", "LlavaNext", "InternVL")
VIDEO_TOKENS = {"LlavaOnevision": 2, "LlavaNextVideo": 1, "InternVL": 4}  # of one frame
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
        qwen(**on(qwen.device, call.inputs), cache=cache)
    start = session.next_position
    answer = session.ask([5, 6], max_new_tokens=3, end=-1, choose=lambda x: collected.append(x) or int(x.argmax()))
    ids, position = torch.tensor([[5, 6]], device=qwen.device), start
    for _ in range(3):
        where = position + torch.arange(ids.shape[1], device=qwen.device)[None]
        expected.append(qwen(input_ids=ids, position_ids=where, cache=cache).logits[0, -1])
        position, ids = position + ids.shape[1], expected[-1].argmax()[None, None]
    assert answer.tokens == [int(x.argmax()) for x in expected]
    assert (torch.stack(collected) - torch.stack(expected)).abs().max() < 1e-5
    assert session.cache.tokens == 4 * 6 + 2 + 3


@pytest.mark.parametrize("policy", ["rekv", "mosaic"])
def test_keys_of_several_axes_are_rotated_back_to_those_of_the_projection(policy, qwen, torch):
    """The policy scores keys before the rotary embedding: they are the outputs of the model's own projection."""
    from sw_model.huggingface import StreamingSession

    session, outputs, rotated = StreamingSession(qwen, policy=policy, frame_tokens=6), [], 0
    projection = qwen.model.language_model.layers[0].self_attn.k_proj
    handle = projection.register_forward_hook(lambda module, inputs, output: outputs.append(output[0].cpu().numpy()))
    session.tell([1, 2, 3])
    for number in range(4):
        session.frame(**moved(picture_step("Qwen2_5_VL", qwen, torch, number), session.next_position, torch))
    session.tell([4, 5])
    handle.remove()
    keys = session.cache.policy.keys(0)
    start = 0
    for output in outputs:
        part = keys[start : start + len(output)]
        unrotated = session.cache.policy.unrotated(part, start, 10000.0)
        assert np.abs(unrotated.reshape(output.shape) - output).max() < 2**-8 * np.abs(output).max()  # BF16
        rotated += np.abs(part.reshape(output.shape) - output).max() > 0.1 * np.abs(output).max()
        start += len(output)
    assert len(outputs) == 6 and start == len(keys) == 29
    assert rotated > 3


@pytest.mark.parametrize("block", [None, 2])
@pytest.mark.parametrize("kept", [[0, 1, 2, 9, 10, 11, 12, 13, 14], [1, 5, 16, 17], [4, 6, 11, 21, 26], []])
def test_compact_positions_of_several_axes(kept, block, make_qwen, torch):
    """One decoder layer: its keys do not depend on evicted tokens. The retrieved tokens alone, at positions in which
    every step follows the one before, give the same logits."""
    from sw_model.huggingface import StreamingSession
    from sw_model.policies import Policy, Selection

    class Kept(Policy):
        name = "kept"

        def select(self, layer, queries, stage):
            self.queries(layer, queries, stage)
            past = self.past(layer)
            tokens = np.array([t for t in [*kept, *range(27, past)] if t < past], np.int64)  # and those of the question
            return Selection((tokens,) * self.model.kv_heads)

        def account(self, step):
            return self.work(step, 0, 0)

    model = make_qwen(num_hidden_layers=1)
    embed = model.get_input_embeddings()
    session = StreamingSession(model, policy=Kept, device_tokens=3, block_tokens=2, positions="compact", block=block)
    steps = [embed(torch.tensor([[1, 2, 3]], device=model.device))]
    session.tell([1, 2, 3])
    positions = [torch.arange(3).expand(3, 3)]
    for number in range(4):
        inputs = moved(picture_step("Qwen2_5_VL", model, torch, number), session.next_position, torch)
        embeddings = torch.randn((1, 6, 64), generator=torch.Generator().manual_seed(number))
        session.frame(inputs_embeds=embeddings, position_ids=inputs["position_ids"])
        steps.append(embeddings.to(model.device))
        positions.append(inputs["position_ids"][:, 0])
    assert (positions[-1][0] != positions[-1][1]).any()
    question = torch.tensor([[4, 5, 6, 7, 8]], device=model.device)
    logits = []
    session.ask(question, max_new_tokens=1, end=-1, keep=False, choose=lambda x: logits.append(x) or 0)

    new, start, first = [], 0, 0
    for step in positions:
        own = [t - first for t in kept if first <= t < first + step.shape[1]]
        if own:
            new.append(step[:, own] - step.min() + start)
            start += int(step.max() - step.min()) + 1
        first += step.shape[1]
    new.append((start + torch.arange(5)).expand(3, 5))
    x = torch.cat([torch.cat(steps, 1)[:, kept], embed(question)], 1)
    expected = model(inputs_embeds=x, position_ids=torch.cat(new, 1)[:, None].to(model.device)).logits[0, -1]
    assert (logits[0] - expected).abs().max() < 1e-5 * expected.abs().max()


def test_positions_of_several_axes_must_be_known(qwen, torch):
    from sw_model.huggingface import RetrievalCache

    for options in ({"policy": "rekv"}, {"policy": "mosaic"}, {"policy": "hybrid", "positions": "compact"}):
        with pytest.raises(ValueError, match=r"position_ids must be stated for .* 3 position axes: use StreamingSess"):
            qwen(input_ids=torch.tensor([[1, 2, 3]], device=qwen.device), cache=RetrievalCache(**options))


def on(device, inputs):
    """The inputs of a step on a device."""
    return {name: value.to(device) for name, value in inputs.items()}


def moved(inputs, start, torch):
    """The inputs of a step whose positions start at `start`."""
    positions = inputs["position_ids"]
    return {**inputs, "position_ids": positions - positions.min() + start}


TOWER = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
PICTURE, VIDEO = 290, 291  # special tokens


@pytest.fixture
def make_vision_model(torch, device, qwen, seed):
    """Function that makes a vision-language model of a family with random weights."""
    import transformers as t

    def make(family):
        torch.manual_seed(seed)
        if family == "Qwen2_5_VL":
            return qwen
        squares = {"image_size": 16, "patch_size": 8}
        if family.startswith("LlavaNext"):
            vision, text = t.CLIPVisionConfig(**TOWER, **squares), t.LlamaConfig(**TEXT)
            special = {"image_token_index": PICTURE, "image_grid_pinpoints": [[16, 16]]}
            if family == "LlavaNextVideo":
                special["video_token_index"] = VIDEO
        elif family == "LlavaOnevision":
            vision, text = t.SiglipVisionConfig(**TOWER, **squares, vision_use_head=False), t.Qwen2Config(**TEXT)
            special = {"image_token_index": PICTURE, "video_token_index": VIDEO, "image_grid_pinpoints": [[16, 16]]}
        else:
            vision = t.InternVLVisionConfig(**TOWER, image_size=[16, 16], patch_size=[4, 4])
            text, special = t.Qwen2Config(**TEXT), {"image_token_id": PICTURE, "image_seq_length": 4}
        config = getattr(t, f"{family}Config")(vision_config=vision, text_config=text, **special)
        return getattr(t, f"{family}ForConditionalGeneration")(config).eval().to(device)

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
    features = model.model.get_image_features(**on(model.device, inputs))
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
        model(**on(model.device, inputs), cache=cache)
    ids = torch.tensor([[5, 6]], device=model.device)
    expected = model(input_ids=ids, cache=cache).logits[0, -1]
    session.ask([5, 6], max_new_tokens=1, keep=False, end=-1, choose=lambda x: collected.append(x) or 0)
    assert (collected[0] - expected).abs().max() < 1e-5
    assert session.cache.tokens == cache.get_seq_length() - 2


@pytest.mark.parametrize("policy", [*WHOLE, "default"])
@pytest.mark.parametrize("family", FAMILIES)
def test_generate_of_an_unmodified_model(family, policy, make_vision_model, torch):
    """At ratio 1.0, tokens and scores of `generate` are those of the model's own cache; else the policy selects fewer
    tokens. No function of this project is called before `generate`."""
    from sw_model.huggingface import RetrievalCache

    model = make_vision_model(family)
    assert model.config.get_text_config()._attn_implementation == "sdpa"
    inputs = picture_step(family, model, torch, 0)
    if family == "Qwen2_5_VL":  # `generate` computes the positions
        del inputs["position_ids"]
        inputs["mm_token_type_ids"] = torch.tensor([[0, 2, 2, 2, 2, 0]])
    arguments = {
        **on(model.device, inputs), "max_new_tokens": 9, "min_new_tokens": 9, "do_sample": False, "pad_token_id": 0,
        "return_dict_in_generate": True, "output_scores": True,
    }  # fmt: skip
    expected = model.generate(**arguments)
    cache = RetrievalCache(policy=policy, device_tokens=7, **WHOLE[policy]) if policy in WHOLE else RetrievalCache()
    out = model.generate(**arguments, cache=cache)
    assert cache.tokens == expected.sequences.shape[1] - 1
    if policy in WHOLE:
        assert torch.equal(out.sequences, expected.sequences)
        for scores, wanted in zip(out.scores, expected.scores, strict=True):
            finite = wanted.isfinite()  # the end token is suppressed
            assert (scores - wanted)[finite].abs().max() < 1e-5
    assert (cache.statistics()["ratio"] == 1.0) == (policy in WHOLE)


# small budgets, so that every policy leaves tokens out of a short stream; the others retrieve two frames
OPTIONS = {
    "resv": {"config": ResvConfig(wics_ratio=0.2, hamming_threshold=9)},
    "infinigen": {"alpha": 0.01},
    "infinigenp": {"alpha": 0.5, "budget": 9},
    "quickprefill": {"config": QuickVideoConfig(group_frames=2, head_mode="per_head")},
    "hybrid": {"config": HybridConfig(block=4, sink_blocks=1, recent_blocks=3, max_tokens=20)},
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("family", FAMILIES)
def test_selections_of_a_stream_of_pictures_are_those_of_the_golden_models(family, policy, make_vision_model, torch):
    """Frames, a question and its answer: the policy of `sw_model.policies` selects the same tokens from the same keys;
    the attention output follows, so that the keys of the second layer depend on the selections of the first."""
    from sw_model.huggingface import StreamingSession
    from sw_model.huggingface.cache import bf16_array

    model = make_vision_model(family)
    pictures = [picture_step(family, model, torch, number) for number in range(7)]
    frame_tokens, options = pictures[0]["input_ids"].shape[1], OPTIONS.get(policy)
    budget = None if options else 2
    session = StreamingSession(
        model, policy=policy, device_tokens=7, block_tokens=5, options=options, frame_tokens=frame_tokens,
        budget_frames=budget,
    )  # fmt: skip
    golden, compared, fewer = None, 0, 0

    def compare(layer, queries, selection, scaling):
        nonlocal golden, compared, fewer
        if golden is None:
            kind, shape = POLICIES[policy], session.cache.policy.model
            golden = (
                kind(shape, **options)
                if options
                else kind.for_stream(shape, tokens_per_frame=frame_tokens, theta=10000.0, budget_frames=budget)
            )
            golden.sections = (2, 3, 3) if family == "Qwen2_5_VL" else None
        tokens = queries.shape[1]
        if layer.index == 0:
            positions = session.cache.step_positions.reshape(-1, tokens)
            golden.extend_positions(positions.expand(3 if golden.sections else 1, -1).T.numpy())
        keys, values = (bf16_array(x.transpose(0, 1)) for x in layer.store.rows[-tokens:].unbind(2))
        golden.append(layer.index, keys, values)
        expected = golden.select(layer.index, bf16_array(queries), session.cache.stage)
        for h in range(2):
            assert np.array_equal(selection.tokens[h], expected.tokens[h])
            if expected.allowed is not None:
                assert np.array_equal(selection.allowed[h], expected.allowed[h])
            fewer += len(expected.tokens[h]) < layer.store.length - tokens
        for name in ("keys", "values", "pseudo_keys", "pseudo_values"):
            assert np.array_equal(getattr(selection, name), getattr(expected, name)), name
        compared += 1

    session.cache.observer = compare
    for picture in pictures:
        session.frame(**picture)
    session.ask([5, 6, 7], max_new_tokens=3, end=-1)
    assert compared == 2 * (7 + 1 + 3)
    assert (fewer > 0) == (policy not in ("full", "oaken"))


@pytest.mark.parametrize("family", VIDEO_TOKENS)
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
    assert session.cache.tokens == 4 * VIDEO_TOKENS[family]
    (name,) = {"pixel_values", "pixel_values_videos"} & set(step.inputs)
    assert step.inputs[name].shape[-3:] == (3, 16, 16)
