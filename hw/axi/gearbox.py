"""Words of one width as items of another."""

from amaranth import Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.axi.engines import words_read


class Gearbox(wiring.Component):
    """Cuts words into items, or joins words to items; one width is a multiple of the other, the lower part comes first.

    With `flush`, the rest of the word in hand (or the part of an item joined so far) is dropped; no item leaves then.

    Timing: a word or an item per cycle, whichever are more. Joining: an item follows its last word by one cycle.

    Members
    -------
    i : stream of {data, last} ; o : stream of items ; flush : see above ; last : the newest word had `last`
    """

    def __init__(self, *, word: int, item: int):
        if max(word, item) % min(word, item):
            raise ValueError(f"item = {item}: must be a multiple or a part of word = {word}")
        self.word, self.item = word, item
        super().__init__(
            {
                "i": In(stream.Signature(words_read(word))),
                "o": Out(stream.Signature(data.ArrayLayout(1, item))),
                "flush": In(1),
                "last": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        payload, word = Value.cast(self.o.payload), self.i.payload.data
        if self.word >= self.item:
            parts = self.word // self.item
            place = Signal(range(parts))
            final = place == parts - 1
            m.d.comb += [
                payload.eq(word.word_select(place, self.item)),
                self.o.valid.eq(self.i.valid & ~self.flush),
                self.i.ready.eq(Mux(self.flush, 1, final & self.o.ready)),
                self.last.eq(self.i.valid & self.i.payload.last),
            ]
            with m.If(self.o.valid & self.o.ready):
                m.d.sync += place.eq(Mux(final, 0, place + 1))
            with m.If(self.flush):
                m.d.sync += place.eq(0)
            return m
        parts = self.item // self.word
        held, place = Signal(self.item, reset_less=True), Signal(range(parts))
        m.d.comb += [
            payload.eq(held),
            self.i.ready.eq(~self.o.valid | self.o.ready | self.flush),
        ]
        with m.If(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += [
                held.word_select(place, self.word).eq(word),
                place.eq(Mux(place == parts - 1, 0, place + 1)),
                self.o.valid.eq(place == parts - 1),
                self.last.eq(self.i.payload.last),
            ]
        with m.If(self.flush):
            m.d.sync += [self.o.valid.eq(0), place.eq(0)]
        return m
