"""Pipelines: registers at named positions, between two streams, and a pipeline that never stalls behind a stream."""

from collections.abc import Iterable

from amaranth import Module, Mux, Signal, Value
from amaranth.hdl import ShapeLike, ValueLike
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out


class Cuts:
    """Where the registers of a pipeline stand: those of its positions that were chosen.

    Parameters
    ----------
    positions : every place where a register can stand, in order
    chosen : where one stands; `ValueError` for an unknown place
    """

    def __init__(self, positions: Iterable[str], chosen: Iterable[str]):
        positions, chosen = tuple(positions), tuple(chosen)
        if unknown := [cut for cut in chosen if cut not in positions]:
            raise ValueError(f"cuts has {unknown[0]!r}: must be of {', '.join(positions)}")
        self.chosen = tuple(position for position in positions if position in chosen)

    @property
    def latency(self) -> int:
        """Cycles from end to end."""
        return len(self.chosen)

    def at(self, m: Module, position: str, name: str, value: ValueLike) -> Signal:
        """`value` behind the register at `position`, if there is one."""
        value = Value.cast(value)
        held = Signal(len(value), name=name, reset_less=True)
        m.d["sync" if position in self.chosen else "comb"] += held.eq(value)
        return held


class SkidBuffer(wiring.Component):
    """Registers between two streams, of valid, payload and ready alike: no path leads through it, either way.

    Timing: full throughput; a beat is offered in the cycle after it was taken. Two beats fit.

    Members
    -------
    i, o : the same stream
    """

    def __init__(self, shape: ShapeLike):
        super().__init__({"i": In(stream.Signature(shape)), "o": Out(stream.Signature(shape))})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        came, given = Value.cast(self.i.payload), Value.cast(self.o.payload)
        spare, full = Signal(len(came), reset_less=True), Signal()
        m.d.comb += self.i.ready.eq(~full)
        with m.If(~self.o.valid | self.o.ready):
            m.d.sync += [self.o.valid.eq(full | self.i.valid), given.eq(Mux(full, spare, came)), full.eq(0)]
        with m.Elif(self.i.valid & ~full):
            m.d.sync += [full.eq(1), spare.eq(came)]
        return m


class CreditGate(wiring.Component):
    """Back-pressure for a pipeline of fixed latency whose registers have no enable.

    A beat enters only while a place is left for its result in the output FIFO, so the pipeline never has to stop: wide
    registers need no enable, and no path leads from `o.ready` to the ready of the input.

    Timing: full throughput; adds two cycles after the pipeline. `ready` is a register.

    Parameters
    ----------
    shape : payload of a result
    stages : cycles from an accepted beat to its result at `result`

    Members
    -------
    ready : a beat may enter in this cycle
    take : a beat that will have a result enters in this cycle; only while `ready`
    done, result : a result leaves the pipeline in this cycle, `stages` cycles after its `take`
    o : stream of results
    """

    def __init__(self, shape: ShapeLike, *, stages: int):
        if stages < 0:
            raise ValueError(f"stages = {stages}: must be at least 0")
        self.shape, self.stages = shape, stages
        super().__init__(
            {
                "ready": Out(1),
                "take": In(1),
                "done": In(1),
                "result": In(shape),
                "o": Out(stream.Signature(shape)),
            }
        )

    @property
    def depth(self) -> int:
        """Places of the output FIFO: one for every cycle from taking a credit to getting it back."""
        return self.stages + 3

    def elaborate(self, platform: object) -> Module:
        m = Module()
        payload, result = Value.cast(self.o.payload), Value.cast(self.result)
        m.submodules.fifo = fifo = SyncFIFOBuffered(width=len(result), depth=self.depth)
        used = Signal(range(self.depth + 1))
        back = Signal()
        m.d.comb += [
            back.eq(self.o.valid & self.o.ready),
            fifo.w_data.eq(result),
            fifo.w_en.eq(self.done),
            payload.eq(fifo.r_data),
            self.o.valid.eq(fifo.r_rdy),
            fifo.r_en.eq(back),
            self.ready.eq(used != self.depth),
        ]
        m.d.sync += used.eq((used + self.take - back)[: len(used)])
        return m


def delay(m: Module, name: str, valid: Signal, cycles: int) -> Signal:
    """`valid` as it was `cycles` cycles ago; 0 after reset."""
    for cycle in range(1, cycles + 1):
        later = Signal(name=f"{name}{cycle}")
        m.d.sync += later.eq(valid)
        valid = later
    return valid
