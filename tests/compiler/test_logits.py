"""Logits and answers of the golden machine compared with transformers, in float32 and in bfloat16.

The models have random weights that are large enough for sharp attention; all runs have the same BF16 weights.
"""

import numpy as np
import pytest

from compiler.checkpoint import Checkpoint
from compiler.policies import FullPolicy, ResvPolicy
from compiler.runtime import Limits, compile_model
from golden.bf16 import FP32, decode
from hw.config import Config
from tests.compiler.checkpoints import CONFIGS

PROMPT, ANSWER = 24, 32  # tokens
FAMILIES = ("llama", "llama3", "qwen2", "llava", "llava-siglip", "qwen2.5-vl")


@pytest.fixture
def transformers():
    module = pytest.importorskip("transformers", reason="the optional extra `capture` is not installed")
    pytest.importorskip("torch", reason="the optional extra `capture` is not installed")
    return module


def make_model(transformers, family, folder, seed):
    """A random model of a family in transformers, float32 with BF16 weights, which is also saved in `folder`."""
    import torch

    torch.manual_seed(seed)
    options = {key: value for key, value in CONFIGS[family].items() if key not in ("architectures", "model_type")}
    options["eos_token_id"] = []  # no answer ends early
    config = transformers.AutoConfig.for_model(CONFIGS[family]["model_type"], initializer_range=0.25, **options)
    auto = transformers.AutoModelForImageTextToText if "vision_config" in options else transformers.AutoModelForCausalLM
    model = auto.from_config(config, attn_implementation="eager").eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.25)
    placeholders = [value for key, value in options.items() if key.endswith(("token_id", "token_index")) and value]
    with torch.no_grad():
        model.lm_head.weight[placeholders] = 0  # no answer has a token that stands for a picture
    model.to(torch.bfloat16).save_pretrained(folder)
    return model.to(torch.float32)


def logits_of(model, tokens, dtype, inputs):
    """Logits of every position, float64 (T, vocabulary); `inputs`: those of transformers for the pictures."""
    import torch

    more = {name: torch.tensor(value) for name, value in inputs.items()}
    more = {name: value.to(dtype) if "pixel" in name else value for name, value in more.items()}
    with torch.inference_mode():
        output = model.to(dtype)(torch.tensor([tokens]), **more).logits
    return output[0].to(torch.float64).numpy()


def qwen_patches(images, patch=4, merge=2):
    """Patches as the processor of Qwen2.5-VL orders them, of pixels (2 T, 3, height, width)."""
    frames, _, height, width = images.shape
    grid = frames // 2, height // patch, width // patch
    blocks = images.reshape(grid[0], 2, 3, grid[1] // merge, merge, patch, grid[2] // merge, merge, patch)
    return blocks.transpose(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(np.prod(grid), -1), [grid]


def feed(session, rng, length):
    """Pictures for a session. Returns their tokens, and the inputs of transformers with `length` tokens of text.

    Qwen2.5-VL gets a video of two frames with an interval of one second, and a picture.
    """
    images, spec = session.machine.images, session.machine.spec
    if images is None:
        return [], {}
    pictures = rng.integers(256, size=(5, 30, 20, 3), dtype=np.uint8)
    pixels = np.stack([images.pixels(picture) for picture in pictures])
    if spec.family != "qwen2.5-vl":
        session.frame(pictures[0])
        return [spec.image_token_id] * session.position, {"pixel_values": pixels[:1]}
    session.frame(*pictures[:2], seconds=0.0)
    session.frame(*pictures[2:4], seconds=1.0)
    video = session.position
    session.frame(pictures[4])
    image = session.position - video
    patches, grid = qwen_patches(pixels[:4])
    image_patches, image_grid = qwen_patches(pixels[[4, 4]])
    inputs = {
        "pixel_values_videos": patches, "video_grid_thw": grid, "second_per_grid_ts": [1.0],
        "pixel_values": image_patches, "image_grid_thw": image_grid,
        "mm_token_type_ids": [[2] * video + [1] * image + [0] * length],
    }  # fmt: skip
    return [spec.video_token_id] * video + [spec.image_token_id] * image, inputs


@pytest.mark.parametrize("policy", [FullPolicy(), ResvPolicy(ratio=1.0)], ids=["full", "resv at ratio 1"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_answer(transformers, family, policy, tmp_path, rng, seed):
    """With all past tokens attended to, the error is at most twice that of transformers in bfloat16."""
    import torch

    model = make_model(transformers, family, tmp_path, seed)
    size = {"height": 16, "width": 24} if family == "qwen2.5-vl" else {}
    machine = compile_model(Checkpoint(tmp_path), Config.preset("tiny"), Limits(tokens=80, step=9, **size), policy)
    session, tokens, logits = machine.session(), rng.integers(3, 40, size=PROMPT).tolist(), []
    visual, inputs = feed(session, rng, PROMPT + ANSWER)
    for token in session.ask(tokens, count=ANSWER):
        logits.append(decode(session.logits, FP32))
        tokens.append(token)
    start, end = len(visual) + PROMPT - 1, len(visual) + PROMPT - 1 + ANSWER
    exact = logits_of(model, visual + tokens, torch.float32, inputs)[start:end]
    rounded = logits_of(model, visual + tokens, torch.bfloat16, inputs)[start:end]
    error, allowed = (np.sqrt(np.mean((x - exact) ** 2)) for x in (np.array(logits), rounded))
    spread = exact.std()
    name = f"{family}, {policy.name}"
    print(f"{name}: RMS error {error / spread:.3%} of the logits' spread, bfloat16 {allowed / spread:.3%}")
    assert 0 < error <= 2 * allowed
    parted = 0
    for row, token in zip(exact, tokens[PROMPT:], strict=True):
        margin = row.max() - row[token]
        parted += margin > 0
        assert margin <= 2 * np.abs(rounded - exact).max()
    print(f"{name}: {parted} of {len(logits)} tokens differ from float32")
