"""Checks of a recorded session in the RTL: equal bits under several timings, and the cycles of the cycle model."""

import numpy as np

from sim.bench.axi import FixedTiming
from sim.bench.core_run import BASES
from sim.bench.model_run import ModelRun
from sw_model.cycles.session import SessionModel


def timing() -> dict[str, FixedTiming]:
    """Memories with a fixed latency."""
    return {side: FixedTiming(latency=12) for side in BASES}


def check(run: ModelRun, model: SessionModel, seed: int) -> None:
    """Simulate with a fixed latency, then with random pauses of all streams on memories of another latency.

    `model` predicts cycles with `timing()`: those of a program within 5 %, those of all programs within 2 %.
    """
    run.check(seed=seed, timing=timing())
    errors = np.array(model.cycles) / run.cycles - 1
    assert abs(sum(model.cycles) / sum(run.cycles) - 1) < 0.02 and np.abs(errors).max() < 0.05, errors
    print(f"{len(run.cycles)} programs, {sum(run.cycles)} cycles, largest error {np.abs(errors).max():.2%}")
    run.check(seed=seed + 1, stall=0.3, timing={"device": FixedTiming(latency=5), "host": FixedTiming(latency=40)})
