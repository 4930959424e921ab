"""Pipelines: optional pipeline registers, a skid buffer, and back-pressure for pipelines of fixed latency."""

from collections.abc import Iterable

from amaranth import Module, Mux, Signal, Value
from amaranth.hdl import ShapeLike, ValueLike
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out


class RegisterStages:
    """The positions of a pipeline that have a register.

    Parameters
    ----------
    positions : all positions where the pipeline can have a register, in order
    selected : the positions that have one

    Raises
    ------
    ValueError
        For a selected position that is not in `positions`.
    """

    def __init__(self, positions: Iterable[str], selected: Iterable[str]):
        positions, selected = tuple(positions), tuple(selected)
        if unknown := [position for position in selected if position not in positions]:
            raise ValueError(f"register position must be one of {', '.join(positions)}, got {unknown[0]!r}")
        self.selected = tuple(position for position in positions if position in selected)

    @property
    def latency(self) -> int:
        """Cycles from input to output: one for each register."""
        return len(self.selected)

    def at(self, m: Module, position: str, name: str, value: ValueLike, enable: Value | None = None) -> Signal:
        """`value` after the register at `position`; `value` itself when the position has no register.

        The register changes only in cycles with `enable`, so that its clock can be gated; None: in every cycle.
        """
        value = Value.cast(value)
        register = Signal(len(value), name=name, reset_less=True)
        if position not in self.selected:
            m.d.comb += register.eq(value)
        elif enable is None:
            m.d.sync += register.eq(value)
        else:
            with m.If(enable):
                m.d.sync += register.eq(value)
        return register


class SkidBuffer(wiring.Component):
    """Two entries between two streams, with registers for valid, ready and payload: no combinational path either way.

    Timing: one beat per cycle; a beat is at `o` one cycle after it was accepted at `i`.

    Parameters
    ----------
    shape : payload of the streams

    Members
    -------
    i, o : the stream before and after the registers
    """

    def __init__(self, shape: ShapeLike):
        super().__init__({"i": In(stream.Signature(shape)), "o": Out(stream.Signature(shape))})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        input_bits, output_bits = Value.cast(self.i.payload), Value.cast(self.o.payload)
        spare, full = Signal(len(input_bits), reset_less=True), Signal()  # the second entry
        m.d.comb += self.i.ready.eq(~full)
        with m.If(~self.o.valid | self.o.ready):
            m.d.sync += [
                self.o.valid.eq(full | self.i.valid),
                output_bits.eq(Mux(full, spare, input_bits)),
                full.eq(0),
            ]
        with m.Elif(self.i.valid & ~full):
            m.d.sync += [full.eq(1), spare.eq(input_bits)]
        return m


class CreditGate(wiring.Component):
    """Back-pressure by credits for a pipeline of fixed latency whose registers have no enable.

    An output FIFO buffers the results. A beat enters the pipeline only while the FIFO has a free entry for its result,
    so the pipeline never has to stop. Wide pipeline registers therefore need no enable, and there is no combinational
    path from `o.ready` to the ready of the input.

    Timing: one beat per cycle; adds two cycles to the latency of the pipeline. `ready` depends on registers only.

    Parameters
    ----------
    shape : payload of a result
    stages : cycles from an accepted beat to its result at `result`, at least 0

    Members
    -------
    ready : a beat may enter in this cycle
    take : a beat that produces a result enters in this cycle; only while `ready`
    done, result : a result leaves the pipeline in this cycle, `stages` cycles after its `take`
    o : stream of results

    Raises
    ------
    ValueError
        When `stages` is negative.
    """

    def __init__(self, shape: ShapeLike, *, stages: int):
        if stages < 0:
            raise ValueError(f"stages must be at least 0, got {stages}")
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
        """Entries of the output FIFO: one for each cycle between the use of a credit and its return."""
        return self.stages + 3

    def elaborate(self, platform: object) -> Module:
        m = Module()
        payload, result = Value.cast(self.o.payload), Value.cast(self.result)
        m.submodules.fifo = fifo = SyncFIFOBuffered(width=len(result), depth=self.depth)
        used = Signal(range(self.depth + 1))  # credits: entries that are filled or reserved
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
    """`valid` as it was `cycles` cycles before; 0 after reset."""
    for cycle in range(1, cycles + 1):
        valid_d = Signal(name=f"{name}{cycle}")
        m.d.sync += valid_d.eq(valid)
        valid = valid_d
    return valid
