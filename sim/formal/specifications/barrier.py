"""Specification of the barriers between cores; the docstring of the class is the property."""

from amaranth import Cat, Module, Signal
from amaranth.hdl import Assert, Assume
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.core.barrier import Barrier
from sim.formal.specifications.common import constant

COUNT_BITS = 2  # barriers are counted modulo 4, so that a difference of 1 has a sign


class BarrierSpec(wiring.Component):
    """No core passes a BARRIER before all cores of the step have started it, and none waits when all have.

    The cores of the step are cores 0 to `cores` - 1, for any `cores`. The specification counts the barriers that each
    core has passed:
    - All cores of the step are released in the same cycle, and have passed the same number of barriers.
    - A core is released only while all cores of the step wait.
    - When all of them wait, they are released within two cycles.
    - A waiting core learns of a stopped core in the next cycle.

    Assumptions: `valid` stays 1 until the core is released, and `cores` is the same for all.
    """

    def __init__(self, cores: int):
        self.cores = cores
        super().__init__(
            {
                "valid": In(cores),
                "stopped": In(cores),
                "in_step": In(range(1, cores + 1)),
                "cover_twice": Out(1),
                "cover_early": Out(1),
                "cover_broken": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.barrier = barrier = Barrier(self.cores)
        constant(m, self.in_step)
        member = [Signal(name=f"member{k}") for k in range(self.cores)]
        passed = [Signal(COUNT_BITS, name=f"passed{k}") for k in range(self.cores)]
        waits, stopped_before = Signal(self.cores), Signal(self.cores)  # in the previous cycle
        all_wait, waited = Signal(), Signal(2)  # cycles in which all cores of the step have waited
        released = Cat(port.released for port in barrier.ports)
        m.d.comb += [
            all_wait.eq(Cat(~member[k] | self.valid[k] for k in range(self.cores)).all()),
            Assume((self.in_step >= 1) & (self.in_step <= self.cores)),
            Assert(waited < 2),
            self.cover_twice.eq(passed[0] == 2),
            self.cover_early.eq(self.valid[0] & ~all_wait),
            self.cover_broken.eq(barrier.ports[0].broken),
        ]
        m.d.sync += waited.eq((waited + 1) & (all_wait & ~released.any()).replicate(2))
        for k, port in enumerate(barrier.ports):
            m.d.comb += [
                port.valid.eq(self.valid[k]),
                port.stopped.eq(self.stopped[k]),
                port.cores.eq(self.in_step),
                member[k].eq(self.in_step > k),
                Assume(~waits[k] | self.valid[k]),
                Assume(member[k] | ~self.valid[k]),
                Assert(~port.released | all_wait),
                Assert(~member[k] | (passed[k] == passed[0])),
                Assert(~member[k] | (port.released == barrier.ports[0].released)),
                Assert(port.broken == (waits[k] & Cat(member[j] & stopped_before[j] for j in range(self.cores)).any())),
            ]
            m.d.sync += [
                waits[k].eq(self.valid[k] & ~port.released),
                stopped_before[k].eq(self.stopped[k]),
                passed[k].eq(passed[k] + port.released),
            ]
        return m
