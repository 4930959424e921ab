"""Registers, address generation and output of the KVMU, shared by the states of its state machine."""

from dataclasses import dataclass

from amaranth import Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring

from hw.common.memory import Ram
from hw.dre.kvmu.age_list import AgeList
from hw.dre.kvmu.command import Fault, Stat
from hw.dre.kvmu.free_list import FreeList
from hw.dre.transfer import Joiner, Splitter, Tier, Tracker, TransferKind


@dataclass(frozen=True)
class Tables:
    """The memories and lists of the KVMU."""

    clusters: Ram
    pages: Ram
    live: Ram
    marks: Ram
    touched: Ram
    free_pages: FreeList
    free_page_frames: FreeList
    ages: AgeList


def lowest(bits: Value, width: int) -> Value:
    """Index of the lowest bit that is set, 0 if none is set."""
    number: Value = Const(0, max(1, (width - 1).bit_length()))
    for n in reversed(range(width)):
        number = Mux(bits[n], n, number)
    return number


class Datapath:
    """Registers of the KVMU and the logic between them.

    All replies and all pieces of a copy come from the same registers: `source_*` and `target_*` name a slot on each
    side, `heads` the remaining KV heads. So there is one address generator per side.

    Attributes
    ----------
    unit : the KVMU, for its ports, sizes and layouts
    kind : transfer kind of the present command
    fault : cause that is raised in this cycle
    events : increment of each counter in this cycle
    """

    def __init__(self, unit: wiring.Component, tables: Tables, joiner: Joiner, splitter: Splitter, tracker: Tracker):
        self.unit, self.tables = unit, tables
        self.joiner, self.splitter, self.tracker = joiner, splitter, tracker
        self.page_bits, self.group_bits = (unit.max_pages - 1).bit_length(), (unit.group - 1).bit_length()
        self.events: dict[Stat, Value] = {}
        # the command, its reply and its progress
        self.cmd, self.reply = Signal(unit.command), Signal(unit.reply)
        self.kind, self.fault = Signal(TransferKind), Signal(Fault)
        self.located = Signal()  # the reply carries an address
        self.pushed = Signal()  # the command has sent a piece to the joiner
        self.failed = Signal()  # a FETCH was aborted
        self.output_free, self.emit, self.waiting = Signal(), Signal(), Signal()
        self.opening, self.appended, self.released = Signal(), Signal(), Signal()
        # a walk along pages
        self.page = Signal(self.page_bits)
        self.owner, self.old_entry = Signal(unit.chain), Signal(unit.entry)
        self.index = Signal(range(unit.max_pages * unit.page_tokens))
        self.quota = Signal(range(unit.max_pages + 1))  # pages that EVICT still removes
        self.row, self.visited_marks = Signal(range(max(2, unit.max_pages // unit.group))), Signal(unit.group)
        # both sides of a copy; the target is also the address in a reply
        self.source_tier, self.target_tier = Signal(Tier), Signal(Tier)
        self.source_page, self.target_page = Signal(self.page_bits), Signal(self.page_bits)
        self.source_slot, self.target_slot = Signal(range(unit.page_tokens)), Signal(range(unit.page_tokens))
        self.tokens = Signal(range(unit.page_tokens + 1))
        self.heads, self.head = Signal(unit.kv_heads), Signal(range(unit.kv_heads))
        self.hit, self.staged = Signal(), Signal()
        self.staging_head_page = Signal(range(2 * unit.staging_head_pages))  # head page of the staging area
        self.space = Signal(range(unit.staging_head_pages + 1))  # free head pages of its bank
        self.source, self.target = Signal(unit.address_bits), Signal(unit.address_bits)
        self.bases = {tier: Signal(unit.address_bits, name=f"base_{tier.name.lower()}") for tier in Tier}
        # rows that were read and rows to write
        self.chain = data.View(unit.chain, tables.clusters.r_data[0])
        self.entry = data.View(unit.entry, tables.pages.r_data[0])
        self.live = Value.cast(tables.live.r_data)
        self.marks = Value.cast(tables.marks.r_data)
        self.touched = Value.cast(tables.touched.r_data)
        self.new_chain, self.new_entry = Signal(unit.chain), Signal(unit.entry)
        self.backing_tier = Mux(self.entry.storage, Tier.STORAGE, Tier.HOST)
        self.chain_nonempty = self.chain.length != 0
        self.page_exists = (self.entry.chained | self.entry.references.any()) & (
            self.cmd.page < tables.free_pages.never_used
        )
        self.bad_head = self._out_of_range(self.cmd.head, unit.kv_heads)
        self.bad_cluster = self._out_of_range(self.cmd.cluster, unit.max_clusters)

    @staticmethod
    def _out_of_range(number: Value, count: int) -> Value:
        return number >= count if count < 1 << len(number) else Const(0)

    def _read_page(self, number: Value) -> list:
        tables = self.tables
        return [
            assign
            for ram in (tables.pages, tables.live, tables.marks)
            for assign in (ram.r_addr.eq(number), ram.r_en.eq(1))
        ]

    def _write_page(self, number: Value, **changes: Value | int) -> list:
        """Statements that write the row that was read last, with some columns changed."""
        ram = self.tables.pages
        columns = [self.new_entry[name].eq(value) for name, value in changes.items()]
        return [ram.w_addr.eq(number), ram.w_mask.eq(1), *columns]

    def _touch(self, number: Value, on: int) -> list:
        """Statements that set or clear the bit of a page in the summary of the marks."""
        ram, group = self.tables.touched, self.unit.group
        return [
            ram.w_addr.eq(number >> self.group_bits),
            ram.w_mask.eq(Const(1, group) << number[: self.group_bits]),
            ram.w_data.eq(Const((1 << group) - 1 if on else 0, group)),
        ]

    def _bit(self, slot: Value) -> Value:
        return (Const(1, self.unit.page_tokens) << slot)[: self.unit.page_tokens]

    def _refuse(self, m: Module, cause: Fault | int) -> None:
        m.d.comb += self.fault.eq(cause)
        m.d.sync += self.reply.fault.eq(cause)
        m.next = "ANSWER"

    def _transfers_allowed(self) -> Value:
        """True if the first transfer of this command may start."""
        tracker = self.tracker
        return tracker.free & (~tracker.active | (tracker.active_kind == self.kind))

    def _all_heads(self) -> Value:
        return Const((1 << self.unit.kv_heads) - 1, self.unit.kv_heads)

    def _address(self, tier: Value, number: Value, slot: Value) -> Value:
        unit = self.unit
        base = Mux(tier == Tier.DEVICE, self.bases[Tier.DEVICE], self.bases[Tier.HOST])
        base = Mux(tier == Tier.STORAGE, self.bases[Tier.STORAGE], base)
        offset = (number * unit.kv_heads + self.head) * unit.head_page_bytes + slot * unit.slot_bytes
        return (base + offset)[: unit.address_bits]

    def _wires(self, m: Module) -> None:
        unit, tables, piece = self.unit, self.tables, self.joiner.i.payload
        staging = (unit.cfg_staging_base + self.staging_head_page * unit.head_page_bytes)[: unit.address_bits]
        m.d.comb += [
            self.head.eq(lowest(self.heads, unit.kv_heads)),
            self.source.eq(self._address(self.source_tier, self.source_page, self.source_slot)),
            self.target.eq(
                Mux(self.staged, staging, self._address(self.target_tier, self.target_page, self.target_slot))
            ),
            piece.source.eq(self.source),
            piece.target.eq(self.target),
            piece.source_tier.eq(self.source_tier),
            piece.target_tier.eq(self.target_tier),
            piece.bytes.eq(self.tokens * unit.slot_bytes),
            self.new_entry.eq(self.entry),
            tables.pages.w_data[0].eq(self.new_entry),
            tables.clusters.w_data[0].eq(self.new_chain),
        ]
        with m.If(self.joiner.i.valid & self.joiner.i.ready):
            m.d.sync += self.pushed.eq(1)

    def _output(self, m: Module) -> None:
        """Output register: `emit` sends a beat if the register is free (`output_free`)."""
        unit, o = self.unit, self.unit.o
        self.beat = beat = Signal(unit.reply)
        m.d.comb += [
            self.output_free.eq(~o.valid | o.ready),
            beat.op.eq(self.reply.op),
            beat.page.eq(self.page),
            beat.head.eq(self.head),
            beat.tier.eq(self.target_tier),
            beat.address.eq(self.target),
            beat.count.eq(self.tokens),
        ]
        with m.If(self.output_free):
            m.d.sync += o.valid.eq(self.emit)
            with m.If(self.emit):
                m.d.sync += o.payload.eq(beat)
