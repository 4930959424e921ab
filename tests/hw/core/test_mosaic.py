"""Mosaic in the RTL at `tiny`: two layers, video through a LLaVA tower, splits at once and deferred, bit for bit."""

import numpy as np
import pytest

from compiler.checkpoint import Checkpoint
from compiler.runtime import Limits, compile_model
from hw.config import Config
from sim.bench.axi import FixedTiming
from sim.bench.model_run import ModelRun
from tests.compiler.checkpoints import write_random
from tests.compiler.test_mosaic import POLICY, scenes

TINY = Config.preset("tiny").replace(page_frames=128, max_candidates=64)


@pytest.mark.heavy
@pytest.mark.parametrize("cores", [1, 2])
def test_session_equals_the_golden_machine(cores, tmp_path, rng, seed):
    """Under a fixed latency, and with random pauses of all streams on memories of another latency."""
    write_random(tmp_path, "llava", rng)
    limits = Limits(tokens=96, step=4, resident=24, pooled=2)
    machine = compile_model(Checkpoint(tmp_path), TINY, limits, POLICY, cores=cores)
    run, session = ModelRun(machine), machine.session()
    session.prompt([1, 2])
    for picture in scenes(rng):
        session.frame(picture)
    assert list(session.ask(rng.integers(40, size=3).tolist(), count=2))
    layers = session.host.cache.layers
    assert sum(index.splits for index in layers) > 0 and sum(index.deferred for index in layers) > 0
    assert sum(sum(step.retrieved.fetched) for step in session.steps) > 0
    run.check(seed=seed, timing={side: FixedTiming(latency=12) for side in ("device", "host")})
    print(f"{len(run.cycles)} programs, {sum(run.cycles)} cycles")
    run.check(seed=seed + 1, stall=0.3, timing={"device": FixedTiming(latency=5), "host": FixedTiming(latency=40)})


@pytest.mark.heavy
def test_moves_equal_the_golden_machine(tmp_path, rng, seed):
    """Text, two frames and a split: the commands MOVE of both layers, and a SELECT with token counts of its own."""
    write_random(tmp_path, "llava", rng)
    machine = compile_model(Checkpoint(tmp_path), TINY, Limits(tokens=64, step=4, pooled=2), POLICY)
    run, session = ModelRun(machine), machine.session()
    session.prompt([1])
    moves = 0
    for picture in scenes(rng)[:4]:
        session.frame(picture)
        moves += sum(map(len, session.host.moves))
    assert moves > 0 and np.any([step.retrieved.attended for step in session.steps][-1])
    run.check(seed=seed, stall=0.2)
