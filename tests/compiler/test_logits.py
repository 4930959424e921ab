"""Logits and answers of the golden machine compared with transformers, in float32 and in bfloat16.

The models have random weights that are large enough for sharp attention; all runs have the same BF16 weights.
"""

import numpy as np
import pytest

from compiler.checkpoint import Checkpoint
from compiler.runtime import Limits, Retrieval, compile_model
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
    model.to(torch.bfloat16).save_pretrained(folder)
    return model.to(torch.float32)


def logits_of(model, tokens, dtype, pixels=None):
    """Logits of every position, float64 (T, vocabulary); `pixels`: of the picture (3, height, width)."""
    import torch

    more = {} if pixels is None else {"pixel_values": torch.tensor(pixels[None]).to(dtype)}
    with torch.inference_mode():
        output = model.to(dtype)(torch.tensor([tokens]), **more).logits
    return output[0].to(torch.float64).numpy()


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_answer(transformers, family, tmp_path, rng, seed):
    """With all clusters selected the error is at most twice that of transformers in bfloat16."""
    import torch

    model = make_model(transformers, family, tmp_path, seed)
    machine = compile_model(
        Checkpoint(tmp_path), Config.preset("tiny"), Limits(tokens=80, step=9), Retrieval(ratio=1.0)
    )
    session, tokens = machine.session(), rng.integers(3, 40, size=PROMPT).tolist()
    logits, pixels, before = [], None, 0
    if machine.images is not None:
        picture = rng.integers(256, size=(30, 20, 3), dtype=np.uint8)
        pixels = machine.images.pixels(picture)
        session.frame(picture)
        before = session.position
    for token in session.ask(tokens, count=ANSWER):
        logits.append(decode(session.logits, FP32))
        tokens.append(token)
    start, end = before + PROMPT - 1, before + PROMPT - 1 + ANSWER
    sequence = [machine.spec.image_token_id] * before + tokens
    exact = logits_of(model, sequence, torch.float32, pixels)[start:end]
    rounded = logits_of(model, sequence, torch.bfloat16, pixels)[start:end]
    error, allowed = (np.sqrt(np.mean((x - exact) ** 2)) for x in (np.array(logits), rounded))
    spread = exact.std()
    print(f"{family}: RMS error {error / spread:.3%} of the logits' spread, bfloat16 {allowed / spread:.3%}")
    assert 0 < error <= 2 * allowed
    parted = 0
    for row, token in zip(exact, tokens[PROMPT:], strict=True):
        margin = row.max() - row[token]
        parted += margin > 0
        assert margin <= 2 * np.abs(rounded - exact).max()
    print(f"{family}: {parted} of {len(logits)} tokens differ from float32")
