"""Rows in, columns out: what values need to become weights."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.axi.engines import words_read
from hw.common.memory import Ram


def rotate(value: Value, places: Value, item: int, count: int) -> Value:
    """`count` items moved up by `places`, those beyond the end to the start."""
    step = 1
    for bit in places:
        value = Mux(bit, Cat(value[item * (count - step) :], value[: item * (count - step)]), value)
        step *= 2
    return value


class Transposer(wiring.Component):
    """Turns blocks of `width` rows of `blocks` words into as many words of columns.

    Row r, word j has elements (r, j width + i); afterwards word j width + i has element r of them in place r. `last`
    ends a block early: what is missing is zero.

    Elements of a row lie in different memories, shifted by one from row to row, so a row and a column both take one
    word of each.

    Timing: a word in and a word out per cycle; the first word out follows the last one in by two cycles. While a block
    leaves, the next one comes.

    Parameters
    ----------
    width : elements of a word, a power of two ; blocks : words of a row ; item : bits of an element

    Members
    -------
    i, o : streams of {data, last}; on `o`, `last` ends a block that `last` on `i` has ended
    """

    def __init__(self, *, width: int, blocks: int, item: int = 16):
        if width < 2 or width & (width - 1):
            raise ValueError(f"width = {width}: must be a power of two, at least 2")
        if blocks < 1:
            raise ValueError(f"blocks = {blocks}: must be at least 1")
        self.width, self.blocks, self.item = width, blocks, item
        beat = words_read(width * item)
        super().__init__({"i": In(stream.Signature(beat)), "o": Out(stream.Signature(beat))})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        width, blocks, item = self.width, self.blocks, self.item
        words = width * blocks
        row_bits = (width - 1).bit_length()
        banks = [Ram(depth=2 * words, width=item) for _ in range(width)]
        # halves: rows of each that have come, 0 when it is free
        filled = Signal(data.ArrayLayout(range(width + 1), 2))
        ends = Signal(2)
        into, outof = Signal(), Signal()
        row, block = Signal(range(width)), Signal(range(blocks))

        take, whole = Signal(), Signal()
        m.d.comb += [
            self.i.ready.eq(filled[into] == 0),
            take.eq(self.i.valid & self.i.ready),
            whole.eq((block == blocks - 1) & ((row == width - 1) | self.i.payload.last)),
        ]
        shifted = Signal(width * item)
        m.d.comb += shifted.eq(rotate(self.i.payload.data, row, item, width))
        place = Signal(range(2 * words))
        m.d.comb += place.eq(Mux(into, words, 0) + row * blocks + block)
        with m.If(take):
            m.d.sync += block.eq(Mux(block == blocks - 1, 0, block + 1))
            with m.If(block == blocks - 1):
                m.d.sync += row.eq(row + 1)
            with m.If(whole):
                m.d.sync += [
                    row.eq(0),
                    filled[into].eq(row + 1),
                    ends.bit_select(into, 1).eq(self.i.payload.last),
                    into.eq(~into),
                ]

        # columns
        column, group, go, final = Signal(range(width)), Signal(range(blocks)), Signal(), Signal()
        m.d.comb += [
            go.eq((filled[outof] != 0) & (~self.o.valid | self.o.ready)),
            final.eq((column == width - 1) & (group == blocks - 1)),
        ]
        turned, rows = Signal(range(width)), Signal(range(width + 1))
        with m.If(~self.o.valid | self.o.ready):
            m.d.sync += [
                self.o.valid.eq(filled[outof] != 0),
                turned.eq(column),
                rows.eq(filled[outof]),
                self.o.payload.last.eq(final & ends.bit_select(outof, 1)),
            ]
        with m.If(go):
            m.d.sync += column.eq(column + 1)
            with m.If(column == width - 1):
                m.d.sync += group.eq(Mux(group == blocks - 1, 0, group + 1))
            with m.If(final):
                m.d.sync += [filled[outof].eq(0), outof.eq(~outof)]
        for k, bank in enumerate(banks):
            m.submodules[f"bank{k}"] = bank
            source = Signal(range(width), name=f"source{k}")  # row whose element of this column lies here
            m.d.comb += [
                source.eq((Const(k, row_bits) - column)[:row_bits]),
                bank.w_addr.eq(place),
                bank.w_data[0].eq(shifted.word_select(k, item)),
                bank.w_mask.eq(take),
                bank.r_addr.eq(Mux(outof, words, 0) + source * blocks + group),
                bank.r_en.eq(go),
            ]
        gathered = Signal(width * item)
        back = Signal(range(width))
        m.d.comb += [
            back.eq((~turned + 1)[:row_bits]),
            gathered.eq(rotate(Cat(*(bank.r_data[0] for bank in banks)), back, item, width)),
            self.o.payload.data.eq(Cat(Mux(k < rows, gathered.word_select(k, item), 0) for k in range(width))),
        ]
        return m
