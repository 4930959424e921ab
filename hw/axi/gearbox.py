"""Gearbox: words of one width as items of another width."""

from amaranth import Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.axi.engines import read_word_layout


class Gearbox(wiring.Component):
    """Splits words into items, or joins words to items. One width is a multiple of the other; the low bits come first.

    `flush` drops the rest of the current word, or the words joined so far. No item leaves in that cycle.

    Timing: one word or one item per cycle, whichever is the smaller unit. When words are joined, an item follows its
    last word by one cycle.

    Parameters
    ----------
    word : bits of a word
    item : bits of an item

    Members
    -------
    i : stream of read_word_layout
    o : stream of items
    flush : drops what is buffered
    last : the newest word has `last`

    Raises
    ------
    ValueError
        When neither width is a multiple of the other.
    """

    def __init__(self, *, word: int, item: int):
        if max(word, item) % min(word, item):
            raise ValueError(f"item must be a multiple or a divisor of word = {word}, got {item}")
        self.word, self.item = word, item
        super().__init__(
            {
                "i": In(stream.Signature(read_word_layout(word))),
                "o": Out(stream.Signature(data.ArrayLayout(1, item))),
                "flush": In(1),
                "last": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        if self.word >= self.item:
            self._split(m)
        else:
            self._join(m)
        return m

    def _split(self, m: Module) -> None:
        """Items from the current word; the word leaves with its last item."""
        ratio = self.word // self.item
        index = Signal(range(ratio))
        final = index == ratio - 1
        m.d.comb += [
            Value.cast(self.o.payload).eq(self.i.payload.data.word_select(index, self.item)),
            self.o.valid.eq(self.i.valid & ~self.flush),
            self.i.ready.eq(Mux(self.flush, 1, final & self.o.ready)),
            self.last.eq(self.i.valid & self.i.payload.last),
        ]
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += index.eq(Mux(final, 0, index + 1))
        with m.If(self.flush):
            m.d.sync += index.eq(0)

    def _join(self, m: Module) -> None:
        """A register that collects the words of an item."""
        ratio = self.item // self.word
        register, index = Signal(self.item, reset_less=True), Signal(range(ratio))
        m.d.comb += [
            Value.cast(self.o.payload).eq(register),
            self.i.ready.eq(~self.o.valid | self.o.ready | self.flush),
        ]
        with m.If(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += [
                register.word_select(index, self.word).eq(self.i.payload.data),
                index.eq(Mux(index == ratio - 1, 0, index + 1)),
                self.o.valid.eq(index == ratio - 1),
                self.last.eq(self.i.payload.last),
            ]
        with m.If(self.flush):
            m.d.sync += [self.o.valid.eq(0), index.eq(0)]
