"""The memory wrappers against a list, in Amaranth's own simulator."""

import numpy as np
import pytest
from amaranth.sim import Simulator

from hw.common.memory import BufferedRam, LatchRam, Ram, SinglePortRam


@pytest.mark.parametrize("memory", [Ram, LatchRam])
@pytest.mark.parametrize("words", [1, 2, 4])
def test_matches_a_list(words, memory, rng):
    dut = memory(depth=8, width=6, words=words)
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


@pytest.mark.parametrize("words", [1, 2, 4])
def test_single_port_memory_reads_in_cycles_without_a_write(words, rng):
    dut = SinglePortRam(depth=8, width=6, words=words)
    model = np.zeros((8, words), int)

    async def bench(ctx):
        held = None
        for _ in range(400):
            w_addr, r_addr = (int(v) for v in rng.integers(0, 8, 2))
            mask, enable = int(rng.integers(0, 1 << words)) * int(rng.integers(0, 2)), int(rng.integers(0, 2))
            data = [int(v) for v in rng.integers(0, 64, words)]
            for port, value in ((dut.w_addr, w_addr), (dut.w_mask, mask), (dut.r_addr, r_addr), (dut.r_en, enable)):
                ctx.set(port, value)
            for k, value in enumerate(data):
                ctx.set(dut.w_data[k], value)
                model[w_addr, k] = value if mask >> k & 1 else model[w_addr, k]
            await ctx.tick()
            held = model[r_addr].tolist() if enable and not mask else held
            if held:
                assert [ctx.get(dut.r_data[k]) for k in range(words)] == held

    sim = Simulator(dut)
    sim.add_clock(1e-6)
    sim.add_testbench(bench)
    sim.run()


@pytest.mark.parametrize("words", [1, 2, 4])
def test_buffered_memory_returns_the_words_of_earlier_writes(words, rng):
    """Between two writes there is a cycle without a read, which can be that of the second write."""
    dut = BufferedRam(depth=8, width=6, words=words)
    model = np.zeros((8, words), int)

    async def bench(ctx):
        waits = False  # no cycle without a read since the last write
        for _ in range(600):
            w_addr, r_addr = (int(v) for v in rng.integers(0, 8, 2))
            enable = int(rng.integers(0, 2))
            mask = 0 if waits and enable else int(rng.integers(0, 1 << words))
            data = [int(v) for v in rng.integers(0, 64, words)]
            for port, value in ((dut.w_addr, w_addr), (dut.w_mask, mask), (dut.r_addr, r_addr), (dut.r_en, enable)):
                ctx.set(port, value)
            for k, value in enumerate(data):
                ctx.set(dut.w_data[k], value)
                model[w_addr, k] = value if mask >> k & 1 else model[w_addr, k]
            waits = bool(mask) or (waits and bool(enable))
            await ctx.tick()
            if enable:
                assert [ctx.get(dut.r_data[k]) for k in range(words)] == model[r_addr].tolist()

    sim = Simulator(dut)
    sim.add_clock(1e-6)
    sim.add_testbench(bench)
    sim.run()


def test_latches_are_for_few_rows():
    with pytest.raises(ValueError, match="depth must be at most 16, got 17"):
        LatchRam(depth=17, width=4)


def test_bits():
    assert Ram(depth=1024, width=32).bits == 32768
    assert Ram(depth=512, width=32, words=2).bits == 32768


@pytest.mark.parametrize("change", [{"depth": 0}, {"width": -1}, {"words": 0}], ids=str)
def test_rejects(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        Ram(**{"depth": 4, "width": 4, **change})
