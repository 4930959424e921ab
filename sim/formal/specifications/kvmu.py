"""Specifications of the KVMU and its submodules; each docstring is the property."""

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from amaranth import Cat, Module, Mux, ResetSignal, Signal
from amaranth.hdl import Assert, Assume, Shape
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.dre.kvmu.age_list import AgeList
from hw.dre.kvmu.command import Fault, Op
from hw.dre.kvmu.free_list import FreeList
from hw.dre.kvmu.kvmu import KVMU
from hw.dre.transfer import Joiner, Splitter, Tier, Tracker
from sim.formal.specifications.common import constant


class FreeListSpec(wiring.Component):
    """No number is lent twice and none is lost: one is on offer exactly while some are not lent, and it is one of them.

    The list relies on its owner to give back only what is lent.
    """

    def __init__(self, size: int):
        self.size = size
        ports = {"take": In(1), "give": In(1), "give_number": In(range(size)), "clear": In(1)}
        super().__init__({**ports, "cover_exhausted": Out(1), "cover_used_again": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.list = free = FreeList(size=self.size)
        lent = Signal(self.size)
        m.d.comb += [
            free.allocate.eq(self.take),
            free.release.eq(self.give),
            free.release_number.eq(self.give_number),
            free.clear.eq(self.clear),
            Assume(~self.give | lent.bit_select(self.give_number, 1)),
            Assert(free.available == ~lent.all()),
            Assert(~free.available | ~lent.bit_select(free.number, 1)),
            self.cover_exhausted.eq(lent.all()),
            self.cover_used_again.eq((free.never_used == self.size) & free.available & (free.number == self.size - 1)),
        ]
        with m.If(self.take & free.available):
            m.d.sync += lent.bit_select(free.number, 1).eq(1)
        with m.If(self.give):
            m.d.sync += lent.bit_select(self.give_number, 1).eq(0)
        with m.If(self.clear):
            m.d.sync += lent.eq(0)
        return m


class AgeListSpec(wiring.Component):
    """The list is the order of entry of its members: the oldest one, and every member's owner and neighbours.

    Beside the list stands a matrix: which frame was entered before which. The list relies on its owner to enter
    only frames that are not members and to remove only the member it has read.
    """

    def __init__(self, size: int, owners: int):
        self.size, self.owners = size, owners
        ports = {
            "push": In(1),
            "frame": In(range(size)),
            "owner": In(range(owners)),
            "read": In(1),
            "read_frame": In(range(size)),
            "remove": In(1),
            "clear": In(1),
        }
        super().__init__({**ports, "cover_full": Out(1), "cover_middle_removed": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.list = ages = AgeList(size=self.size, owners=self.owners)
        frames = range(self.size)
        member, shown = Signal(self.size), Signal(range(self.size))
        before = [Signal(self.size, name=f"before{f}") for f in frames]  # bit g: frame g is older than f
        owner = [Signal(range(self.owners), name=f"owner{f}") for f in frames]
        reading = Signal()
        older = Signal(self.size)
        m.d.comb += [
            ages.push.eq(self.push),
            ages.push_page_frame.eq(self.frame),
            ages.push_owner.eq(self.owner),
            ages.read.eq(self.read),
            ages.read_page_frame.eq(self.read_frame),
            ages.remove.eq(self.remove),
            ages.clear.eq(self.clear),
            Assume(~(self.push & self.remove) & ~(self.push & member.bit_select(self.frame, 1))),
            Assume(~self.read | member.bit_select(self.read_frame, 1)),
            Assume(~self.remove | (reading & ~self.read)),
            Assert(ages.count == sum(member[f] for f in frames)),
        ]
        # a row belongs to the list as it was when it was read
        m.d.sync += reading.eq(self.read & ~self.push & ~self.clear)
        with m.If(self.read):
            m.d.sync += shown.eq(self.read_frame)
        for f in frames:
            with m.If(shown == f):
                m.d.comb += older.eq(before[f] & member)
            others = [member[g] & before[g][f] for g in frames]  # what is newer than f
            m.d.comb += Assert(~member[f] | (before[f] & member).any() | (ages.oldest == f))
            with m.If(reading & (shown == f)):
                m.d.comb += Assert(ages.row.owner == owner[f])
                for g in frames:
                    nearest = ~Cat(member[h] & before[f][h] & before[h][g] for h in frames).any()
                    m.d.comb += Assert(~(member[g] & before[f][g] & nearest) | (ages.row.older == g))
                    next_one = ~Cat(others[h] & before[g][h] for h in frames).any()
                    m.d.comb += Assert(~(others[g] & next_one) | (ages.row.newer == g))
        m.d.comb += [
            self.cover_full.eq(member.all()),
            self.cover_middle_removed.eq(self.remove & older.any() & (ages.count == self.size)),
        ]
        with m.If(self.push):
            m.d.sync += member.bit_select(self.frame, 1).eq(1)
            for f in frames:
                with m.If(self.frame == f):
                    m.d.sync += [before[f].eq(member), owner[f].eq(self.owner)]
                with m.Else():
                    m.d.sync += before[f].bit_select(self.frame, 1).eq(0)
        with m.If(self.remove):
            m.d.sync += member.bit_select(shown, 1).eq(0)
        with m.If(self.clear):
            m.d.sync += member.eq(0)
        return m


class TransferSpec(wiring.Component):
    """Every byte of every piece is in exactly one descriptor, in order, from and to its own places.

    Followed is one byte, any of any piece: how many bytes are ahead of it, and where it belongs. No descriptor is
    empty, longer than the burst or across a boundary on either side, and nothing stays behind an end.
    """

    def __init__(self, *, address_bits: int, boundary: int):
        self.address_bits, self.boundary = address_bits, boundary
        self.length_bits = address_bits + 1
        super().__init__(
            {
                "offer": In(1),
                "source": In(address_bits),
                "target": In(address_bits),
                "bytes": In(self.length_bits),
                "ready": In(1),
                "burst": In(range(boundary + 1)),
                "pick": In(1),
                "at": In(address_bits),
                "cover_joined": Out(1),
                "cover_cut": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        sizes = {"address_bits": self.address_bits, "length_bits": self.length_bits}
        m.submodules.joiner = joiner = Joiner(**sizes)
        m.submodules.splitter = splitter = Splitter(**sizes, tag_bits=1, boundary=self.boundary)
        wiring.connect(m, joiner.o, splitter.i)
        piece, descriptor = joiner.i.payload, splitter.o.payload
        limit = 1 << self.address_bits
        held = Signal()
        m.d.sync += held.eq(joiner.i.valid & ~joiner.i.ready)
        m.d.comb += [
            joiner.i.valid.eq(self.offer),
            piece.source.eq(self.source),
            piece.target.eq(self.target),
            piece.bytes.eq(self.bytes),
            piece.last.eq(self.bytes == 0),  # an end
            splitter.o.ready.eq(self.ready),
            splitter.cfg_max_descriptor_bytes.eq(self.burst),
            Assume(~ResetSignal()),
            Assume((self.source + self.bytes <= limit) & (self.target + self.bytes <= limit)),
        ]
        for port in (self.source, self.target, self.bytes):
            before = Signal.like(port)
            m.d.sync += before.eq(port)
            m.d.comb += Assume(~held | (self.offer & (port == before)))
        constant(m, self.burst)

        taken, sent = joiner.i.valid & joiner.i.ready, splitter.o.valid & splitter.o.ready
        inside = Signal(self.length_bits + 2)  # bytes taken and not sent
        followed, ahead = Signal(), Signal.like(inside)
        source, target = Signal(self.address_bits), Signal(self.address_bits)
        m.d.sync += inside.eq(inside + Mux(taken, self.bytes, 0) - Mux(sent, descriptor.bytes, 0))
        with m.If(sent & followed):
            m.d.sync += ahead.eq(ahead - descriptor.bytes)
            with m.If(ahead < descriptor.bytes):
                m.d.sync += followed.eq(0)
                m.d.comb += [
                    Assert((descriptor.source + ahead)[: self.address_bits] == source),
                    Assert((descriptor.target + ahead)[: self.address_bits] == target),
                ]
        with m.If(taken & self.pick & ~followed & (self.at < self.bytes)):
            m.d.sync += [
                followed.eq(1),
                ahead.eq(inside + self.at - Mux(sent, descriptor.bytes, 0)),
                source.eq(self.source + self.at),
                target.eq(self.target + self.at),
            ]
        longest = Mux(self.burst == 0, self.boundary, self.burst)
        m.d.comb += [
            Assert(~joiner.idle | ~splitter.idle | (inside == 0)),
            Assert(~splitter.o.valid | ((descriptor.bytes != 0) & (descriptor.bytes <= longest))),
        ]
        low = self.boundary.bit_length() - 1
        for start in (descriptor.source, descriptor.target):
            m.d.comb += Assert(~splitter.o.valid | (start[:low] + descriptor.bytes <= self.boundary))
        m.d.comb += [
            self.cover_joined.eq(joiner.o.valid & (joiner.o.payload.bytes == limit)),
            self.cover_cut.eq(sent & ~splitter.i.ready),
        ]
        return m


class TrackerSpec(wiring.Component):
    """A tag is reported once after it is closed, when nothing of it is in flight, and with an error if there was one.

    For any tag, unknown to the unit. A completion is stray exactly when none is in flight under its tag. Commands
    issue only under a free tag or the one they began with, close what they have issued, and never issue more than can
    be counted; completions come as they like.
    """

    def __init__(self, *, tags: int, count_bits: int):
        self.tags, self.count_bits = tags, count_bits
        tag = range(tags)
        super().__init__(
            {
                **{name: In(1) for name in ("issue", "close", "done", "done_error", "ready")},
                "done_tag": In(tag),
                "tag": In(tag),  # constant in time
                "cover_failed": Out(1),
                "cover_two": Out(1),
                "cover_stray": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.unit = unit = Tracker(tags=self.tags, count_bits=self.count_bits)
        constant(m, self.tag)
        issuing = Signal()  # a command has issued and not closed
        flying, used, closed, wrong = Signal(self.count_bits), Signal(), Signal(), Signal()
        here, mine, reported = Signal(), Signal(), Signal()
        most = (1 << self.count_bits) - 1
        m.d.comb += [
            unit.issue.eq(self.issue),
            unit.close.eq(self.close),
            unit.i_done.valid.eq(self.done),
            unit.i_done.payload.tag.eq(self.done_tag),
            unit.i_done.payload.error.eq(self.done_error),
            unit.o.ready.eq(self.ready),
            here.eq(unit.tag == self.tag),
            mine.eq(self.done & (self.done_tag == self.tag)),
            reported.eq(unit.o.valid & (unit.o.payload.tag == self.tag)),
            Assume(~ResetSignal()),
            Assume(~self.issue | issuing | unit.free),
            Assume(~self.close | (issuing & ~self.issue)),
            Assume(~(self.issue & here) | (flying != most)),
            Assert(~reported | (closed & (flying == 0) & (unit.o.payload.error == wrong))),
            Assert(~mine | (unit.stray == (flying == 0))),
            Assert(~here | (unit.free == ~used)),
            Assert(~used | unit.active),
            self.cover_failed.eq(reported & wrong),
            self.cover_two.eq(reported & unit.active & ~here & issuing),
            self.cover_stray.eq(mine & unit.stray & used),
        ]
        m.d.sync += [
            issuing.eq((issuing | self.issue) & ~self.close),
            flying.eq(flying + (self.issue & here) - (mine & (flying != 0))),
        ]
        with m.If(self.issue & here):
            m.d.sync += used.eq(1)
        with m.If(self.close & here):
            m.d.sync += closed.eq(1)
        with m.If(mine & (flying != 0) & self.done_error):
            m.d.sync += wrong.eq(1)
        with m.If(reported & self.ready):
            m.d.sync += [used.eq(0), closed.eq(0), wrong.eq(0)]
        return m


class KvmuSpec(wiring.Component):
    """Live tokens and slots stay a bijection, frames are not shared, and a fetch moves exactly what was selected.

    For any slot, two pages and a KV head, unknown to the unit:
    - a place that APPEND or MOVE hands out holds no live token, and LOOKUP finds the slot exactly while it is live;
    - no two resident pages are in the same frame, and LOOKUP says device memory exactly of resident pages;
    - FETCH reports the unit (page, head) once if it was selected and else not at all, and reads the slot's first byte
      at its home once if the unit moves and the slot is in use, and else not at all;
    - every descriptor lies inside the region of its tier on both sides, or ends in the staging area.

    The operations of `script` come one after the other, with any arguments; the reply and the descriptor stream are
    always ready, completions come as they like.
    """

    def __init__(self, unit: KVMU, *, staging_head_pages: int, script: Sequence[object]):
        self.unit, self.staging_head_pages, self.script = unit, staging_head_pages, tuple(script)
        asks = {name: Shape.cast(f.shape).width for name, f in unit.command if name not in ("op", "layer", "tier")}
        needs = {
            "appended": {Op.APPEND},
            "moved": {Op.MOVE},
            "offloaded": {Op.STEP},
            "fetched": {Op.STEP, Op.FETCH},
            "freed": {Op.FREE},
        }
        covers = [name for name, needed in needs.items() if needed <= {*self.script}]
        super().__init__(
            {
                **{f"ask_{name}": In(width) for name, width in asks.items()},
                "done": In(1),
                "done_tag": In(range(unit.tags)),
                # constant in time
                "slot": In(range(unit.page_tokens)),
                "page": In(range(unit.max_pages)),
                "other": In(range(unit.max_pages)),
                "head": In(range(unit.kv_heads)),
                **{f"cover_{name}": Out(1) for name in covers},
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.unit = unit = self.unit
        bases, start = {}, 0
        for tier, pages in (
            (Tier.DEVICE, unit.page_frames),
            (Tier.HOST, unit.max_pages),
            (Tier.STORAGE, unit.max_pages),
        ):
            bases[tier] = (start, start + pages * unit.page_bytes)
            start += pages * unit.page_bytes
        staging = (start, start + 2 * self.staging_head_pages * unit.head_page_bytes)
        constant(m, self.slot, self.page, self.other, self.head)
        m.d.comb += [Assume(~ResetSignal()), Assume(self.page != self.other)]

        asked, turn = unit.i.payload, Signal(range(len(self.script) + 1))
        with m.Switch(turn):
            for n, op in enumerate(self.script):
                with m.Case(n):
                    m.d.comb += asked.op.eq(op)
        m.d.comb += [
            unit.i.valid.eq(turn != len(self.script)),
            *(asked[name].eq(getattr(self, f"ask_{name}")) for name, _ in unit.command if hasattr(self, f"ask_{name}")),
            unit.o.ready.eq(1),
            unit.o_complete.ready.eq(1),
            unit.o_dma.ready.eq(1),
            unit.i_done.valid.eq(self.done),
            unit.i_done.payload.tag.eq(self.done_tag),
            unit.cfg_page_frames_base.eq(bases[Tier.DEVICE][0]),
            unit.cfg_host_pages_base.eq(bases[Tier.HOST][0]),
            unit.cfg_storage_pages_base.eq(bases[Tier.STORAGE][0]),
            unit.cfg_staging_base.eq(staging[0]),
            unit.cfg_staging_head_pages.eq(self.staging_head_pages),
        ]
        state = self._track_slot(m, asked, turn)
        self._track_head_page(m, bases, state)
        self._check_descriptors(m, bases, staging)
        self._cover(m, state)
        return m

    def _track_slot(self, m: Module, asked: Any, turn: Signal) -> SimpleNamespace:
        """State of the tracked slot, its page and the other page, derived from commands and replies."""
        unit = self.unit
        cmd, reply = Signal(unit.command), unit.o.payload
        with m.If(unit.i.valid & unit.i.ready):
            m.d.sync += [cmd.eq(asked), turn.eq(turn + 1)]
        heard, ended = Signal(), Signal()
        good = Signal()
        m.d.comb += [
            heard.eq(unit.o.valid),
            ended.eq(heard & reply.last),
            good.eq(ended & (reply.fault == Fault.NONE)),
        ]

        live, used = Signal(), Signal(range(unit.page_tokens + 1))
        place = (reply.page == self.page) & (reply.slot == self.slot)
        placed = Signal()
        leaves = good & (cmd.op == Op.MOVE) & (cmd.page == self.page) & (cmd.slot == self.slot)
        held = [Signal(unit.reference_bits + 1, name=f"held{k}") for k in range(2)]
        resident = [Signal(name=f"resident{k}") for k in range(2)]
        frame = [Signal(unit.address_bits, name=f"frame{k}") for k in range(2)]
        m.d.comb += placed.eq(good & ((cmd.op == Op.APPEND) | (cmd.op == Op.MOVE)))
        gone = Signal(2)
        for k, page in enumerate((self.page, self.other)):
            here = placed & (reply.page == page)
            with m.If(here & (reply.slot == 0)):
                m.d.sync += [held[k].eq(0), resident[k].eq(1)]
                m.d.sync += frame[k].eq(reply.address)
            with m.If(heard & ~reply.last & (reply.op == Op.STEP) & (reply.page == page)):
                m.d.sync += resident[k].eq(0)
            with m.If(heard & ~reply.last & (reply.op == Op.FETCH) & (reply.page == page) & cmd.retain & reply.transit):
                m.d.sync += [
                    resident[k].eq(1),
                    frame[k].eq((reply.address - reply.head * unit.head_page_bytes)[: unit.address_bits]),
                ]
            with m.If(good & (cmd.op == Op.HOLD) & (cmd.page == page)):
                m.d.sync += held[k].eq(held[k] + 1)
            with m.If(good & (cmd.op == Op.FREE) & (cmd.page == page)):
                m.d.sync += held[k].eq(Mux(held[k] != 0, held[k] - 1, 0))
                m.d.comb += gone[k].eq(reply.count == 0)
            with m.If(heard & ~reply.last & (reply.op == Op.EVICT) & (reply.page == page)):
                m.d.comb += gone[k].eq(held[k] == 0)
            with m.If(gone[k]):
                m.d.sync += resident[k].eq(0)
        with m.If(placed & place):
            m.d.comb += Assert(~live | leaves)
            m.d.sync += live.eq(1)
        with m.Elif(leaves | gone[0]):
            m.d.sync += live.eq(0)
        with m.If(placed & (reply.page == self.page)):
            m.d.sync += used.eq(reply.slot + 1)
        with m.If(ended & (cmd.op == Op.LOOKUP) & (cmd.page == self.page) & (cmd.slot == self.slot)):
            m.d.comb += [
                Assert((reply.fault == Fault.NONE) == live),
                Assert(~good | ((reply.tier == Tier.DEVICE) == resident[0])),
            ]
        m.d.comb += Assert(~(resident[0] & resident[1] & (frame[0] == frame[1])))

        return SimpleNamespace(
            cmd=cmd, reply=reply, heard=heard, ended=ended, good=good, live=live, used=used, placed=placed,
            leaves=leaves, held=held, resident=resident, gone=gone,
        )  # fmt: skip

    def _track_head_page(self, m: Module, bases: Mapping[Any, tuple[int, int]], state: SimpleNamespace) -> None:
        """The tracked head page: selected, reported and read; it ends with what BEGIN resets."""
        unit, cmd, reply, heard, ended, good = self.unit, state.cmd, state.reply, state.heard, state.ended, state.good
        live, used, placed, held = state.live, state.used, state.placed, state.held
        resident, gone = state.resident, state.gone
        marked, owner, chained = Signal(), Signal.like(cmd.cluster), Signal()
        told, moved, reads = Signal(2), Signal(), Signal(2)
        sent, descriptor = Signal(), unit.o_dma.payload
        with m.If(placed & (reply.page == self.page) & (reply.slot == 0)):
            m.d.sync += [owner.eq(cmd.cluster), chained.eq(1), marked.eq(0)]
        with m.If(heard & ~reply.last & (reply.op == Op.EVICT) & (reply.page == self.page)):
            m.d.sync += chained.eq(0)
        here = cmd.heads.bit_select(self.head, 1)
        inside = resident[0] | live | (held[0] != 0) | chained
        with m.If(good & (cmd.op == Op.SELECT) & chained & (cmd.cluster == owner) & here):
            m.d.sync += marked.eq(1)
        with m.If(good & (cmd.op == Op.MARK) & (cmd.page == self.page) & here & inside):
            m.d.sync += marked.eq(1)
        with m.If(gone[0]):
            m.d.sync += [marked.eq(0), chained.eq(0)]
        m.d.comb += sent.eq(unit.o_dma.valid & unit.o_dma.ready)
        first = (self.page * unit.kv_heads + self.head) * unit.head_page_bytes + self.slot * unit.slot_bytes
        home = Mux(descriptor.source_tier == Tier.HOST, bases[Tier.HOST][0], bases[Tier.STORAGE][0]) + first
        covers = (
            (descriptor.source_tier != Tier.DEVICE)
            & (descriptor.source <= home)
            & (home < descriptor.source + descriptor.bytes)
        )
        with m.If(sent & covers & (cmd.op == Op.FETCH)):
            m.d.sync += reads.eq(reads + (reads != 3))
        with m.If(heard & ~reply.last & (reply.op == Op.FETCH) & (reply.page == self.page) & (reply.head == self.head)):
            m.d.sync += [told.eq(told + (told != 3)), moved.eq(reply.transit)]
        with m.If(ended & (cmd.op == Op.FETCH)):
            m.d.sync += [told.eq(0), moved.eq(0), reads.eq(0), marked.eq(0)]
            m.d.comb += [
                Assert(told <= 1),
                Assert(~good | cmd.retain | ((told == 1) == marked)),
                Assert(~good | ~cmd.retain | ~marked | (told == 1)),
                Assert(reads == (moved & (self.slot < used))),
            ]
        with m.If(good & (cmd.op == Op.BEGIN)):
            m.d.sync += [
                live.eq(0),
                marked.eq(0),
                chained.eq(0),
                *(r.eq(0) for r in resident),
                *(h.eq(0) for h in held),
            ]
        state.reads = reads

    def _check_descriptors(self, m: Module, bases: Mapping[Any, tuple[int, int]], staging: tuple[int, int]) -> None:
        """Source and target of every descriptor lie in one region."""
        unit, descriptor = self.unit, self.unit.o_dma.payload
        for side in ("source", "target"):
            tier, begin = descriptor[f"{side}_tier"], descriptor[side]
            end = begin + descriptor.bytes
            fits = [(tier == t) & (begin >= low) & (end <= high) for t, (low, high) in bases.items()]
            if side == "target":
                fits.append((tier == Tier.DEVICE) & (begin >= staging[0]) & (end <= staging[1]))
            m.d.comb += Assert(~unit.o_dma.valid | Cat(fits).any())

    def _cover(self, m: Module, state: SimpleNamespace) -> None:
        """Events that must be reachable."""
        offloads = (state.reply.op == Op.STEP) & (state.reply.page == self.page)
        happened = {
            "appended": state.live & (self.slot == 1),
            "moved": state.leaves,
            "offloaded": state.heard & ~state.reply.last & offloads,
            "fetched": state.ended & (state.cmd.op == Op.FETCH) & (state.reads == 1),
            "freed": state.gone[0],
        }
        for name, event in happened.items():
            if hasattr(self, f"cover_{name}"):
                m.d.comb += getattr(self, f"cover_{name}").eq(event)


def small_kvmu() -> KVMU:
    """Four pages of two slots, two frames."""
    sizes = {
        "kv_heads": 2,
        "head_dim": 1,
        "page_tokens": 2,
        "max_pages": 4,
        "page_frames": 2,
        "max_clusters": 2,
        "layers": 1,
    }
    return KVMU(**sizes, cluster_bits=2, address_bits=9, tags=2, reference_bits=1)


def _scripted(*script: object) -> Callable[[], KvmuSpec]:
    return lambda: KvmuSpec(small_kvmu(), staging_head_pages=2, script=script)


# name -> specification, and cycles of the bounded proof (None: for all time)
PROOFS: dict[str, tuple[Callable[[], wiring.Component], int | None]] = {
    "free_list": (lambda: FreeListSpec(4), None),
    "age_list": (lambda: AgeListSpec(4, 4), None),
    "tracker": (lambda: TrackerSpec(tags=2, count_bits=2), None),
    "transfer": (lambda: TransferSpec(address_bits=3, boundary=2), 7),
    "kvmu_fetching": (_scripted(Op.APPEND, Op.APPEND, Op.STEP, Op.SELECT, Op.FETCH, Op.LOOKUP), 48),
    "kvmu_holding": (_scripted(Op.APPEND, Op.APPEND, Op.HOLD, Op.EVICT, Op.LOOKUP, Op.FREE, Op.LOOKUP), 55),
    "kvmu_moving": (_scripted(Op.APPEND, Op.APPEND, Op.MOVE, Op.LOOKUP, Op.FREE, Op.APPEND, Op.LOOKUP), 48),
}
