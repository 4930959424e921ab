"""A model of two layers in the RTL: frames, a question and an answer, bit for bit as on the golden machine.

The cycles of each step are those that the cycle model predicts, within its error.
"""

import numpy as np
import pytest

from compiler.checkpoint import Checkpoint
from compiler.policies import FullPolicy, ResvPolicy
from compiler.runtime import Limits, compile_model
from golden import bf16
from golden.language_model import greedy
from golden.resv import PREFETCH
from hw.config import Config
from sim.bench.axi import FixedTiming
from sim.bench.core_run import BASES
from sim.bench.model_run import ModelMismatch, ModelRun
from sw_model.cycles.session import SessionModel
from tests.compiler.checkpoints import write_random
from tests.compiler.test_runtime import golden_model
from tests.compiler.test_weights import Decoded

FAMILIES = ("llama", "qwen2", "llava", "llava-siglip", "qwen2.5-vl")
CHANGES = {  # of the checkpoint by preset, so that its words fit those of the core
    "tiny": {},
    "small": {"hidden_size": 128, "intermediate_size": 192, "head_dim": 32},
}
TOWER = {  # of four patches, so that a simulation is short
    "tiny": {"vision_config.image_size": 8, "vision_config.num_hidden_layers": 2},
    "small": {"vision_config.image_size": 8, "vision_config.hidden_size": 32, "vision_config.intermediate_size": 48},
}
QWEN = {  # a layer with windows and one without; heads of the decoder with the 16 pairs that `small` has
    "tiny": {"vision_config.depth": 2},
    "small": {
        "vision_config.depth": 2, "vision_config.hidden_size": 64, "vision_config.intermediate_size": 80,
        "vision_config.out_hidden_size": 128, "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]},
    },
}  # fmt: skip
LIMITS = {
    "qwen2.5-vl": {"height": 8, "width": 24},  # three tokens of four patches, in windows of two tokens and one
    "llava-siglip": {"pooled": 2},
}
SIGLIP = {"vision_config.image_size": 12}  # nine patches, of which neighbouring averages have some in common
HEAVY = pytest.mark.heavy


def timing():
    return {side: FixedTiming(latency=12) for side in BASES}


CASES = [
    *[(family, "tiny", 1, "same_layer") for family in FAMILIES],
    *[("llama", "tiny", 2, prefetch) for prefetch in PREFETCH],
    *[pytest.param(family, "tiny", 2, "same_layer", marks=HEAVY) for family in FAMILIES[1:]],
    *[pytest.param("llama", "tiny", 4, prefetch, marks=HEAVY) for prefetch in PREFETCH],  # two share a KV head
    *[pytest.param(family, "small", 1, "same_layer", marks=HEAVY) for family in FAMILIES],
    pytest.param("llama", "small", 1, "next_layer", marks=HEAVY),
]


@pytest.mark.parametrize("family, preset, cores, prefetch", CASES)
def test_frames_and_answer(family, preset, cores, prefetch, tmp_path, rng, seed):
    """Three frames, a question of six tokens, four answer tokens; old pages come back from host memory.

    Frames are visual tokens from elsewhere, or pictures of a model with a vision tower. A frame of Qwen2.5-VL has two
    pictures and a time. The frames of LLaVA with SigLIP are pooled.
    """
    changes, is_qwen = CHANGES[preset], family == "qwen2.5-vl"
    if is_qwen:
        changes = changes | QWEN[preset]
    elif family.startswith("llava"):
        changes = {f"text_config.{name}": value for name, value in changes.items()} | TOWER[preset]
        changes |= SIGLIP if family == "llava-siglip" else {}
    write_random(tmp_path, family, rng, changes=changes)
    checkpoint = Checkpoint(tmp_path)
    limits = Limits(tokens=64, step=4, resident=6, **LIMITS.get(family, {}))
    retrieval = ResvPolicy(ratio=0.5, hamming_threshold=3, prefetch=prefetch)
    machine = compile_model(checkpoint, Config.preset(preset), limits, retrieval, cores=cores)
    run, model, session = ModelRun(machine), SessionModel(machine, timing(), BASES), machine.session()
    for number in range(3):
        if machine.vision is not None:
            pictures = rng.integers(256, size=(1 + is_qwen, 16, 24, 3), dtype=np.uint8)
            session.frame(*pictures, seconds=number / 2 if is_qwen else None)
        else:
            session.features(bf16.encode(rng.standard_normal((4, checkpoint.spec.text.hidden))))
    if is_qwen:  # the positions in time of the frames are 0, 1 and 2, and their columns are 0 to 2
        assert machine.vision.shape.segments(0) == [(0, 8), (8, 4)]
        assert (session.position, session.positions.next) == (9, 3)
    question = rng.integers(checkpoint.spec.text.vocabulary, size=6).tolist()
    answer = list(session.ask(question, count=4))
    assert answer and sum(sum(step.retrieved.fetched) for step in session.steps) > 0
    run.check(seed=seed, timing=timing())
    errors = np.array(model.cycles) / run.cycles - 1
    assert abs(sum(model.cycles) / sum(run.cycles) - 1) < 0.02 and np.abs(errors).max() < 0.05, errors
    print(f"{len(run.cycles)} programs, {sum(run.cycles)} cycles")


RESV = ResvPolicy(ratio=0.5, hamming_threshold=3)
ENCODED = [  # format, family, policy, cores, bits of the KV cache; the projections of qwen2 have biases
    ("mxfp4", "llama", FullPolicy(), 1, 16),
    ("int4", "llama", RESV, 1, 16),
    ("int4", "qwen2", FullPolicy(), 1, 16),
    ("fp8", "qwen2", RESV, 1, 16),
    ("mxfp4", "llama", RESV, 2, 4),
    ("fp8", "llama", FullPolicy(), 2, 4),
]


@pytest.mark.heavy
@pytest.mark.parametrize("name, family, policy, cores, kv_bits", ENCODED)
def test_two_layers_with_encoded_weights(name, family, policy, cores, kv_bits, tmp_path, rng, seed):
    """Frames and an answer of two layers: the RTL equals the golden machine, and this golden layers, bit for bit.

    The golden layers compute with the decoded weights.
    """
    write_random(tmp_path, family, rng, changes={"num_hidden_layers": 2})
    checkpoint, preset = Checkpoint(tmp_path), Config.preset("tiny").replace(weight_bits=4, kv_bits=kv_bits)
    limits = Limits(tokens=32, step=4)
    machine = compile_model(checkpoint, policy.core(preset), limits, policy, cores=cores, weights=name)
    run, cycles, session = ModelRun(machine), SessionModel(machine, timing(), BASES), machine.session()
    model = golden_model(Decoded(checkpoint, name), machine.config, policy, limits.tokens)
    for position in (0, 4):
        rows = bf16.encode(rng.standard_normal((4, checkpoint.spec.text.hidden)))
        session.features(rows)
        model.step(rows, np.arange(position, position + 4))
    logits, _ = model.step(model.embed([3, 7]), np.arange(8, 10))
    for position, token in enumerate(session.ask([3, 7], count=2), 10):
        assert token == greedy(logits)
        np.testing.assert_array_equal(session.logits, logits)
        logits, _ = model.step(model.embed([token]), np.array([position]))
    run.check(seed=seed, timing=timing())
    assert abs(sum(cycles.cycles) / sum(run.cycles) - 1) < 0.02


def test_first_difference_is_named(tmp_path, rng):
    """One bit of the final norm's weights differs in the memory of the simulated core."""
    write_random(tmp_path, "llama", rng)
    machine = compile_model(Checkpoint(tmp_path), Config.preset("tiny"), Limits(tokens=64, step=4, resident=6))
    run, session = ModelRun(machine), machine.session()
    session.prompt([5], answer=True)
    run.device[machine.decoder.norm * run.word + 1] ^= 1
    with pytest.raises(ModelMismatch, match=r"^element \d+ of the logits of program 0 must be 0x\w+, got 0x\w+$"):
        run.check()
