"""The LOAD unit: rows of device memory, and the tokens that a head attends to, into the operand memory."""

# mypy: disable-error-code="assignment,arg-type"

import enum

from amaranth import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hw.axi.engines import words_read
from hw.axi.ports import COUNT_BITS, FAULT, JOB, WORD_BITS, Cause
from hw.core.isa import BY_NAME
from hw.core.lengths import LENGTH_BITS, block_count, clipped_count, length, lengths_layout
from hw.core.sequencer import COMMAND, view
from hw.core.transpose import Transposer
from hw.lxe.memory import OperandMemory

ROW_BITS = 16
MAX_OPEN_COMMANDS = 4  # commands whose words are on their way
LIST_ENTRY = data.StructLayout({"address": WORD_BITS, "count": 8})  # past tokens of one page for one head


class LengthLimit(enum.IntEnum):
    """What the length of a command limits."""

    NOTHING = 0
    ROWS = 1
    WORDS = 2


class LoadUnit(wiring.Component):
    """Executes LOAD and GATHER: one half asks for words, the other puts them where they belong.

    Timing: a word per cycle; a row of a LOAD asks in one cycle, a token of a GATHER too, a page in two more.

    Parameters
    ----------
    memory : the operand memory ; beats : words of a key ; kv_heads : lists of tokens ; units : entries of each

    Members
    -------
    i : stream of COMMAND ; complete : one of them is ; lengths : run-time lengths
    job, words : of a reader ; write : to the operand memory
    list_head, list_at, list_en : an entry of the lists is read ; list_entry : it, a cycle later
    fault : a row beyond the operand memory
    """

    def __init__(self, memory: OperandMemory, *, beats: int, kv_heads: int, units: int):
        self.memory, self.beats, self.kv_heads = memory, beats, kv_heads
        self.width = memory.inputs
        self.word = 16 * self.width
        super().__init__(
            {
                "i": In(stream.Signature(COMMAND)),
                "complete": Out(1),
                "lengths": In(lengths_layout(kv_heads)),
                "job": Out(stream.Signature(JOB)),
                "words": In(stream.Signature(words_read(self.word))),
                "write": Out(stream.Signature(memory.write)),
                "list_head": Out(range(kv_heads)),
                "list_at": Out(range(units)),
                "list_en": Out(1),
                "list_entry": In(LIST_ENTRY),
                "fault": Out(FAULT),
            }
        )
        self.fill = data.StructLayout(
            {
                "to": ROW_BITS,
                "step": ROW_BITS,
                "rows": LENGTH_BITS,
                "beats": LENGTH_BITS,
                "activations": 1,
                "tiled": 1,
                "transposed": 1,
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.fills = fills = SyncFIFOBuffered(width=self.fill.size, depth=MAX_OPEN_COMMANDS)
        self._ask(m, fills)
        self._place(m, fills)
        return m

    def _ask(self, m: Module, fills: SyncFIFOBuffered) -> None:
        """Jobs for the reader, and what becomes of their words."""
        load, gather = view(self.i.payload, "LOAD"), view(self.i.payload, "GATHER")
        gathers = self.i.payload.opcode == BY_NAME["GATHER"].code
        total = length(m, "load_length", self.lengths, load, self.kv_heads)
        total_blocks = block_count(m, "load_blocks", total, self.width)
        start, most = Signal(LENGTH_BITS), Signal(LENGTH_BITS)
        m.d.comb += [start.eq(load.block << (self.width.bit_length() - 1))]
        rows = clipped_count(m, "load_rows", total, start, load.rows)
        beats = clipped_count(m, "load_beats", total_blocks, load.block, load.beats)

        # how far the list of a head has been read
        page, have, slot = Signal(LIST_ENTRY), Signal(), Signal(8)
        entry, served, own = Signal(LENGTH_BITS), Signal(LENGTH_BITS), Signal(WORD_BITS)
        past, all_tokens, done = Signal(LENGTH_BITS), Signal(LENGTH_BITS), Signal(LENGTH_BITS)
        m.d.comb += [
            past.eq(self.lengths.tokens.as_value().word_select(gather.head, LENGTH_BITS)),
            all_tokens.eq(past + gather.tokens),
            done.eq(Mux(gather.restart, 0, served)),
            most.eq(gather.blocks << (self.width.bit_length() - 1)),
        ]
        tokens = clipped_count(m, "gather_tokens", all_tokens, done, most)

        fill, address, stride, left, values = (
            Signal(self.fill),
            Signal(WORD_BITS),
            Signal(24),
            Signal(LENGTH_BITS),
            Signal(),
        )
        m.d.comb += [fills.w_data.eq(fill), self.list_en.eq(1), self.list_at.eq(entry[: len(self.list_at)])]
        head = Signal(8)
        m.d.comb += self.list_head.eq(head[: len(self.list_head)])
        with m.FSM(name="ask"):
            with m.State("IDLE"):
                m.d.comb += self.i.ready.eq(1)
                with m.If(self.i.valid & gathers):
                    m.d.sync += [
                        fill.eq(0),
                        fill.to.eq(gather.target),
                        fill.rows.eq(tokens),
                        fill.beats.eq(self.beats),
                        fill.tiled.eq(1),
                        fill.transposed.eq(gather.values),
                        values.eq(gather.values),
                        left.eq(tokens),
                        stride.eq(gather.stride),
                        head.eq(gather.head),
                    ]
                    with m.If(gather.restart):
                        m.d.sync += [have.eq(0), entry.eq(0), served.eq(0), own.eq(gather.step_word)]
                    m.next = "GATHER"
                with m.Elif(self.i.valid):
                    m.d.sync += [
                        fill.to.eq(load.target),
                        fill.step.eq(load.step),
                        fill.rows.eq(Mux(load.limit == LengthLimit.ROWS, rows, load.rows)),
                        fill.beats.eq(Mux(load.limit == LengthLimit.WORDS, beats, load.beats)),
                        fill.activations.eq(load.activations),
                        fill.tiled.eq(load.tiled),
                        fill.transposed.eq(0),
                        address.eq(load.source),
                        stride.eq(load.stride),
                    ]
                    m.next = "LOAD"
            with m.State("LOAD"):
                m.d.comb += fills.w_en.eq(1)
                m.d.sync += left.eq(Mux(fill.beats == 0, 0, fill.rows))
                with m.If(fills.w_rdy):
                    m.next = "ROWS"
            with m.State("ROWS"):
                m.d.comb += [
                    self.job.valid.eq(left != 0),
                    self.job.payload.address.eq(address),
                    self.job.payload.count.eq(fill.beats),
                ]
                with m.If(left == 0):
                    m.next = "IDLE"
                with m.Elif(self.job.ready):
                    m.d.sync += [left.eq(left - 1), address.eq((address + stride)[:WORD_BITS])]
            with m.State("GATHER"):
                m.d.comb += fills.w_en.eq(1)
                with m.If(fills.w_rdy):
                    m.next = "NEXT"
            with m.State("NEXT"):  # the next token: of the page in hand, of the next page, of the step
                m.next = "PAGE"
                with m.If(left == 0):
                    m.next = "IDLE"
                with m.Elif(served >= self.lengths.tokens.as_value().word_select(head, LENGTH_BITS)):
                    m.next = "OWN"
                with m.Elif(have):
                    m.next = "TOKEN"
            with m.State("PAGE"):
                m.d.sync += [page.eq(self.list_entry), have.eq(1), slot.eq(0), entry.eq(entry + 1)]
                m.next = "TOKEN"
            for name in ("TOKEN", "OWN"):
                with m.State(name):
                    m.d.comb += self.job.valid.eq(1)
                    m.d.comb += self.job.payload.count.eq(self.beats)
                    if name == "OWN":
                        m.d.comb += self.job.payload.address.eq(own)
                    else:
                        offset = Mux(values, self.beats, 0) + slot * (2 * self.beats)
                        m.d.comb += self.job.payload.address.eq((page.address + offset)[:WORD_BITS])
                    with m.If(self.job.ready):
                        m.d.sync += [left.eq(left - 1), served.eq(served + 1)]
                        if name == "OWN":
                            m.d.sync += own.eq((own + stride)[:WORD_BITS])
                        else:
                            m.d.sync += [slot.eq(slot + 1), have.eq(slot + 1 != page.count)]
                        m.next = "NEXT"

    def _place(self, m: Module, fills: SyncFIFOBuffered) -> None:
        """Words as they come: straight to their rows, or through the transposer."""
        m.submodules.transposer = turn = Transposer(width=self.width, blocks=self.beats)
        now = data.View(self.fill, fills.r_data)
        place, start, row, beat = Signal(ROW_BITS), Signal(ROW_BITS), Signal(LENGTH_BITS), Signal(LENGTH_BITS)
        inside, whole, final = Signal(range(self.width)), Signal(), Signal()
        busy, given = Signal(), Signal()  # a command is being filled; all its words have come
        put, code = Signal(), Signal(self.word)
        capacity = Mux(now.activations, self.memory.activation_rows, self.memory.weight_rows)
        m.d.comb += [
            whole.eq(beat + 1 == now.beats),
            final.eq(whole & (row + 1 == now.rows)),
            turn.i.payload.data.eq(self.words.payload.data),
            turn.i.payload.last.eq(final),
            turn.i.valid.eq(busy & now.transposed & ~given & self.words.valid),
            turn.o.ready.eq(1),
            self.words.ready.eq(busy & ~given & (~now.transposed | turn.i.ready)),
            put.eq(busy & Mux(now.transposed, turn.o.valid, self.words.valid & self.words.ready)),
            code.eq(Mux(now.transposed, turn.o.payload.data, self.words.payload.data)),
            self.write.valid.eq(put),
            self.write.payload.row.eq(place[: len(self.write.payload.row)]),
            self.write.payload.activations.eq(now.activations),
            self.write.payload.codes.as_value().eq(code),
        ]
        with m.If(put & (place >= capacity)):
            m.d.comb += [self.fault.cause.eq(Cause.SIZE), self.fault.address.eq(place)]
        with m.If(self.words.valid & self.words.ready):
            m.d.sync += beat.eq(Mux(whole, 0, beat + 1))
            with m.If(whole):
                m.d.sync += row.eq(row + 1)
        # a row of tiles goes on a tile further with each word, and after `width` rows at the tiles behind
        tile = self.width
        with m.If(put):
            with m.If(now.transposed):
                m.d.sync += place.eq(place + 1)
            with m.Elif(~now.tiled):
                m.d.sync += place.eq(Mux(whole, start + now.step, place + 1))
                with m.If(whole):
                    m.d.sync += start.eq(start + now.step)
            with m.Elif(~whole):
                m.d.sync += place.eq(place + tile)
            with m.Else():
                m.d.sync += inside.eq(inside + 1)
                following = Mux(inside == tile - 1, place + 1, start + 1)
                m.d.sync += [place.eq(following), start.eq(following)]
        ended = Signal()
        m.d.comb += ended.eq(put & Mux(now.transposed, turn.o.payload.last, final))
        with m.If(self.words.valid & self.words.ready & final):
            m.d.sync += given.eq(1)
        empty = (now.rows == 0) | (now.beats == 0)
        m.d.comb += [
            self.complete.eq((busy & ended) | (~busy & fills.r_rdy & empty)),
            fills.r_en.eq(self.complete),
        ]
        with m.If(~busy):
            m.d.sync += [
                busy.eq(fills.r_rdy & ~empty),
                place.eq(now.to),
                start.eq(now.to),
                *(register.eq(0) for register in (row, beat, inside, given)),
            ]
        with m.Elif(ended):
            m.d.sync += busy.eq(0)
        assert COUNT_BITS >= LENGTH_BITS
