"""Page lists: the past tokens that each KV head attends to in the current step."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Array, Module, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.axi.ports import WORD_ADDRESS_BITS
from hw.common.memory import Ram
from hw.core.lengths import LENGTH_BITS
from hw.dre.kvmu.command import Op

LIST_ENTRY = data.StructLayout({"address": WORD_ADDRESS_BITS, "count": 8})  # tokens of one page for one KV head


class PageLists(wiring.Component):
    """Collects the pages that the FETCH replies report, one list per KV head.

    Timing: one entry per cycle; an entry is read one cycle after its address.

    Parameters
    ----------
    reply : layout of a reply of the KV prediction unit
    word_bytes : bytes of a memory word
    kv_heads : number of lists
    max_pages : entries of each list

    Members
    -------
    reply : stream of replies
    past_count : tokens on the page of the current reply that were there before the step
    clear : empties all lists
    head, index, read : reads entry `index` of the list of `head`
    entry : the entry, one cycle later
    tokens : for each head, number of tokens in its list
    overflow : the list of the current reply is full
    """

    def __init__(self, *, reply: data.StructLayout, word_bytes: int, kv_heads: int, max_pages: int):
        self.word_bytes, self.kv_heads, self.max_pages = word_bytes, kv_heads, max_pages
        super().__init__(
            {
                "reply": In(stream.Signature(reply, always_ready=True)),
                "past_count": In(8),
                "clear": In(1),
                "head": In(range(kv_heads)),
                "index": In(range(max_pages)),
                "read": In(1),
                "entry": Out(LIST_ENTRY),
                "tokens": Out(data.ArrayLayout(LENGTH_BITS, kv_heads)),
                "overflow": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        reply, entry = self.reply.payload, Signal(LIST_ENTRY)
        report = self.reply.valid & (reply.op == Op.FETCH) & ~reply.last
        m.d.comb += [
            entry.address.eq(reply.address >> (self.word_bytes.bit_length() - 1)),
            entry.count.eq(self.past_count),
        ]
        memories = [Ram(depth=self.max_pages, width=LIST_ENTRY.size) for _ in range(self.kv_heads)]
        for h, memory in enumerate(memories):
            m.submodules[f"list{h}"] = memory
            length = Signal(range(self.max_pages + 1), name=f"length{h}")
            append = report & (reply.head == h) & (self.past_count != 0)
            m.d.comb += [
                memory.w_addr.eq(length[: len(memory.w_addr)]),
                memory.w_data[0].eq(entry),
                memory.w_mask.eq(append & (length != self.max_pages)),
                memory.r_addr.eq(self.index),
                memory.r_en.eq(self.read),
            ]
            with m.If(self.clear):
                m.d.sync += [length.eq(0), self.tokens[h].eq(0)]
            with m.Elif(append):
                m.d.sync += [length.eq(length + 1), self.tokens[h].eq(self.tokens[h] + self.past_count)]
            with m.If(append & (length == self.max_pages)):
                m.d.comb += self.overflow.eq(1)
        head = Signal.like(self.head)
        m.d.sync += head.eq(self.head)
        m.d.comb += Value.cast(self.entry).eq(Array(memory.r_data[0] for memory in memories)[head])
        return m
