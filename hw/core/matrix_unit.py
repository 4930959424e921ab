"""The MATRIX unit: the matrix engine with its operand memory, results to device memory."""

# mypy: disable-error-code="assignment,arg-type"

import enum

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hw.arith.formats import to_bf16
from hw.axi.engines import words_written
from hw.axi.ports import JOB, WORD_BITS
from hw.common.fork import fork
from hw.config import Config
from hw.core.lengths import LENGTH_BITS, block_count, clipped_count, length, lengths_layout
from hw.core.sequencer import COMMAND, fields, view
from hw.lxe.dpe import DPE
from hw.lxe.memory import OperandMemory

MAX_UNACKNOWLEDGED = 4  # commands of which all results have left, and memory has not acknowledged them


class LengthLimit(enum.IntEnum):
    """What the length of a command limits."""

    NOTHING = 0
    RESULTS = 1
    INPUTS = 2


class MatrixUnit(wiring.Component):
    """Executes MULTIPLY: one part reads weights, one activations, one stores results; each goes on to the next command
    by itself. A command is complete when memory has acknowledged its results.

    Timing: as the engine's; a command starts two cycles after it came.

    Members
    -------
    i : stream of COMMAND ; complete : one of them is, in order ; lengths : run-time lengths
    read : the operands of one of them have been read, in order
    load : stream of rows for the operand memory
    job, words, stored : of a writer
    stat_busy : the engine takes a beat
    """

    def __init__(self, config: Config):
        self.config = config
        self.engine, self.memory = DPE.from_config(config), OperandMemory.from_config(config)
        self.width = config.dpe_inputs
        self.word = 16 * self.width
        if self.engine.loads & (self.engine.loads - 1):
            raise ValueError(f"dpe_trees / dpe_load_rows = {self.engine.loads}: must be a power of two")
        super().__init__(
            {
                "i": In(stream.Signature(COMMAND)),
                "complete": Out(1),
                "read": Out(1),
                "lengths": In(lengths_layout(config.kv_heads)),
                "load": In(stream.Signature(self.memory.write)),
                "job": Out(stream.Signature(JOB)),
                "words": Out(stream.Signature(words_written(self.word))),
                "stored": In(1),
                "stat_busy": Out(1),
            }
        )
        self.order = data.StructLayout({**fields("MULTIPLY").members, "nothing": 1})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.engine, m.submodules.memory = engine, memory = self.engine, self.memory
        wiring.connect(m, wiring.flipped(self.load), memory.i_write)
        wiring.connect(m, memory.o_weights, engine.i_weights)
        wiring.connect(m, memory.o_activations, engine.i)
        m.d.comb += self.stat_busy.eq(engine.i.valid & engine.i.ready)

        # the command with its lengths
        given = view(self.i.payload, "MULTIPLY")
        total = block_count(m, "blocks", length(m, "length", self.lengths, given, self.config.kv_heads), self.width)
        m_blocks = clipped_count(m, "m_blocks", total, given.block, given.m_blocks)
        k_blocks = clipped_count(m, "k_blocks", total, given.block, given.k_blocks)
        order, valid = Signal(self.order), Signal()
        inputs, results = given.limit == LengthLimit.INPUTS, given.limit == LengthLimit.RESULTS
        resolved = {
            **{name: given[name] for name in fields("MULTIPLY").members},
            "m_blocks": Mux(results, m_blocks, given.m_blocks),
            "k_blocks": Mux(inputs, k_blocks, given.k_blocks),
            "first": Mux(inputs, given.block == 0, given.first),
            "last": Mux(inputs, given.block + given.k_blocks >= total, given.last),
        }
        resolved["nothing"] = (resolved["m_blocks"] == 0) | (resolved["k_blocks"] == 0) | (given.vectors == 0)
        source = stream.Signature(self.order).create(path=("order",))
        parts = [stream.Signature(1).create(path=(name,)) for name in ("weigh", "feed", "store")]
        fork(m, "order", source, parts)
        m.d.comb += [source.valid.eq(valid), self.i.ready.eq(~valid | source.ready)]
        with m.If(self.i.ready):
            m.d.sync += [valid.eq(self.i.valid), *(order[name].eq(value) for name, value in resolved.items())]
        # no part is more than two commands ahead of another
        ends = self._weigh(m, parts[0], order), self._feed(m, parts[1], order)
        counts = [Signal(2, name=f"read_by_{name}") for name in ("weigh", "feed")]
        m.d.comb += self.read.eq(Cat(count != 0 for count in counts).all())
        m.d.sync += [count.eq(count + end - self.read) for count, end in zip(counts, ends, strict=True)]
        self._store(m, parts[2], order)
        return m

    def _weigh(self, m: Module, source: stream.Interface, order: data.View) -> Signal:
        """Places of weights: tile after tile, inputs inside results. High when it has read those of a command."""
        now, memory, loads = Signal(self.order), self.memory, self.engine.loads
        tile, line, mb, kb = Signal(16), Signal(16), Signal(LENGTH_BITS), Signal(LENGTH_BITS)
        group, busy, end = Signal(range(max(2, loads))), Signal(), Signal()
        m.d.comb += [
            source.ready.eq(~busy),
            end.eq(source.valid & source.ready & order.nothing),
            memory.i_weights.valid.eq(busy),
            memory.i_weights.payload.eq((tile * loads + group)[: len(memory.i_weights.payload)]),
        ]
        with m.If(source.valid & source.ready):
            m.d.sync += [now.eq(order), busy.eq(~order.nothing), tile.eq(order.weights), line.eq(order.weights)]
            m.d.sync += [counter.eq(0) for counter in (mb, kb, group)]
        with m.If(busy & memory.i_weights.ready):
            m.d.sync += group.eq(Mux(group == loads - 1, 0, group + 1))
            with m.If(group == loads - 1):
                m.d.sync += [kb.eq(kb + 1), tile.eq(tile + now.k_stride)]
                with m.If(kb + 1 == now.k_blocks):
                    m.d.sync += [kb.eq(0), mb.eq(mb + 1), tile.eq(line + now.m_stride), line.eq(line + now.m_stride)]
                    with m.If(mb + 1 == now.m_blocks):
                        m.d.comb += end.eq(1)
                        m.d.sync += busy.eq(0)
        return end

    def _feed(self, m: Module, source: stream.Interface, order: data.View) -> Signal:
        """Places of activations: each vector for each tile. High when it has read those of a command."""
        now, memory = Signal(self.order), self.memory
        mb, kb, t = Signal(LENGTH_BITS), Signal(LENGTH_BITS), Signal(8)
        place, slot, base = Signal(16), Signal(16), Signal(16)
        busy, end = Signal(), Signal()
        read = memory.i_activations.payload
        m.d.comb += [
            source.ready.eq(~busy),
            end.eq(source.valid & source.ready & order.nothing),
            memory.i_activations.valid.eq(busy),
            read.row.eq((place + kb)[: len(read.row)]),
            read.slot.eq((base + t)[: len(read.slot)]),
            read.first.eq(now.first & (kb == 0)),
            read.last.eq(now.last & (kb + 1 == now.k_blocks)),
            read.release.eq(t + 1 == now.vectors),
            slot.eq(Mux(now.spread, base + now.vectors, 0)),
        ]
        with m.If(source.valid & source.ready):
            m.d.sync += [now.eq(order), busy.eq(~order.nothing), place.eq(order.activations)]
            m.d.sync += [counter.eq(0) for counter in (mb, kb, t, base)]
        with m.If(busy & memory.i_activations.ready):
            m.d.sync += [t.eq(t + 1), place.eq(place + now.x_stride)]
            with m.If(read.release):
                m.d.sync += [t.eq(0), place.eq(now.activations), kb.eq(kb + 1)]
                with m.If(kb + 1 == now.k_blocks):
                    m.d.sync += [kb.eq(0), mb.eq(mb + 1), base.eq(slot)]
                    with m.If(mb + 1 == now.m_blocks):
                        m.d.comb += end.eq(1)
                        m.d.sync += busy.eq(0)
        return end

    def _store(self, m: Module, source: stream.Interface, order: data.View) -> None:
        """Results to memory, as BF16 or FP32; the command is complete when memory has them all."""
        m.submodules.ends = ends = SyncFIFOBuffered(width=1, depth=MAX_UNACKNOWLEDGED)  # whether it has results
        now, engine, half = Signal(self.order), self.engine, self.word
        mb, t, address, line = Signal(LENGTH_BITS), Signal(8), Signal(WORD_BITS), Signal(WORD_BITS)
        busy, sends, upper = Signal(), Signal(), Signal()
        y = engine.o.payload.y
        words = Value.cast(y)
        narrow = Cat(to_bf16(m, f"narrow{k}", y[k]) for k in range(self.width))
        final, asked, put = Signal(), Signal(), Signal()
        m.d.comb += [
            final.eq((t + 1 == now.vectors) & (mb + 1 == now.m_blocks)),
            source.ready.eq(~busy),
            # a job and its words leave independently
            self.job.valid.eq(busy & sends & engine.o.valid & ~asked),
            self.job.payload.address.eq(address),
            self.job.payload.count.eq(1 + now.wide),
            self.job.payload.last.eq(final),
            self.words.valid.eq(busy & sends & engine.o.valid & ~put),
            self.words.payload.data.eq(Mux(now.wide, Mux(upper, words[half:], words[:half]), narrow)),
            self.words.payload.strobe.eq(-1),
        ]
        job_gone, words_gone, taken = Signal(), Signal(), Signal()
        m.d.comb += [
            job_gone.eq(asked | (self.job.valid & self.job.ready)),
            words_gone.eq(put | (self.words.valid & self.words.ready & (upper | ~now.wide))),
            taken.eq(job_gone & words_gone),
            engine.o.ready.eq(taken),
        ]
        m.d.sync += [asked.eq(job_gone & ~taken), put.eq(words_gone & ~taken)]
        with m.If(self.words.valid & self.words.ready & now.wide):
            m.d.sync += upper.eq(~upper)
        with m.If(source.valid & source.ready):
            m.d.sync += [now.eq(order), busy.eq(1), sends.eq(order.last & ~order.nothing)]
            m.d.sync += [mb.eq(0), t.eq(0), address.eq(order.out), line.eq(order.out)]
        with m.If(taken):
            m.d.sync += [t.eq(t + 1), address.eq((address + now.stride)[:WORD_BITS])]
            with m.If(t + 1 == now.vectors):
                following = (line + 1 + now.wide)[:WORD_BITS]
                m.d.sync += [t.eq(0), mb.eq(mb + 1), address.eq(following), line.eq(following)]
            with m.If(final):
                m.d.sync += sends.eq(0)
        read, stored = Signal(4), Signal(range(MAX_UNACKNOWLEDGED + 2))  # of commands that are not complete
        m.d.comb += [
            ends.w_en.eq(busy & ~sends),
            ends.w_data.eq(now.last & ~now.nothing),
            self.complete.eq(ends.r_rdy & (read != 0) & (~ends.r_data | (stored != 0))),
            ends.r_en.eq(self.complete),
        ]
        m.d.sync += [
            read.eq(read + self.read - self.complete),
            stored.eq((stored + self.stored - (self.complete & ends.r_data))[: len(stored)]),
        ]
        with m.If(ends.w_en & ends.w_rdy):
            m.d.sync += busy.eq(0)
