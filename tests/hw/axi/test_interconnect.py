"""Several transfer engines on one memory port: every byte, and nobody waits for long."""

from functools import cache

import numpy as np
import pytest
from amaranth import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from golden.kvmu import Descriptor
from hw.axi.interconnect import Interconnect
from hw.axi.ports import axi4
from hw.core.dma import BURST, Dma
from sim.bench.axi import FixedTiming
from sim.bench.axi_run import Image, simulate

WORD, PART, BASE = 64, 1 << 13, 0x8000_0000
UNIT = Dma(word=WORD)


class Group(wiring.Component):
    """Engines whose device ports share one memory; each has a part of it. They never use their host ports."""

    def __init__(self, count):
        self.count = count
        self.join = Interconnect(managers=count, address_bits=48, data_bits=WORD, id_bits=1)
        descriptor, done = UNIT.i_dma.payload.shape(), UNIT.o_done.payload.shape()
        super().__init__(
            {
                "memory": Out(axi4(address_bits=48, data_bits=WORD, id_bits=1 + self.join.number_bits)),
                **{f"i_dma{k}": In(stream.Signature(descriptor)) for k in range(count)},
                **{f"o_done{k}": Out(stream.Signature(done)) for k in range(count)},
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.join = self.join
        wiring.connect(m, self.join.memory, wiring.flipped(self.memory))
        for k in range(self.count):
            m.submodules[f"engine{k}"] = engine = Dma(word=WORD)
            wiring.connect(m, engine.device, self.join.managers[k])
            wiring.connect(m, wiring.flipped(getattr(self, f"i_dma{k}")), engine.i_dma)
            wiring.connect(m, engine.o_done, wiring.flipped(getattr(self, f"o_done{k}")))
            m.d.comb += [engine.cfg_device_base.eq(BASE + k * PART), engine.cfg_device_words.eq(PART * 8 // WORD)]
        return m


group_of = cache(Group)  # elaborated once


def copies(rng, count):
    """Copies from the lower half of a part to its upper half, whose order does not matter."""
    out, target = [], PART // 2
    while len(out) < count:
        nbytes = int(rng.integers(1, 33)) * 8
        if target + nbytes > PART:
            break
        source = int(rng.integers(0, (PART // 2 - nbytes) // 8)) * 8
        out.append(Descriptor(source, target, 0, 0, nbytes, 0, len(out) % 4, 0))
        target += nbytes
    return out


def run(group, moved, rng, **options):
    image = rng.integers(0, 256, PART * group.count, np.uint8).tobytes()
    names = ("source", "target", "bytes", "tag")
    record = simulate(
        group,
        "group",
        {"memory": Image(image, start=BASE, longest=BURST, **options.pop("memory", {}))},
        inputs={f"i_dma{k}": {n: np.array([getattr(d, n) for d in part]) for n in names} for k, part in moved.items()},
        outputs={f"o_done{k}": len(part) for k, part in moved.items()},
        **options,
    )
    want = bytearray(image)
    for k, part in moved.items():
        for d in part:
            source, target = k * PART + d.source, k * PART + d.target
            want[target : target + d.bytes] = want[source : source + d.bytes]
    assert record.images["memory"] == bytes(want)
    return record


@pytest.mark.parametrize("stall", [0.0, 0.4])
def test_every_byte_of_everybody(stall, rng, seed):
    group = group_of(3)
    moved = {k: copies(rng, 25) for k in range(3)}
    run(group, moved, rng, stall=stall, seed=seed, memory={"stall": stall, "timing": FixedTiming(latency=10)})


def test_nobody_starves(rng, seed):
    """Two engines ask all the time, a third for one word at a time: its copies take no longer than they must."""
    group = group_of(3)
    long = [Descriptor(0, PART // 2, 0, 0, PART // 2, 0, 0, 0)]
    moved = {0: long, 1: long, 2: [Descriptor(8 * n, PART // 2 + 8 * n, 0, 0, 8, 0, 0, 0) for n in range(30)]}
    ends = {}
    for count in (3, 1):  # with the others, and alone
        busy = {k: part if k >= 3 - count else part[:1] for k, part in moved.items()}
        if count == 1:
            busy = {0: [Descriptor(0, PART // 2, 0, 0, 8, 0, 0, 0)], 1: [Descriptor(0, PART // 2, 0, 0, 8, 0, 0, 0)],
                    2: moved[2]}  # fmt: skip
        ends[count] = run(group, busy, rng, seed=seed, memory={"timing": FixedTiming(latency=10)}).cycles
    words = 2 * (PART // 2 * 8 // WORD)
    # read and write of the long ones overlap, so they need their words once on each channel
    assert ends[3] < words + 300
    assert ends[1] < 300


def test_rejects_bad_parameters():
    with pytest.raises(ValueError, match="managers must be at least 1, got 0"):
        Interconnect(managers=0, address_bits=48, data_bits=64, id_bits=1)
