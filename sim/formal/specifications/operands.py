"""Specifications that order reads and writes of operands: no row is read before it is written, or written too early.

A program orders a LOAD and a MULTIPLY of the same rows by waits for the events LOAD and OPERANDS, which
`sim.races.check_order` tests. The sequencer issues a command only after these events. `MatrixReads` and `OperandWrites`
prove that no command accesses the operand memory after its event.
"""

from amaranth import Cat, Module, Signal, Value
from amaranth.hdl import Assert, Assume
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.common.memory import Ram
from hw.config import Config
from hw.core.matrix_unit import MatrixUnit
from hw.core.operand_fill import OperandFill
from hw.core.transpose import Transposer
from hw.lxe.operand_memory import OperandMemory
from sim.formal.specifications.common import constant, stability

OPEN_COMMANDS = 7  # commands that the specification counts


class MatrixReads(wiring.Component):
    """The matrix unit reads operands only while the event OPERANDS of an accepted command is outstanding.

    Commands and run-time lengths are arbitrary.
    """

    def __init__(self) -> None:
        self.unit = MatrixUnit(Config.preset("tiny"))
        self.modules = self.unit.engine.modules
        super().__init__(
            {
                "offer": In(1),
                "command": In(len(Value.cast(self.unit.i.payload))),
                "lengths": In(self.unit.lengths.shape()),
                "results_ready": In(2),
                "acknowledge": In(1),
                **{f"cover_{name}": Out(1) for name in ("weights", "activations", "two_open")},
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.unit = unit = self.unit
        memory, accepted = unit.memory, Signal()
        outstanding = Signal(range(OPEN_COMMANDS + 1))
        weights, activations = (read.valid & read.ready for read in (memory.i_weights, memory.i_activations))
        m.d.comb += [
            unit.i.valid.eq(self.offer),
            Value.cast(unit.i.payload).eq(self.command),
            unit.lengths.eq(self.lengths),
            unit.job.ready.eq(self.results_ready[0]),
            unit.words.ready.eq(self.results_ready[1]),
            unit.write_done.eq(self.acknowledge),
            accepted.eq(unit.i.valid & unit.i.ready),
            Assert(~(weights | activations) | (outstanding != 0)),
            Assert(~unit.operands_read | (outstanding != 0)),
            Assert(outstanding != OPEN_COMMANDS),
            self.cover_weights.eq(weights),
            self.cover_activations.eq(activations),
            self.cover_two_open.eq(outstanding == 2),
        ]
        m.d.sync += outstanding.eq(outstanding + accepted - unit.operands_read)
        return m


class OperandWrites(wiring.Component):
    """A row is written only before the command that writes it is complete, or in the cycle in which it completes.

    A write waits unchanged until the memory is ready, and its command with it.
    """

    def __init__(self) -> None:
        config = Config.preset("tiny")
        self.unit = OperandFill(OperandMemory.from_config(config), key_words=config.head_dim // config.dpe_inputs)
        super().__init__(
            {
                "offer": In(1),
                "fill": In(len(Value.cast(self.unit.fill.payload))),
                "word": In(1),
                "last": In(1),
                "ready": In(1),
                **{f"cover_{name}": Out(1) for name in ("plain", "transposed", "waits")},
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.unit = unit = self.unit
        held, same = stability(m, "write", unit.write)
        m.d.comb += [
            unit.write.ready.eq(self.ready),
            unit.fill.valid.eq(self.offer),
            Value.cast(unit.fill.payload).eq(self.fill),
            unit.words.valid.eq(self.word),
            unit.words.payload.last.eq(self.last),
            Assume(stability(m, "fill", unit.fill)[1]),
            Assume(stability(m, "words", unit.words)[1]),
            Assert(same),
            Assert(~unit.write.valid | unit.fill.valid),
            Assert(unit.fill.ready == unit.complete),
            Assert(~unit.complete | ~unit.write.valid | unit.write.ready),
            self.cover_waits.eq(held),
            self.cover_plain.eq(unit.write.valid & unit.complete & ~unit.fill.payload.transposed),
            self.cover_transposed.eq(unit.write.valid & unit.complete & unit.fill.payload.transposed),
        ]
        return m


class _CheckedRam(Ram):
    """A memory without bypass that states the duty of its user."""

    def elaborate(self, platform: object) -> Module:
        m = super().elaborate(platform)
        m.d.comb += Assert(~(self.r_en & self.w_mask.any() & (self.r_addr == self.w_addr)))
        return m


class _CheckedTransposer(Transposer):
    def bank(self) -> Ram:
        return _CheckedRam(depth=2 * self.words, width=self.item, bypass=False)


class TransposerMemory(wiring.Component):
    """The transposer never reads and writes one row of a memory in one cycle."""

    def __init__(self) -> None:
        self.unit = _CheckedTransposer(width=2, row_words=2, item=1)
        super().__init__(
            {
                "offer": In(1),
                "last": In(1),
                "words": In(range(3)),
                "ready": In(1),
                "cover_both": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.unit = unit = self.unit
        constant(m, self.words)
        m.d.comb += [
            Assume((self.words == 1) | (self.words == 2)),
            unit.cfg_row_words.eq(self.words),
            unit.i.valid.eq(self.offer),
            unit.i.payload.last.eq(self.last),
            unit.o.ready.eq(self.ready),
            self.cover_both.eq(Cat(unit.i.valid, unit.i.ready, unit.o.valid, unit.o.ready).all()),
        ]
        return m
