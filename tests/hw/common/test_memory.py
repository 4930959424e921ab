"""The memory wrapper against a list, in Amaranth's own simulator."""

import numpy as np
import pytest
from amaranth.sim import Simulator

from hw.common.memory import Ram


@pytest.mark.parametrize("words", [1, 2, 4])
def test_matches_a_list(words, rng):
    dut = Ram(depth=8, width=6, words=words)
    model = np.zeros((8, words), int)

    async def bench(ctx):
        held = None
        for _ in range(400):
            w_addr, r_addr = (int(v) for v in rng.integers(0, 8, 2))
            mask, enable = int(rng.integers(0, 1 << words)), int(rng.integers(0, 2))
            data = [int(v) for v in rng.integers(0, 64, words)]
            ctx.set(dut.w_addr, w_addr)
            ctx.set(dut.w_mask, mask)
            ctx.set(dut.r_addr, r_addr)
            ctx.set(dut.r_en, enable)
            for k, value in enumerate(data):
                ctx.set(dut.w_data[k], value)
                model[w_addr, k] = value if mask >> k & 1 else model[w_addr, k]
            await ctx.tick()
            if enable:  # a read that meets the write sees the new words, and holds until the next read
                held = model[r_addr].tolist()
            if held:
                assert [ctx.get(dut.r_data[k]) for k in range(words)] == held

    sim = Simulator(dut)
    sim.add_clock(1e-6)
    sim.add_testbench(bench)
    sim.run()


def test_bits():
    assert Ram(depth=1024, width=32).bits == 32768
    assert Ram(depth=512, width=32, words=2).bits == 32768


@pytest.mark.parametrize("change", [{"depth": 0}, {"width": -1}, {"words": 0}], ids=str)
def test_rejects(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        Ram(**{"depth": 4, "width": 4, **change})
