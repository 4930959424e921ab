"""The hybrid cache in the RTL at `tiny`: sliding window and state-space branch, two layers, bit for bit.

`ModelRun.check` compares hidden states, logits, the states of the branches and the store with the golden machine, which
has no time. So a session that is equal under several timings does not depend on latency, pauses or the number of cores.
"""

import pytest

from compiler.checkpoint import Checkpoint
from compiler.policies import HybridPolicy
from compiler.runtime import Limits, compile_model
from golden import bf16
from hw.config import Config
from sim.bench.axi import FixedTiming
from sim.bench.core_run import BASES
from sim.bench.model_run import ModelMismatch, ModelRun
from sw_model.cycles.session import SessionModel
from sw_model.media import quickcodec
from sw_model.media.clip import find_clip
from tests.compiler.checkpoints import write_random
from tests.hw.core.model_checks import check, timing

HEAVY = pytest.mark.heavy
BRANCHES = {  # the second has a rank of two words, a piece of one channel word, and three states
    "query": {"ssm_input": "query", "inner": 16, "states": 4, "rank": 2},
    "hidden": {"ssm_input": "hidden", "inner": 20, "states": 3, "width": 3, "rank": 5},
}


def recorded_session(folder, branch, cores, rng, frames):
    """Frames, a question and an answer on the golden machine, and their record."""
    write_random(folder, "llama", rng)
    checkpoint, policy = Checkpoint(folder), HybridPolicy(sink=4, recent=4, **BRANCHES[branch])
    machine = compile_model(checkpoint, Config.preset("tiny"), Limits(tokens=64, step=4), policy, cores=cores)
    run, model, session = ModelRun(machine), SessionModel(machine, timing(), BASES), machine.session()
    session.prompt([1, 2])
    for _ in range(frames):
        session.features(bf16.encode(rng.standard_normal((4, checkpoint.spec.text.hidden))))
    answer = list(session.ask(rng.integers(checkpoint.spec.text.vocabulary, size=3).tolist(), count=2))
    assert answer and any(sum(step.retrieved.released) for step in session.steps)
    return machine, run, model


@pytest.mark.parametrize(
    "branch, cores",
    [pytest.param(name, cores, marks=HEAVY) for name in BRANCHES for cores in (1, 2)],
)
def test_session_equals_the_golden_machine(branch, cores, tmp_path, rng, seed):
    """Under a fixed latency, and with random pauses of all streams on memories of another latency.

    With the fixed latency, the cycles are those that the cycle model predicts, within its error.
    """
    _, run, model = recorded_session(tmp_path, branch, cores, rng, frames=4)
    check(run, model, seed)


@HEAVY
@pytest.mark.parametrize("cores", [1, 2])
def test_frames_of_a_video(cores, tmp_path, rng, seed):
    """LLaVA with two layers sees frames of a real clip; old ones leave the window, the sink stays."""
    write_random(tmp_path, "llava-siglip", rng, changes={"vision_config.image_size": 12})
    policy, limits = HybridPolicy(sink=4, recent=4, **BRANCHES["query"]), Limits(tokens=48, step=4, pooled=2)
    machine = compile_model(Checkpoint(tmp_path), Config.preset("tiny"), limits, policy, cores=cores)
    run, session = ModelRun(machine), machine.session()
    session.prompt([1, 2])
    clip = quickcodec.decode(find_clip(tmp_path).path, times_s=range(5), size=(48, 36), workers=1)
    assert len({picture.tobytes() for picture in clip.frames}) == 5
    for picture in clip.frames:
        session.frame(picture)
    assert list(session.ask([3, 4], count=1))
    assert sum(sum(step.retrieved.released) for step in session.steps) > 1
    run.check(seed=seed, timing=timing())
    run.check(seed=seed + 1, stall=0.3, timing={"device": FixedTiming(latency=5), "host": FixedTiming(latency=40)})


def test_a_changed_state_is_noticed(tmp_path, rng):
    """One bit of the state before the first step differs in the memory of the simulated core.

    Rounding can hide it in the hidden states. Then it is noticed in the state after the step.
    """
    machine, run, _ = recorded_session(tmp_path, "query", 1, rng, frames=2)
    assert machine.state_words == (3 + 2 * 4) * 4
    run.device[(machine.contexts[0].state_word + 1) * run.word - 1] ^= 0x40
    with pytest.raises(
        ModelMismatch,
        match=r"^element \d+ of the (hidden states|states of the branches) of program 0 must be 0x\w+, got 0x\w+$",
    ):
        run.check()
