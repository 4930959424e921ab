"""Several cores on one memory port and one link: every output, and nobody waits for long."""

import numpy as np
import pytest

from hw.config import Config
from hw.core.multicore import CORES, MultiCore
from sim.bench.layer_run import LayerRun, frames
from sim.bench.multicore_run import check


def layers(count, seeds, steps):
    runs = []
    for k, seed in zip(range(count), seeds, strict=True):
        run = LayerRun("tiny", np.random.default_rng(seed), threshold=4, capacity=4, device_bytes=1 << 18, number=k)
        for x in frames(run, steps, 2):
            run.step(x)
        runs.append(run)
    return runs


@pytest.mark.heavy
@pytest.mark.parametrize("stall", [0.0, 0.2])
def test_as_many_cores_as_the_paper_has(stall, rng, seed):
    """Eight layers at once, all different: every output of every core; the checker watches both ports."""
    runs = layers(CORES, rng.integers(0, 1 << 30, CORES).tolist(), 6)
    record = check(runs, stall=stall, seed=seed)
    assert all(record.traffic[side]["beats"]["read"] for side in ("device", "host"))
    print({side: record.traffic[side]["most"] for side in record.traffic}, record.cycles)


@pytest.mark.heavy
def test_nobody_starves(seed):
    """The same work on every core at once: each step takes about as long on one as on another, and on eight cores not
    longer than eight times as long as on one."""
    alone, together = layers(1, [seed], 4), layers(CORES, [seed] * CORES, 4)
    alone[0].check(seed=seed)
    check(together, seed=seed)
    for step in alone[0].steps:
        cycles = [run.outcomes[step].cycles for run in together]
        once = alone[0].outcomes[step].cycles
        print(f"alone {once}, of eight {min(cycles)} to {max(cycles)}")
        assert max(cycles) < 1.1 * min(cycles)
        assert max(cycles) < CORES * once


def test_rejects_zero_cores():
    with pytest.raises(ValueError, match="cores = 0"):
        MultiCore(Config.preset("tiny"), 0)
