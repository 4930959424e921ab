"""QuickPrefill in the RTL at `tiny`: two layers of LLaVA, groups of frames of a real video, bit for bit.

`ModelRun.check` compares every output and the store with the golden machine, which has no time. The store names the
pages and their tokens, so equal stores have equal kept tokens.
"""

from itertools import islice

import numpy as np
import pytest

from compiler.checkpoint import Checkpoint
from compiler.policies import QuickPrefillPolicy
from compiler.runtime import Limits, compile_model
from golden import bf16
from golden.quickvideo import kept_count
from hw.config import Config
from sim.bench.axi import FixedTiming
from sim.bench.core_run import BASES
from sim.bench.model_run import ModelRun
from sw_model.cycles.session import SessionModel
from sw_model.media import quickcodec
from sw_model.media.clip import find_clip
from tests.compiler.checkpoints import write_random

HEAVY = pytest.mark.heavy


def fast():
    """Memories with a fixed latency; a timing remembers its last access, so each run has its own."""
    return {side: FixedTiming(latency=12) for side in BASES}


def slow():
    return {"device": FixedTiming(latency=5), "host": FixedTiming(latency=40)}


@HEAVY
@pytest.mark.parametrize("cores", [1, 2])
def test_session_equals_the_golden_machine(cores, tmp_path, rng, seed):
    """Groups of one piece and of several, pages that leave device memory, then an answer.

    With a fixed latency, the cycles are those that the cycle model predicts, within its error.
    """
    write_random(tmp_path, "llama", rng)
    checkpoint = Checkpoint(tmp_path)
    limits = Limits(tokens=96, step=20, resident=9)
    config = Config.preset("tiny").replace(page_frames=32)
    machine = compile_model(checkpoint, config, limits, QuickPrefillPolicy(rho=0.5), cores=cores)
    run, model, session = ModelRun(machine), SessionModel(machine, fast(), BASES), machine.session()
    session.prompt([1, 2])
    for tokens in (20, 5, 18):
        session.features(bf16.encode(rng.standard_normal((tokens, checkpoint.spec.text.hidden))))
        kept = session.steps[-1].retrieved.kept
        assert [len(own) for own in kept] == [kept_count(tokens, 0.5)] * 2
    answer = list(session.ask(rng.integers(checkpoint.spec.text.vocabulary, size=3).tolist(), count=2))
    assert answer and any(sum(step.retrieved.fetched) for step in session.steps)
    run.check(seed=seed, timing=fast())
    errors = np.array(model.cycles) / run.cycles - 1
    print(f"{len(run.cycles)} programs, {sum(run.cycles)} cycles, largest error {np.abs(errors).max():.2%}")
    assert np.abs(errors).max() < 0.05, errors
    run.check(seed=seed + 1, stall=0.3, timing=slow())


@HEAVY
@pytest.mark.parametrize("cores", [1, 2])
def test_groups_of_a_video(cores, tmp_path, rng, seed):
    """LLaVA with two layers: decoding processes feed groups of a real clip to the vision tower and the layers."""
    write_random(tmp_path, "llava-siglip", rng, changes={"vision_config.image_size": 12})
    policy = QuickPrefillPolicy(rho=0.6, group_frames=2)
    config = Config.preset("tiny").replace(page_frames=64)
    machine = compile_model(Checkpoint(tmp_path), config, Limits(tokens=48, pooled=2), policy, cores=cores)
    run, session = ModelRun(machine), machine.session()
    session.prompt([1, 2])
    for group in islice(quickcodec.groups(find_clip(tmp_path).path, 2, fps=1, size=(48, 36), workers=2), 2):
        session.frame_group([[picture] for picture in group])
        assert [len(own) for own in session.steps[-1].retrieved.kept] == [kept_count(8, 0.6)] * 2
    assert list(session.ask([3, 4], count=1))
    run.check(seed=seed, timing=fast())
    run.check(seed=seed + 1, stall=0.3, timing=slow())
