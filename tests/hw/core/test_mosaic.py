"""Mosaic in the RTL at `tiny`: two layers, video through a LLaVA tower, splits at once and deferred, bit for bit."""

from dataclasses import replace

import numpy as np
import pytest

from compiler.checkpoint import Checkpoint
from compiler.policies import MosaicPolicy
from compiler.runtime import Limits, compile_model
from hw.config import Config
from sim.bench.axi import FixedTiming
from sim.bench.core_run import BASES
from sim.bench.model_run import ModelRun
from sw_model.cycles.session import SessionModel
from sw_model.media.clip import encode, synthesise
from sw_model.media.video import decode
from tests.compiler.checkpoints import write_random

TINY = Config.preset("tiny").replace(page_frames=256, max_candidates=64)
POLICY = MosaicPolicy(budget=8, top_visual=2, tau_visual=0.06, tau_min=0.02, tau_max=0.1, lambda_=4.0)
STEP, SCENE = 3, 12  # frames of the clip from one picture to the next, and in a scene


def pictures(folder, count):
    """Pictures of a decoded video whose scenes return."""
    frames = synthesise(STEP * count, width=64, height=48, scene_frames=SCENE, noise=1.0, seed=3)
    return [frame.rgb() for frame in decode(encode(frames, folder / "clip.mp4", gop=8))][::STEP]


def machine_of(folder, cores=1, prefetch="same_layer", **limits):
    """A small model with random weights on some cores."""
    write_random(folder, "llava", np.random.default_rng(0))
    policy = replace(POLICY, prefetch=prefetch)
    return compile_model(Checkpoint(folder), TINY, Limits(step=4, pooled=2, **limits), policy, cores=cores)


def deferred_splits(index):
    """Entries that waited for a split and do not wait any more."""
    return index.deferred - sum(cluster.parent is not None for cluster in index.clusters.values())


@pytest.mark.heavy
@pytest.mark.parametrize("cores, prefetch", [(1, "same_layer"), (2, "same_layer"), (1, "next_layer")])
def test_session_equals_the_golden_machine(cores, prefetch, tmp_path, seed):
    """Under a fixed latency, and with random pauses of all streams on memories of another latency.

    With the fixed latency, the cycles are those that the cycle model predicts, within its error.
    """
    machine = machine_of(tmp_path, cores, prefetch, tokens=96, resident=24)
    timing = {side: FixedTiming(latency=12) for side in BASES}
    run, model, session = ModelRun(machine), SessionModel(machine, timing, BASES), machine.session()
    session.prompt([1, 2])
    for picture in pictures(tmp_path, 12):
        session.frame(picture)
    assert list(session.ask([7, 11, 13], count=2))
    cache = session.host.cache
    assert len(cache.means) > 2 and all(index.splits for index in cache.layers)
    assert any(map(deferred_splits, cache.layers))
    assert sum(sum(step.retrieved.fetched) for step in session.steps) > 0
    run.check(seed=seed, timing=timing)
    errors = np.array(model.cycles) / run.cycles - 1
    print(
        f"{len(run.cycles)} programs, {sum(run.cycles)} cycles, predicted {sum(model.cycles)}; errors {errors.round(4)}"
    )
    assert abs(sum(model.cycles) / sum(run.cycles) - 1) < 0.02 and np.abs(errors).max() < 0.05, errors
    run.check(seed=seed + 1, stall=0.3, timing={"device": FixedTiming(latency=5), "host": FixedTiming(latency=40)})


@pytest.mark.heavy
def test_moves_equal_the_golden_machine(tmp_path, seed):
    """Text, four frames and a split: the commands MOVE of both layers, and a SELECT with token counts of its own."""
    machine = machine_of(tmp_path, tokens=64)
    run, session = ModelRun(machine), machine.session()
    session.prompt([1])
    moves = np.zeros(2, int)
    for picture in pictures(tmp_path, 4):
        session.frame(picture)
        moves += [len(own) for own in session.host.moves]
    assert moves.all() and np.any(session.steps[-1].retrieved.attended)
    run.check(seed=seed, stall=0.2)
