"""A model of two layers in the core's RTL: frames, a question and an answer, bit for bit as on the golden machine."""

import numpy as np
import pytest

from compiler.checkpoint import Checkpoint
from compiler.runtime import Limits, Retrieval, compile_model
from golden import bf16
from hw.config import Config
from sim.bench.model_run import ModelMismatch, ModelRun
from tests.compiler.checkpoints import write_random

FAMILIES = ("llama", "qwen2", "llava", "llava-siglip")
CHANGES = {  # of the checkpoint by preset, so that its words fit those of the core
    "tiny": {},
    "small": {"hidden_size": 128, "intermediate_size": 192, "head_dim": 32},
}
TOWER = {  # of four patches, so that a simulation is short
    "tiny": {"vision_config.image_size": 8, "vision_config.num_hidden_layers": 2},
    "small": {"vision_config.image_size": 8, "vision_config.hidden_size": 32, "vision_config.intermediate_size": 48},
}
HEAVY = pytest.mark.heavy


@pytest.mark.parametrize("preset", ["tiny", pytest.param("small", marks=HEAVY)])
@pytest.mark.parametrize("family", FAMILIES)
def test_frames_and_answer(family, preset, tmp_path, rng, seed):
    """Three frames, a question of six tokens, four answer tokens; old pages come back from host memory.

    Frames are visual tokens from elsewhere, or pictures of a model with a vision tower.
    """
    changes, has_tower = CHANGES[preset], family.startswith("llava")
    if has_tower:
        changes = {f"text_config.{name}": value for name, value in changes.items()} | TOWER[preset]
    write_random(tmp_path, family, rng, changes=changes)
    checkpoint = Checkpoint(tmp_path)
    limits = Limits(tokens=64, step=4, resident=6)
    machine = compile_model(checkpoint, Config.preset(preset), limits, Retrieval(ratio=0.5, hamming_threshold=3))
    run, session = ModelRun(machine), machine.session()
    for _ in range(3):
        if has_tower:
            session.frame(rng.integers(256, size=(16, 24, 3), dtype=np.uint8))
        else:
            session.features(bf16.encode(rng.standard_normal((4, checkpoint.spec.text.hidden))))
    question = rng.integers(checkpoint.spec.text.vocabulary, size=6).tolist()
    answer = list(session.ask(question, count=4))
    assert answer and sum(sum(step.retrieved.fetched) for step in session.steps) > 0
    run.check(seed=seed)
    print(f"{len(run.cycles)} programs, {sum(run.cycles)} cycles")


def test_first_difference_is_named(tmp_path, rng):
    """One bit of the final norm's weights differs in the memory of the simulated core."""
    write_random(tmp_path, "llama", rng)
    machine = compile_model(Checkpoint(tmp_path), Config.preset("tiny"), Limits(tokens=64, step=4, resident=6))
    run, session = ModelRun(machine), machine.session()
    session.prompt([5], answer=True)
    run.device[machine.decoder.norm * run.word + 1] ^= 1
    with pytest.raises(ModelMismatch, match=r"^element \d+ of the logits of program 0 must be 0x\w+, got 0x\w+$"):
        run.check()
