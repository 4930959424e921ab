"""Words that a core reads from memory, with those of encoded pages decoded."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.axi.engines import read_word_layout
from hw.kv_codec import bfp
from hw.kv_codec.bfp_decoder import BfpDecoder
from hw.kv_codec.kv_decoder import KvDecoder
from hw.kv_codec.page_layout import PageLayout


def run_layout(layout: PageLayout, count_bits: int) -> data.StructLayout:
    """Layout of a run: words that follow each other and are treated alike.

    Fields: `encoded`; `count`, jobs of plain words, or tokens of one block of a page; the others are used for tokens:
    `first`, unit of the first word at which they begin; `word` and `beats`, first word and words of each key or value
    that are sent on.
    """
    words = range(layout.records + 1)
    return data.StructLayout(
        {"encoded": 1, "count": count_bits, "first": range(layout.word_units), "word": words, "beats": words}
    )


def record_decoder(layout: PageLayout) -> KvDecoder | BfpDecoder:
    """The decoder of the records of a page."""
    if layout.kv_bits == bfp.BITS:
        return BfpDecoder(lanes=layout.lanes)
    return KvDecoder(lanes=layout.lanes, bits=layout.kv_bits)


class PageDecoder(wiring.Component):
    """Decodes the keys and values of past tokens; sends other words on unchanged.

    A run of tokens is a job of the read engine. Its records are taken from two words, the present one and the one
    before. Plain words wait until all records before them are decoded.

    ```
    words ──┬─> word before ─┐
            └────────────────┴─> select ──> decoder ──┬─> o
            └──────────── plain words ────────────────┘
    ```

    Timing: one word per cycle. A run takes one more cycle, two if its first record begins in one word and ends in the
    next one. A record that is not sent on takes a cycle. Plain words pass combinationally; a decoded word follows its
    last word by the latency of the decoder.

    Parameters
    ----------
    layout : of a head page, with encoded keys and values
    count_bits : width of the count of a run

    Members
    -------
    runs : stream of `run_layout`, in the order of the jobs; the count is at least 1
    words : words of a read engine
    o : stream of the same layout; `last` is 0
    """

    def __init__(self, layout: PageLayout, *, count_bits: int):
        self.layout = layout
        self.run = run_layout(layout, count_bits)
        word = read_word_layout(layout.word)
        super().__init__(
            {
                "runs": In(stream.Signature(self.run)),
                "words": In(stream.Signature(word)),
                "o": Out(stream.Signature(word)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        layout, words, o = self.layout, self.words, self.o
        m.submodules.decoder = decoder = record_decoder(layout)
        run, in_flight = Signal(self.run), Signal(range(16))  # records in the decoder
        sent, decoded, is_empty = Signal(), Signal(), Signal()
        m.d.comb += [
            sent.eq(decoder.i.valid & decoder.i.ready),
            decoded.eq(decoder.o.valid & o.ready),
            is_empty.eq(in_flight == 0),
            decoder.o.ready.eq(o.ready),
            o.valid.eq(decoder.o.valid),
            o.payload.data.eq(Mux(is_empty, words.payload.data, Value.cast(decoder.o.payload))),
        ]
        m.d.sync += in_flight.eq((in_flight + sent - decoded)[: len(in_flight)])
        position = Signal(range(2 * layout.word_units + 1))
        with m.FSM(name="run"):
            with m.State("IDLE"):
                m.d.comb += self.runs.ready.eq(1)
                with m.If(self.runs.valid):
                    m.d.sync += [run.eq(self.runs.payload), position.eq(layout.word_units + self.runs.payload.first)]
                    m.next = "PLAIN"
                    with m.If(self.runs.payload.encoded):
                        m.next = "ENCODED"
            with m.State("PLAIN"):
                with m.If(is_empty):
                    m.d.comb += [o.valid.eq(words.valid), words.ready.eq(o.ready)]
                with m.If(words.valid & words.ready & words.payload.last):
                    m.d.sync += run.count.eq(run.count - 1)
                    with m.If(run.count == 1):
                        m.next = "IDLE"
            self._take_records(m, run, position, decoder)
        return m

    def _take_records(self, m: Module, run: data.View, position: Signal, decoder: KvDecoder | BfpDecoder) -> None:
        """State ENCODED: one record after the other.

        `position` is the unit at which the next record begins, counted from the word before the present one. A record
        ends in the present word; if the next one does not, the present word becomes the word before.
        """
        layout, words, units = self.layout, self.words, self.layout.record_units
        both, lowest = 2 * layout.word_units, layout.word_units - units + 1
        before, index = Signal(layout.word), Signal(range(layout.records))
        end, fits, next_fits = Signal(range(both + units)), Signal(), Signal()
        wanted, taken, last = Signal(), Signal(), Signal()
        pair = Cat(before, words.payload.data)[lowest * layout.unit :]
        shift, unit_bits = Signal(range(layout.word_units)), layout.unit.bit_length() - 1
        m.d.comb += [
            end.eq(position + units),
            fits.eq(end <= both),
            next_fits.eq(end + units <= both),
            shift.eq((position - lowest)[: len(shift)]),
            Value.cast(decoder.i.payload).eq((pair >> Cat(Const(0, unit_bits), shift))[: layout.record.size]),
            wanted.eq((index >= run.word) & (index < run.word + run.beats)),
            last.eq((index == layout.records - 1) & (run.count == 1)),
        ]
        with m.State("ENCODED"):
            m.d.comb += [
                decoder.i.valid.eq(words.valid & fits & wanted),
                taken.eq(words.valid & fits & (decoder.i.ready | ~wanted)),
                words.ready.eq(Mux(fits, taken & (last | ~next_fits), 1)),
            ]
            with m.If(taken):
                m.d.sync += [position.eq(end), index.eq(Mux(index == layout.records - 1, 0, index + 1))]
                with m.If(index == layout.records - 1):
                    m.d.sync += run.count.eq(run.count - 1)
                with m.If(last):
                    m.next = "IDLE"
            with m.If(words.valid & words.ready):
                m.d.sync += [
                    before.eq(words.payload.data),
                    position.eq((Mux(fits, end, position) - layout.word_units)[: len(position)]),
                ]
