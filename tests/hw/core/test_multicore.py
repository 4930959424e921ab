"""Several cores on one memory port and one link: every output, and nobody waits for long."""

import numpy as np
import pytest
from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.axi.ports import axi4_lite
from hw.axi.registers import Access, Map, Register, RegisterFile
from hw.config import Config
from hw.core.multicore import CORES, Cluster, LiteRouter
from sim.bench.axi_run import simulate
from sim.bench.layer_run import LayerRun, frames
from sim.bench.multicore_run import check


class Files(wiring.Component):
    """Register files behind a router."""

    def __init__(self, count):
        self.table = Map("test", tuple(Register(name, 32, Access.RW, "a number") for name in ("first", "second")))
        self.router = LiteRouter(count=count, address_bits=self.table.address_bits)
        super().__init__({"registers": In(axi4_lite(address_bits=self.router.address_bits)), "irq": Out(1)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.router = self.router
        wiring.connect(m, wiring.flipped(self.registers), self.router.axi)
        for k in range(self.router.count):
            m.submodules[f"file{k}"] = file = RegisterFile(self.table)
            wiring.connect(m, self.router.ports[k], file.axi)
        return m


@pytest.mark.parametrize("stall", [0.0, 0.3])
def test_router(stall, rng, seed):
    """Every access reaches the subordinate that is meant; one that is not there answers DECERR."""
    files = Files(3)
    kept, script, wanted = [0] * 6, [], []
    for _ in range(60):
        k, value = int(rng.integers(0, 8)), int(rng.integers(0, 1 << 32))
        if rng.random() < 0.5:
            script.append(["write", 4 * k, value])
            wanted.append(0 if k < 6 else 3)
            kept[k : k + 1] = [value] if k < 6 else []
        else:
            script.append(["read", 4 * k])
            wanted.append([kept[k], 0] if k < 6 else [0, 3])
    assert simulate(files, "files", {}, script=script, lite="registers", stall=stall, seed=seed).answers == wanted


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


def test_bad_sizes():
    with pytest.raises(ValueError, match="cores = 0"):
        Cluster(Config.preset("tiny"), 0)
    with pytest.raises(ValueError, match="count = 0"):
        LiteRouter(count=0, address_bits=4)
