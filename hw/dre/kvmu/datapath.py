"""Registers, addresses and output of the KVMU: what its states share."""

from dataclasses import dataclass

from amaranth import Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring

from hw.common.memory import Ram
from hw.dre.kvmu.age_list import AgeList
from hw.dre.kvmu.command import Fault, Stat
from hw.dre.kvmu.free_list import FreeList
from hw.dre.transfer import Joiner, Kind, Splitter, Tier, Tracker


@dataclass(frozen=True)
class Tables:
    """The memories of one unit."""

    clusters: Ram
    pages: Ram
    live: Ram
    marks: Ram
    touched: Ram
    free_pages: FreeList
    free_page_frames: FreeList
    ages: AgeList


def lowest(bits: Value, width: int) -> Value:
    """Number of the lowest bit that is set, 0 when none is."""
    number: Value = Const(0, max(1, (width - 1).bit_length()))
    for n in reversed(range(width)):
        number = Mux(bits[n], n, number)
    return number


class Datapath:
    """The registers between the states, and what hangs on them.

    Every answer and every piece of a copy comes from the same registers: `source_*` and `target_*` name a slot on
    either side, `heads` the KV heads that are left. So there is one address generator for each side.

    Attributes
    ----------
    unit : the KVMU, for its ports, sizes and layouts
    kind : of the transfers of the present command
    fault : cause raised in this cycle
    events : what each counter adds in this cycle
    """

    def __init__(self, unit: wiring.Component, tables: Tables, joiner: Joiner, splitter: Splitter, tracker: Tracker):
        self.unit, self.tables = unit, tables
        self.joiner, self.splitter, self.tracker = joiner, splitter, tracker
        self.page_bits, self.group_bits = (unit.max_pages - 1).bit_length(), (unit.group - 1).bit_length()
        self.events: dict[Stat, Value] = {}
        # the command, its answer, and how far it is
        self.cmd, self.reply = Signal(unit.command), Signal(unit.reply)
        self.kind, self.fault = Signal(Kind), Signal(Fault)
        self.located = Signal()  # the answer carries a place
        self.pushed = Signal()  # a piece was handed to the joiner
        self.failed = Signal()  # a FETCH has given up
        self.room, self.emit, self.waiting = Signal(), Signal(), Signal()
        self.opening, self.appended, self.released = Signal(), Signal(), Signal()
        # a walk along pages
        self.page = Signal(self.page_bits)
        self.owner, self.gone = Signal(unit.chain), Signal(unit.entry)
        self.index = Signal(range(unit.max_pages * unit.page_tokens))
        self.quota = Signal(range(unit.max_pages + 1))  # pages that EVICT still takes out
        self.row, self.seen = Signal(range(max(2, unit.max_pages // unit.group))), Signal(unit.group)
        # both sides of a copy; the target is also the place of an answer
        self.source_tier, self.target_tier = Signal(Tier), Signal(Tier)
        self.source_page, self.target_page = Signal(self.page_bits), Signal(self.page_bits)
        self.source_slot, self.target_slot = Signal(range(unit.page_tokens)), Signal(range(unit.page_tokens))
        self.tokens = Signal(range(unit.page_tokens + 1))
        self.heads, self.head = Signal(unit.kv_heads), Signal(range(unit.kv_heads))
        self.hit, self.staged = Signal(), Signal()
        self.place = Signal(range(2 * unit.staging_head_pages))  # unit of the staging area
        self.space = Signal(range(unit.staging_head_pages + 1))  # units left in its bank
        self.source, self.target = Signal(unit.address_bits), Signal(unit.address_bits)
        self.bases = {tier: Signal(unit.address_bits, name=f"base_{tier.name.lower()}") for tier in Tier}
        # rows read, and rows to write
        self.chain = data.View(unit.chain, tables.clusters.r_data[0])
        self.entry = data.View(unit.entry, tables.pages.r_data[0])
        self.live = Value.cast(tables.live.r_data)
        self.marks = Value.cast(tables.marks.r_data)
        self.touched = Value.cast(tables.touched.r_data)
        self.new_chain, self.new_entry = Signal(unit.chain), Signal(unit.entry)
        self.home = Mux(self.entry.storage, Tier.STORAGE, Tier.HOST)
        self.some = self.chain.length != 0
        self.known = (self.entry.chained | self.entry.held.any()) & (self.cmd.page < tables.free_pages.fresh)
        self.bad_head = self._outside(self.cmd.head, unit.kv_heads)
        self.bad_cluster = self._outside(self.cmd.cluster, unit.max_clusters)

    @staticmethod
    def _outside(number: Value, count: int) -> Value:
        return number >= count if count < 1 << len(number) else Const(0)

    def _read_page(self, number: Value) -> list:
        tables = self.tables
        return [
            assign
            for ram in (tables.pages, tables.live, tables.marks)
            for assign in (ram.r_addr.eq(number), ram.r_en.eq(1))
        ]

    def _write_page(self, number: Value, **changes: Value | int) -> list:
        """Write the row last read, with some columns changed."""
        ram = self.tables.pages
        columns = [self.new_entry[name].eq(value) for name, value in changes.items()]
        return [ram.w_addr.eq(number), ram.w_mask.eq(1), *columns]

    def _touch(self, number: Value, on: int) -> list:
        """Set or clear the bit of a page in the summary of marks."""
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

    def _clear_to_go(self) -> Value:
        """Whether the first transfer of this command may start."""
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
        staging = (unit.cfg_staging_base + self.place * unit.head_page_bytes)[: unit.address_bits]
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
        """The output register: `emit` offers a beat, `room` says that it goes."""
        unit, o = self.unit, self.unit.o
        self.beat = beat = Signal(unit.reply)
        m.d.comb += [
            self.room.eq(~o.valid | o.ready),
            beat.op.eq(self.reply.op),
            beat.page.eq(self.page),
            beat.head.eq(self.head),
            beat.tier.eq(self.target_tier),
            beat.address.eq(self.target),
            beat.count.eq(self.tokens),
        ]
        with m.If(self.room):
            m.d.sync += o.valid.eq(self.emit)
            with m.If(self.emit):
                m.d.sync += o.payload.eq(beat)
