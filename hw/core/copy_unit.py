"""The COPY unit: copies of programs, keys and values of the step to the KV cache, and transfers of the KVMU."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hw.axi.ports import WORD_ADDRESS_BITS
from hw.core.dma import MAX_OPEN_COPIES, CopyEngine
from hw.core.isa import BY_NAME
from hw.core.sequencer import COMMAND, view
from hw.dre.transfer import Tier
from hw.kv_codec.page_layout import PageLayout

MAX_OPEN_COMMANDS = 2 * MAX_OPEN_COPIES  # commands whose copies are not all acknowledged


def owner_layout(tags: int) -> data.StructLayout:
    """Owner of a copy, returned with its completion.

    Fields: `transfer` (a descriptor of the KVMU, with its `tag`; else a command), `last` (last copy of the command),
    `host` (the target is behind the host link).
    """
    return data.StructLayout({"tag": range(tags), "transfer": 1, "last": 1, "host": 1})


class CopyUnit(wiring.Component):
    """Executes COPY and STORE, and the transfers of the KVMU, which have priority over commands.

    COPY is one copy. STORE copies the key and the value of each token of a piece and each KV head to its slot, and
    encodes them if pages are encoded. If only some tokens of the step are kept, it skips the others, one per cycle.
    Copies to device memory and to the host link can complete out of order; commands are reported in order.

    Timing: one copy per cycle when the copy engine accepts it.

    Parameters
    ----------
    layout : of a head page
    kv_heads : KV heads
    max_step_tokens : largest number of tokens of a piece of a step
    descriptor : layout of a transfer
    tags : number of transfer tags

    Members
    -------
    i : stream of COMMAND
    complete : a command is complete: memory has acknowledged its last copy
    copies, copies_done : stream of copies to the copy engine, and of their owners when they are acknowledged
    descriptors : stream of transfers
    transfer_done, done_tag : a transfer is complete
    slot_index, slot_word, tokens : slots of the tokens of the piece, see `hw.core.retrieval.step_slots`
    slot : with encoded pages, the slot in the block that begins at `slot_word`
    stored : a STORE is complete
    some_kept, kept : STORE skips tokens; whether the next token is kept, see `hw.core.retrieval.kept_tokens`
    """

    def __init__(self, *, layout: PageLayout, kv_heads: int, max_step_tokens: int, descriptor: data.Layout, tags: int):
        self.layout, self.word, self.key_words, self.kv_heads = layout, layout.word, layout.records, kv_heads
        self.head_page_words = layout.head_page_bytes * 8 // layout.word
        self.owner = owner_layout(tags)
        self.copy_engine = CopyEngine(word=layout.word, owner_bits=self.owner.size, layout=layout)
        slot = {"slot": In(layout.slot_bits)} if layout.is_encoded else {}
        super().__init__(
            {
                "i": In(stream.Signature(COMMAND)),
                "complete": Out(1),
                "copies": Out(stream.Signature(self.copy_engine.copy)),
                "copies_done": In(stream.Signature(self.owner.size, always_ready=True)),
                "descriptors": In(stream.Signature(descriptor)),
                "transfer_done": Out(1),
                "done_tag": Out(range(tags)),
                "slot_index": Out(range(max_step_tokens)),
                "slot_word": In(WORD_ADDRESS_BITS),
                **slot,
                "tokens": In(range(max_step_tokens + 1)),
                "stored": Out(1),
                "some_kept": In(1),
                "kept": In(stream.Signature(1)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        shift = (self.word // 8).bit_length() - 1
        copy, descriptor, owner = self.copies.payload, self.descriptors.payload, Signal(self.owner)
        command = view(self.i.payload, "COPY")
        # for every command: the target is behind the host link; it is a STORE
        m.submodules.open_commands = open_commands = SyncFIFOBuffered(width=2, depth=MAX_OPEN_COMMANDS)
        is_store = self.i.payload.opcode == BY_NAME["STORE"].code
        store_valid, copy_valid, final, accepted = Signal(), Signal(), Signal(), Signal()
        source, target, last_store = self._store_addresses(m, is_store, store_valid)
        m.d.comb += [
            copy_valid.eq(self.i.valid & ~is_store & ~self.descriptors.valid),
            final.eq(copy_valid | (store_valid & last_store)),
            self.copies.valid.eq(self.descriptors.valid | ((store_valid | copy_valid) & open_commands.w_rdy)),
            accepted.eq(self.copies.valid & self.copies.ready),
            self.descriptors.ready.eq(self.copies.ready),
            self.i.ready.eq(final & accepted),
            owner.last.eq(final),
            owner.host.eq(copy.to_host),
            copy.owner.eq(owner),
            open_commands.w_en.eq(final & accepted),
            open_commands.w_data.eq(Cat(~is_store & command.to_host, is_store)),
        ]
        with m.If(self.descriptors.valid):
            m.d.comb += [
                copy.source.eq(descriptor.source),
                copy.target.eq(descriptor.target),
                copy.from_host.eq(descriptor.source_tier != Tier.DEVICE),
                copy.to_host.eq(descriptor.target_tier != Tier.DEVICE),
                copy.bytes.eq(descriptor.bytes),
                owner.transfer.eq(1),
                owner.tag.eq(descriptor.tag),
            ]
        with m.Else():
            m.d.comb += [
                copy.source.eq(Cat(Const(0, shift), Mux(is_store, source, command.source))),
                copy.target.eq(Cat(Const(0, shift), Mux(is_store, target, command.target))),
                copy.from_host.eq(~is_store & command.from_host),
                copy.to_host.eq(~is_store & command.to_host),
                copy.bytes.eq(Cat(Const(0, shift), Mux(is_store, self.key_words, command.words))),
            ]
        self._report(m, open_commands)
        return m

    def _store_addresses(self, m: Module, is_store: Value, store_valid: Signal) -> tuple[Signal, Signal, Signal]:
        """Copies of STORE: token by token, KV head by KV head, key then value.

        Drives `store_valid`; returns source and target words of the current copy and whether it is the last one.
        """
        command = view(self.i.payload, "STORE")
        token, head, is_value = Signal.like(self.slot_index), Signal(range(self.kv_heads)), Signal()
        key_address, value_address, started = Signal(WORD_ADDRESS_BITS), Signal(WORD_ADDRESS_BITS), Signal()
        source, target, last_head, last = Signal(WORD_ADDRESS_BITS), Signal(WORD_ADDRESS_BITS), Signal(), Signal()
        in_store, skip, copied = (
            Signal(),
            Signal(),
            Signal(),
        )  # the next token is not kept; all of its copies are issued
        value_offset = Mux(is_value, self.key_words, 0)
        if self.layout.is_encoded:
            word, first = self.layout.place(self.slot)
            value_offset = Mux(is_value, self.layout.key_block_words, 0) + word
            m.d.comb += [
                self.copies.payload.encode.eq(is_store & ~self.descriptors.valid),
                self.copies.payload.first.eq(first),
            ]
        m.d.comb += [
            self.slot_index.eq(token),
            last_head.eq(head == self.kv_heads - 1),
            last.eq(is_value & last_head & (token + 1 == self.tokens)),
            source.eq((Mux(is_value, value_address, key_address) + head * self.key_words)[:WORD_ADDRESS_BITS]),
            target.eq((self.slot_word + head * self.head_page_words + value_offset)[:WORD_ADDRESS_BITS]),
            in_store.eq(self.i.valid & is_store & started),
            store_valid.eq(
                in_store & ~self.descriptors.valid & (~self.some_kept | (self.kept.valid & self.kept.payload))
            ),
            skip.eq(in_store & self.some_kept & self.kept.valid & ~self.kept.payload),
            self.kept.ready.eq(skip | copied),
        ]
        with m.If(self.i.valid & is_store & ~started):
            with m.If(~command.resume):
                m.d.sync += [key_address.eq(command.keys), value_address.eq(command.values)]
            m.d.sync += started.eq(1)
            m.d.sync += [counter.eq(0) for counter in (token, head, is_value)]
        with m.If(store_valid & self.copies.ready & self.copies.valid):
            m.d.sync += is_value.eq(~is_value)
            with m.If(is_value):
                m.d.sync += head.eq(Mux(last_head, 0, head + 1))
                with m.If(last_head):
                    m.d.comb += copied.eq(1)
                    m.d.sync += token.eq(token + 1)
            with m.If(last):
                m.d.sync += started.eq(0)
        with m.If(copied | skip):
            m.d.sync += [
                key_address.eq((key_address + command.key_stride)[:WORD_ADDRESS_BITS]),
                value_address.eq((value_address + command.value_stride)[:WORD_ADDRESS_BITS]),
            ]
        return source, target, last

    def _report(self, m: Module, open_commands: SyncFIFOBuffered) -> None:
        """Completions of transfers; completions of commands in order, counted separately for the two targets."""
        owner, valid = data.View(self.owner, self.copies_done.payload), self.copies_done.valid
        to_host, is_store = Signal(), Signal()  # the oldest command
        done = [Signal(range(MAX_OPEN_COMMANDS + 2), name=f"done_{side}") for side in ("device", "host")]
        m.d.comb += [
            self.transfer_done.eq(valid & owner.transfer),
            self.done_tag.eq(owner.tag),
            Cat(to_host, is_store).eq(open_commands.r_data),
            self.complete.eq(open_commands.r_rdy & Mux(to_host, done[1] != 0, done[0] != 0)),
            open_commands.r_en.eq(self.complete),
            self.stored.eq(self.complete & is_store),
        ]
        for side, count in enumerate(done):
            increment = valid & owner.last & ~owner.transfer & (owner.host == side)
            decrement = self.complete & (to_host == side)
            m.d.sync += count.eq((count + increment - decrement)[: len(count)])
