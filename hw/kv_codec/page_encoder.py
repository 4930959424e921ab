"""Words that a core writes to memory, with the keys and values of new tokens encoded."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hw.axi.engines import write_word_layout
from hw.kv_codec import bfp
from hw.kv_codec.bfp_encoder import BfpEncoder
from hw.kv_codec.kv_encoder import KvEncoder
from hw.kv_codec.page_layout import PageLayout


def record_encoder(layout: PageLayout) -> KvEncoder | BfpEncoder:
    """The encoder of the records of a page."""
    if layout.kv_bits == bfp.BITS:
        return BfpEncoder(lanes=layout.lanes)
    return KvEncoder(lanes=layout.lanes, bits=layout.kv_bits)


class PageEncoder(wiring.Component):
    """Encodes the key or the value of a token into the bytes of its slot; sends other words on unchanged.

    A record is shifted to its place and joined with the end of the record before. A word is sent when it is full or
    the key ends; its strobes select the bytes of this key. Plain words wait until all records before them are sent.

    ```
    i ──┬─> encoder ──> shift, join with the rest ──> word, strobes ──┬─> o
        ├─> place of each record ────^                                │
        └──────────── plain words ────────────────────────────────────┘
    ```

    Timing: one word per cycle, one more cycle for a key whose last record continues in another word. Plain words pass
    combinationally; a record follows its word by the latency of the encoder.

    Parameters
    ----------
    layout : of a head page, with encoded keys and values

    Members
    -------
    i : stream of words: `data`; `last`, the last word of a copy; `encode`; `first`, the unit of the first written word
        at which the key begins, the same for all words of a copy
    o : stream of words for a write engine; a key has as many as `layout.words(first, layout.key_units)`
    """

    def __init__(self, layout: PageLayout):
        self.layout = layout
        self.place = data.StructLayout({"starts": 1, "last": 1, "first": range(layout.word_units)})
        word = data.StructLayout({"data": layout.word, "last": 1, "encode": 1, "first": range(layout.word_units)})
        super().__init__({"i": In(stream.Signature(word)), "o": Out(stream.Signature(write_word_layout(layout.word)))})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        layout, i = self.layout, self.i
        m.submodules.encoder = encoder = record_encoder(layout)
        m.submodules.places = places = SyncFIFOBuffered(width=self.place.size, depth=16)
        place, starts, in_flight = Signal(self.place), Signal(init=1), Signal(range(17))  # records that are not joined
        sent, joined, is_empty, rest_valid = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            place.starts.eq(starts),
            place.last.eq(i.payload.last),
            place.first.eq(i.payload.first),
            places.w_data.eq(place),
            places.w_en.eq(sent),
            Value.cast(encoder.i.payload).eq(i.payload.data),
            encoder.i.valid.eq(i.valid & i.payload.encode & places.w_rdy),
            sent.eq(encoder.i.valid & encoder.i.ready),
            is_empty.eq((in_flight == 0) & ~rest_valid),
            i.ready.eq(Mux(i.payload.encode, sent, is_empty & self.o.ready)),
        ]
        m.d.sync += in_flight.eq((in_flight + sent - joined)[: len(in_flight)])
        with m.If(sent):
            m.d.sync += starts.eq(i.payload.last)
        m.d.comb += [
            self.o.valid.eq(i.valid & ~i.payload.encode & is_empty),
            self.o.payload.data.eq(i.payload.data),
            self.o.payload.strobe.eq(-1),
        ]
        self._join(m, encoder, places, joined, rest_valid)
        return m

    def _join(
        self, m: Module, encoder: KvEncoder | BfpEncoder, places: SyncFIFOBuffered, joined: Signal, rest_valid: Signal
    ) -> None:
        """Records to words. `rest` : the end of the record before, with its strobes; `rest_valid` : it is sent next."""
        layout, o = self.layout, self.o
        units, size, byte_units = layout.word_units, layout.record_units, layout.unit // 8
        place = data.View(self.place, places.r_data)
        rest, strobes = Signal(layout.word), Signal(layout.word // 8)
        position, next_position, end = Signal(range(units)), Signal(range(units)), Signal(range(units + size + 1))
        data_bits, strobe_bits = layout.word + layout.record.size, (layout.word + layout.record.size) // 8
        both, both_strobes, valid, is_full = Signal(data_bits), Signal(strobe_bits), Signal(), Signal()
        m.d.comb += [
            valid.eq(encoder.o.valid & places.r_rdy & ~rest_valid),
            position.eq(Mux(place.starts, place.first, next_position)),
            end.eq(position + size),
            both.eq(
                Mux(place.starts, 0, rest) | (Value.cast(encoder.o.payload) << (position * layout.unit))[:data_bits]
            ),
            both_strobes.eq(
                Mux(place.starts, 0, strobes)
                | (Const((1 << size * byte_units) - 1, size * byte_units) << (position * byte_units))[:strobe_bits]
            ),
            is_full.eq(end >= units),
            joined.eq(valid & (o.ready | ~(is_full | place.last))),
            encoder.o.ready.eq(joined),
            places.r_en.eq(joined),
        ]
        with m.If(rest_valid):
            m.d.comb += [o.valid.eq(1), o.payload.data.eq(rest), o.payload.strobe.eq(strobes)]
            with m.If(o.ready):
                m.d.sync += rest_valid.eq(0)
        with m.Elif(valid):
            m.d.comb += [
                o.valid.eq(is_full | place.last),
                o.payload.data.eq(both[: layout.word]),
                o.payload.strobe.eq(both_strobes[: layout.word // 8]),
            ]
        with m.If(joined):
            m.d.sync += [
                next_position.eq(end[: len(next_position)]),
                rest_valid.eq(place.last & (end > units)),
                rest.eq(both[: layout.word]),
                strobes.eq(both_strobes[: layout.word // 8]),
            ]
            with m.If(is_full):
                m.d.sync += [
                    rest.eq(both[layout.word :]),
                    strobes.eq(both_strobes[layout.word // 8 :]),
                ]
