"""Transposer: rows of words in, columns out. It converts the values of tokens to weights of the matrix engine."""

# mypy: disable-error-code="assignment,arg-type"

from dataclasses import dataclass

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.axi.engines import read_word_layout
from hw.common.memory import Ram


def rotate(value: Value, shift: Value, item: int, count: int) -> Value:
    """`count` items of `item` bits, rotated up by `shift` items."""
    step = 1
    for bit in shift:
        value = Mux(bit, Cat(value[item * (count - step) :], value[: item * (count - step)]), value)
        step *= 2
    return value


@dataclass(frozen=True)
class _Halves:
    """State of the two halves of the memories: one is filled while the other is drained.

    rows : for each half, its rows when it is full, 0 when it is free
    words : for each half, words of a row when it is full
    ended_by_last : for each half, `last` ended its tile
    fill, drain : number of the half that is filled, or drained
    """

    rows: Signal
    words: Signal
    ended_by_last: Signal
    fill: Signal
    drain: Signal


class Transposer(wiring.Component):
    """Transposes tiles. A tile has `width` rows of `cfg_row_words` words; the output has one word per column.

    Element i of word j of row r is element (r, j * width + i). Output word c has element (r, c) in lane r.
    `last` at the last word of a row ends a tile early; the missing rows are zero.

    Each lane has its own memory. Row r is rotated by r lanes. Therefore the elements of one input word are in different
    memories, and so are the elements of one column: one input word can be written and one column can be read in each
    cycle.

    ```
    row ──> rotate by row ──> `width` memories ──> rotate back ──> column
    ```

    Timing: one word in and one word out per cycle. The first word out follows the last word in by two cycles. A tile
    is filled while the previous one is drained.

    Parameters
    ----------
    width : elements of a word, a power of two
    row_words : words of the longest row
    item : bits of an element

    Members
    -------
    i, o : streams of read_word_layout; `last` on `o` marks the end of a tile that `last` on `i` ended
    cfg_row_words : words of a row, 1 to `row_words`; constant while a tile is filled

    Raises
    ------
    ValueError
        When a parameter is not valid.
    """

    def __init__(self, *, width: int, row_words: int, item: int = 16):
        if width < 2 or width & (width - 1):
            raise ValueError(f"width must be a power of two, at least 2, got {width}")
        if row_words < 1:
            raise ValueError(f"row_words must be at least 1, got {row_words}")
        self.width, self.row_words, self.item = width, row_words, item
        self.words = width * row_words
        beat = read_word_layout(width * item)
        super().__init__(
            {
                "i": In(stream.Signature(beat)),
                "o": Out(stream.Signature(beat)),
                "cfg_row_words": In(range(row_words + 1)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        banks = [self.bank() for _ in range(self.width)]
        for k, bank in enumerate(banks):
            m.submodules[f"bank{k}"] = bank
        rows = Signal(data.ArrayLayout(range(self.width + 1), 2), name="rows_filled")
        words = Signal(data.ArrayLayout(range(self.row_words + 1), 2), name="words_filled")
        halves = _Halves(
            rows, words, Signal(2, name="ended_by_last"), Signal(name="fill_half"), Signal(name="drain_half")
        )
        self._fill(m, banks, halves)
        self._drain(m, banks, halves)
        return m

    def bank(self) -> Ram:
        """The memory of one lane. It has no bypass: one half is written and the other half is read."""
        return Ram(depth=2 * self.words, width=self.item, bypass=False)

    def _fill(self, m: Module, banks: list[Ram], halves: _Halves) -> None:
        """Rows into the free half."""
        row, word_index = Signal(range(self.width)), Signal(range(self.row_words))
        accept, tile_full, address = Signal(), Signal(), Signal(range(2 * self.words))
        rotated, last_word = Signal(self.width * self.item), word_index + 1 == self.cfg_row_words
        m.d.comb += [
            self.i.ready.eq(halves.rows[halves.fill] == 0),
            accept.eq(self.i.valid & self.i.ready),
            tile_full.eq(last_word & ((row == self.width - 1) | self.i.payload.last)),
            rotated.eq(rotate(self.i.payload.data, row, self.item, self.width)),
            address.eq(Mux(halves.fill, self.words, 0) + row * self.row_words + word_index),
        ]
        with m.If(accept):
            m.d.sync += word_index.eq(Mux(last_word, 0, word_index + 1))
            with m.If(last_word):
                m.d.sync += row.eq(row + 1)
            with m.If(tile_full):
                m.d.sync += [
                    row.eq(0),
                    halves.rows[halves.fill].eq(row + 1),
                    halves.words[halves.fill].eq(self.cfg_row_words),
                    halves.ended_by_last.bit_select(halves.fill, 1).eq(self.i.payload.last),
                    halves.fill.eq(~halves.fill),
                ]
        for k, bank in enumerate(banks):
            m.d.comb += [
                bank.w_addr.eq(address),
                bank.w_data[0].eq(rotated.word_select(k, self.item)),
                bank.w_mask.eq(accept),
            ]

    def _drain(self, m: Module, banks: list[Ram], halves: _Halves) -> None:
        """Columns from the full half."""
        width, row_bits = self.width, (self.width - 1).bit_length()
        column, word_index, read, last_column = Signal(range(width)), Signal(range(self.row_words)), Signal(), Signal()
        output_free, half_full = ~self.o.valid | self.o.ready, halves.rows[halves.drain] != 0
        last_word = word_index + 1 == halves.words[halves.drain]
        m.d.comb += [
            read.eq(half_full & output_free),
            last_column.eq((column == width - 1) & last_word),
        ]
        rotation, rows = Signal(range(width)), Signal(range(width + 1))  # of the column on `o`
        with m.If(output_free):
            m.d.sync += [
                self.o.valid.eq(half_full),
                rotation.eq(column),
                rows.eq(halves.rows[halves.drain]),
                self.o.payload.last.eq(last_column & halves.ended_by_last.bit_select(halves.drain, 1)),
            ]
        with m.If(read):
            m.d.sync += column.eq(column + 1)
            with m.If(column == width - 1):
                m.d.sync += word_index.eq(Mux(last_word, 0, word_index + 1))
            with m.If(last_column):
                m.d.sync += [halves.rows[halves.drain].eq(0), halves.drain.eq(~halves.drain)]
        for k, bank in enumerate(banks):
            row = Signal(range(width), name=f"row{k}")  # row whose element of this column lies in this memory
            m.d.comb += [
                row.eq((Const(k, row_bits) - column)[:row_bits]),
                bank.r_addr.eq(Mux(halves.drain, self.words, 0) + row * self.row_words + word_index),
                bank.r_en.eq(read),
            ]
        elements, back = Signal(width * self.item), Signal(range(width))
        m.d.comb += [
            back.eq((~rotation + 1)[:row_bits]),
            elements.eq(rotate(Cat(*(bank.r_data[0] for bank in banks)), back, self.item, width)),
            self.o.payload.data.eq(Cat(Mux(k < rows, elements.word_select(k, self.item), 0) for k in range(width))),
        ]
