import numpy as np
import pytest
from amaranth import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.common.fork import fork
from sim.bench.run import simulate


class Three(wiring.Component):
    """One stream to three."""

    i: In(stream.Signature(8))
    o_a: Out(stream.Signature(8))
    o_b: Out(stream.Signature(8))
    o_c: Out(stream.Signature(8))

    def elaborate(self, platform):
        m = Module()
        fork(m, "copies", self.i, sinks := [self.o_a, self.o_b, self.o_c])
        m.d.comb += [sink.payload.eq(self.i.payload) for sink in sinks]
        return m


@pytest.mark.parametrize("stall", [0.0, 0.5], ids=["streaming", "stalled"])
def test_every_sink_gets_every_beat_once(stall, rng, seed):
    sent = rng.integers(0, 256, 500)
    names = ("o_a", "o_b", "o_c")
    record = simulate(Three(), "three", {"i": sent}, dict.fromkeys(names, len(sent)), stall=stall, seed=seed)
    for name in names:
        assert np.array_equal(record.outputs[name], sent)
        if not stall:
            assert (np.diff(record.cycles[name]) == 1).all()
    if stall:  # no sink waits for another: each takes some beats before the source is done with them
        assert all((record.cycles[name] < record.cycles["i"]).any() for name in names)
