"""The COPY unit: copies of programs, tokens to their places in the cache, and the KVMU's descriptors."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hw.axi.ports import WORD_BITS
from hw.core.dma import MAX_OPEN_COPIES, CopyEngine
from hw.core.isa import BY_NAME
from hw.core.sequencer import COMMAND, view
from hw.dre.transfer import Tier


def owner(tags: int) -> data.StructLayout:
    """Whose a copy is: the KVMU's, with its tag, or a command's; its last; where it goes."""
    return data.StructLayout({"tag": range(tags), "cache": 1, "last": 1, "host": 1})


class CopyUnit(wiring.Component):
    """Executes COPY and STORE between the descriptors of the KVMU, which go first.

    STORE copies for every token of the step and every KV head its key and its value.

    Parameters
    ----------
    beats : words of a key ; kv_heads, head_page_words : of the cache: words from one head's part of a page to the next

    Members
    -------
    i : stream of COMMAND ; complete : one of them is, in order ; copier : its `i` and `o`
    dma, dma_done, dma_tag, place_at, place, tokens, placed : as the cache's
    """

    def __init__(self, *, word: int, beats: int, kv_heads: int, head_page_words: int, most: int,
                 descriptor: data.Layout, tags: int):  # fmt: skip
        self.word, self.beats, self.kv_heads, self.head_page_words = word, beats, kv_heads, head_page_words
        self.owner = owner(tags)
        self.copy_engine = CopyEngine(word=word, own_bits=self.owner.size)
        super().__init__(
            {
                "i": In(stream.Signature(COMMAND)),
                "complete": Out(1),
                "give": Out(stream.Signature(self.copy_engine.copy)),
                "given": In(stream.Signature(self.owner.size, always_ready=True)),
                "dma": In(stream.Signature(descriptor)),
                "dma_done": Out(1),
                "dma_tag": Out(range(tags)),
                "place_at": Out(range(most)),
                "place": In(WORD_BITS),
                "tokens": In(range(most + 1)),
                "placed": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        low, beats = (self.word // 8).bit_length() - 1, self.beats
        copy, order, asked = view(self.i.payload, "COPY"), view(self.i.payload, "STORE"), self.dma.payload
        own, give = Signal(self.owner), self.give.payload
        m.submodules.finals = finals = SyncFIFOBuffered(width=2, depth=2 * MAX_OPEN_COPIES)  # to the host; a STORE

        # STORE: token after token, head after head, key and value
        token, head, value = Signal.like(self.place_at), Signal(range(self.kv_heads)), Signal()
        key_at, value_at, started = Signal(WORD_BITS), Signal(WORD_BITS), Signal()
        places = self.i.payload.opcode == BY_NAME["STORE"].code
        last_head, last = head == self.kv_heads - 1, Signal()
        source, target = Signal(WORD_BITS), Signal(WORD_BITS)
        m.d.comb += [
            self.place_at.eq(token),
            last.eq(value & last_head & (token + 1 == self.tokens)),
            source.eq((Mux(value, value_at, key_at) + head * beats)[:WORD_BITS]),
            target.eq((self.place + head * self.head_page_words + Mux(value, beats, 0))[:WORD_BITS]),
        ]
        placing, copying, final = Signal(), Signal(), Signal()
        m.d.comb += [
            placing.eq(self.i.valid & places & started & ~self.dma.valid),
            copying.eq(self.i.valid & ~places & ~self.dma.valid),
            final.eq(copying | (placing & last)),
        ]
        with m.If(self.i.valid & places & ~started):
            m.d.sync += [started.eq(1), key_at.eq(order.keys), value_at.eq(order.values)]
            m.d.sync += [counter.eq(0) for counter in (token, head, value)]
        with m.If(placing & self.give.ready & self.give.valid):
            m.d.sync += value.eq(~value)
            with m.If(value):
                m.d.sync += head.eq(Mux(last_head, 0, head + 1))
                with m.If(last_head):
                    m.d.sync += [
                        token.eq(token + 1),
                        key_at.eq((key_at + order.key_stride)[:WORD_BITS]),
                        value_at.eq((value_at + order.value_stride)[:WORD_BITS]),
                    ]
            with m.If(last):
                m.d.sync += started.eq(0)

        gone = Signal()
        m.d.comb += [
            self.give.valid.eq(self.dma.valid | ((placing | copying) & finals.w_rdy)),
            gone.eq(self.give.valid & self.give.ready),
            self.dma.ready.eq(self.give.ready),
            self.i.ready.eq(final & gone),
            own.last.eq(final),
            own.host.eq(give.to_host),
            give.own.eq(own),
            finals.w_en.eq(final & gone),
            finals.w_data.eq(Cat(~places & copy.to_host, places)),
        ]
        with m.If(self.dma.valid):
            m.d.comb += [
                give.source.eq(asked.source),
                give.target.eq(asked.target),
                give.from_host.eq(asked.source_tier != Tier.DEVICE),
                give.to_host.eq(asked.target_tier != Tier.DEVICE),
                give.bytes.eq(asked.bytes),
                own.cache.eq(1),
                own.tag.eq(asked.tag),
            ]
        with m.Else():
            m.d.comb += [
                give.source.eq(Cat(Const(0, low), Mux(places, source, copy.source))),
                give.target.eq(Cat(Const(0, low), Mux(places, target, copy.target))),
                give.from_host.eq(~places & copy.from_host),
                give.to_host.eq(~places & copy.to_host),
                give.bytes.eq(Cat(Const(0, low), Mux(places, beats, copy.words))),
            ]

        # commands complete in order, though their copies to either side may not
        back, oldest, place = data.View(self.owner, self.given.payload), Signal(), Signal()
        done = [Signal(range(2 * MAX_OPEN_COPIES + 2), name=f"done{side}") for side in range(2)]
        m.d.comb += [
            self.dma_done.eq(self.given.valid & back.cache),
            self.dma_tag.eq(back.tag),
            Cat(oldest, place).eq(finals.r_data),
            self.complete.eq(finals.r_rdy & Mux(oldest, done[1] != 0, done[0] != 0)),
            finals.r_en.eq(self.complete),
            self.placed.eq(self.complete & place),
        ]
        for side, count in enumerate(done):
            more = self.given.valid & back.last & ~back.cache & (back.host == side)
            m.d.sync += count.eq((count + more - (self.complete & (oldest == side)))[: len(count)])
        return m
