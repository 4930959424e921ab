"""Specifications of the KVMU and its submodules; the docstring of each specification is the property."""

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
    """No number is allocated twice and none is lost: the list offers a free number exactly while one is free.

    Assumption: the owner of the list releases only allocated numbers.
    """

    def __init__(self, size: int):
        self.size = size
        ports = {"allocate": In(1), "release": In(1), "release_number": In(range(size)), "clear": In(1)}
        super().__init__({**ports, "cover_exhausted": Out(1), "cover_reused": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.list = free = FreeList(size=self.size)
        allocated = Signal(self.size)
        m.d.comb += [
            free.allocate.eq(self.allocate),
            free.release.eq(self.release),
            free.release_number.eq(self.release_number),
            free.clear.eq(self.clear),
            Assume(~self.release | allocated.bit_select(self.release_number, 1)),
            Assert(free.available == ~allocated.all()),
            Assert(~free.available | ~allocated.bit_select(free.number, 1)),
            self.cover_exhausted.eq(allocated.all()),
            self.cover_reused.eq((free.never_used == self.size) & free.available & (free.number == self.size - 1)),
        ]
        with m.If(self.allocate & free.available):
            m.d.sync += allocated.bit_select(free.number, 1).eq(1)
        with m.If(self.release):
            m.d.sync += allocated.bit_select(self.release_number, 1).eq(0)
        with m.If(self.clear):
            m.d.sync += allocated.eq(0)
        return m


class AgeListSpec(wiring.Component):
    """The list reports the oldest member, and the owner and the neighbours of every member, in order of entry.

    The reference model is a matrix of the order of entry of all pairs of frames. Assumptions: the owner of the list
    pushes only frames that are not members, and removes only the member that it has read.
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
        member, read_frame = Signal(self.size), Signal(range(self.size))
        is_older = [Signal(self.size, name=f"is_older{f}") for f in frames]  # bit g: frame g is older than f
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
        # a row describes the list at the time of the read
        m.d.sync += reading.eq(self.read & ~self.push & ~self.clear)
        with m.If(self.read):
            m.d.sync += read_frame.eq(self.read_frame)
        for f in frames:
            with m.If(read_frame == f):
                m.d.comb += older.eq(is_older[f] & member)
            newer = [member[g] & is_older[g][f] for g in frames]  # members newer than f
            m.d.comb += Assert(~member[f] | (is_older[f] & member).any() | (ages.oldest == f))
            with m.If(reading & (read_frame == f)):
                m.d.comb += Assert(ages.row.owner == owner[f])
                for g in frames:
                    nearest = ~Cat(member[h] & is_older[f][h] & is_older[h][g] for h in frames).any()
                    m.d.comb += Assert(~(member[g] & is_older[f][g] & nearest) | (ages.row.older == g))
                    is_next = ~Cat(newer[h] & is_older[g][h] for h in frames).any()
                    m.d.comb += Assert(~(newer[g] & is_next) | (ages.row.newer == g))
        m.d.comb += [
            self.cover_full.eq(member.all()),
            self.cover_middle_removed.eq(self.remove & older.any() & (ages.count == self.size)),
        ]
        with m.If(self.push):
            m.d.sync += member.bit_select(self.frame, 1).eq(1)
            for f in frames:
                with m.If(self.frame == f):
                    m.d.sync += [is_older[f].eq(member), owner[f].eq(self.owner)]
                with m.Else():
                    m.d.sync += is_older[f].bit_select(self.frame, 1).eq(0)
        with m.If(self.remove):
            m.d.sync += member.bit_select(read_frame, 1).eq(0)
        with m.If(self.clear):
            m.d.sync += member.eq(0)
        return m


class TransferSpec(wiring.Component):
    """Every byte of every piece is in exactly one descriptor, in order, with its source and target address.

    The specification tracks one arbitrary byte: the number of bytes ahead of it and its addresses. No descriptor is
    empty, exceeds the maximum length, or crosses a boundary at its source or target. The unit is empty after an end.
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
        waits = Signal()
        m.d.sync += waits.eq(joiner.i.valid & ~joiner.i.ready)
        m.d.comb += [
            joiner.i.valid.eq(self.offer),
            piece.source.eq(self.source),
            piece.target.eq(self.target),
            piece.bytes.eq(self.bytes),
            piece.last.eq(self.bytes == 0),  # marks an end
            splitter.o.ready.eq(self.ready),
            splitter.cfg_max_descriptor_bytes.eq(self.burst),
            Assume(~ResetSignal()),
            Assume((self.source + self.bytes <= limit) & (self.target + self.bytes <= limit)),
        ]
        for port in (self.source, self.target, self.bytes):
            previous = Signal.like(port)
            m.d.sync += previous.eq(port)
            m.d.comb += Assume(~waits | (self.offer & (port == previous)))
        constant(m, self.burst)

        accepted, sent = joiner.i.valid & joiner.i.ready, splitter.o.valid & splitter.o.ready
        buffered = Signal(self.length_bits + 2)  # bytes accepted and not sent
        tracked, ahead = Signal(), Signal.like(buffered)
        source, target = Signal(self.address_bits), Signal(self.address_bits)
        m.d.sync += buffered.eq(buffered + Mux(accepted, self.bytes, 0) - Mux(sent, descriptor.bytes, 0))
        with m.If(sent & tracked):
            m.d.sync += ahead.eq(ahead - descriptor.bytes)
            with m.If(ahead < descriptor.bytes):
                m.d.sync += tracked.eq(0)
                m.d.comb += [
                    Assert((descriptor.source + ahead)[: self.address_bits] == source),
                    Assert((descriptor.target + ahead)[: self.address_bits] == target),
                ]
        with m.If(accepted & self.pick & ~tracked & (self.at < self.bytes)):
            m.d.sync += [
                tracked.eq(1),
                ahead.eq(buffered + self.at - Mux(sent, descriptor.bytes, 0)),
                source.eq(self.source + self.at),
                target.eq(self.target + self.at),
            ]
        longest = Mux(self.burst == 0, self.boundary, self.burst)
        m.d.comb += [
            Assert(~joiner.idle | ~splitter.idle | (buffered == 0)),
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
    """A closed tag is reported once, when none of its transfers is in flight, with an error if one of them failed.

    The specification holds for an arbitrary tag. A completion is stray exactly when no transfer of its tag is in
    flight. Assumptions: a command issues under one tag, which is free at its start; it closes the tag after its last
    transfer; it never issues more transfers than the counter can represent. Completions arrive at arbitrary times.
    """

    def __init__(self, *, tags: int, count_bits: int):
        self.tags, self.count_bits = tags, count_bits
        tag = range(tags)
        super().__init__(
            {
                **{name: In(1) for name in ("issue", "close", "done", "done_error", "ready")},
                "done_tag": In(tag),
                "tag": In(tag),  # constant
                "cover_failed": Out(1),
                "cover_two": Out(1),
                "cover_stray": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.unit = unit = Tracker(tags=self.tags, count_bits=self.count_bits)
        constant(m, self.tag)
        issuing = Signal()  # a command has issued transfers and has not closed its tag
        in_flight, used, closed, failed = Signal(self.count_bits), Signal(), Signal(), Signal()
        here, mine, reported = Signal(), Signal(), Signal()
        max_count = (1 << self.count_bits) - 1
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
            Assume(~(self.issue & here) | (in_flight != max_count)),
            Assert(~reported | (closed & (in_flight == 0) & (unit.o.payload.error == failed))),
            Assert(~mine | (unit.stray == (in_flight == 0))),
            Assert(~here | (unit.free == ~used)),
            Assert(~used | unit.active),
            self.cover_failed.eq(reported & failed),
            self.cover_two.eq(reported & unit.active & ~here & issuing),
            self.cover_stray.eq(mine & unit.stray & used),
        ]
        m.d.sync += [
            issuing.eq((issuing | self.issue) & ~self.close),
            in_flight.eq(in_flight + (self.issue & here) - (mine & (in_flight != 0))),
        ]
        with m.If(self.issue & here):
            m.d.sync += used.eq(1)
        with m.If(self.close & here):
            m.d.sync += closed.eq(1)
        with m.If(mine & (in_flight != 0) & self.done_error):
            m.d.sync += failed.eq(1)
        with m.If(reported & self.ready):
            m.d.sync += [used.eq(0), closed.eq(0), failed.eq(0)]
        return m


class KvmuSpec(wiring.Component):
    """Live tokens map one-to-one to slots, pages never share a frame, and a fetch moves exactly the selected pages.

    The specification holds for an arbitrary slot, two arbitrary pages and an arbitrary KV head:
    - APPEND and MOVE return a slot without a live token. LOOKUP succeeds exactly while the slot is live.
    - Two resident pages are never in the same frame. LOOKUP reports device memory exactly for resident pages.
    - FETCH reports the head page once when it is selected, and otherwise never. FETCH reads the first byte of the slot
      from host memory or storage once when the head page moves and the slot is used, and otherwise never.
    - Every descriptor lies in the region of its tier at its source and its target, or ends in the staging area.

    The unit executes the operations of `script` in order, with arbitrary arguments. The reply stream and the descriptor
    stream are always ready. Completions arrive at arbitrary times.
    """

    def __init__(self, unit: KVMU, *, staging_head_pages: int, script: Sequence[object]):
        self.unit, self.staging_head_pages, self.script = unit, staging_head_pages, tuple(script)
        fields = {name: Shape.cast(f.shape).width for name, f in unit.command if name not in ("op", "layer", "tier")}
        cover_ops = {
            "appended": {Op.APPEND},
            "moved": {Op.MOVE},
            "offloaded": {Op.STEP},
            "fetched": {Op.STEP, Op.FETCH},
            "freed": {Op.FREE},
        }
        covers = [name for name, ops in cover_ops.items() if ops <= {*self.script}]
        super().__init__(
            {
                **{f"ask_{name}": In(width) for name, width in fields.items()},
                "done": In(1),
                "done_tag": In(range(unit.tags)),
                # constant
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

        request, index = unit.i.payload, Signal(range(len(self.script) + 1))
        with m.Switch(index):
            for n, op in enumerate(self.script):
                with m.Case(n):
                    m.d.comb += request.op.eq(op)
        m.d.comb += [
            unit.i.valid.eq(index != len(self.script)),
            *(
                request[name].eq(getattr(self, f"ask_{name}"))
                for name, _ in unit.command
                if hasattr(self, f"ask_{name}")
            ),
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
        state = self._track_slot(m, request, index)
        self._track_head_page(m, bases, state)
        self._check_descriptors(m, bases, staging)
        self._cover(m, state)
        return m

    def _track_slot(self, m: Module, request: Any, index: Signal) -> SimpleNamespace:
        """State of the tracked slot, its page and the other page, derived from commands and replies."""
        unit = self.unit
        cmd, reply = Signal(unit.command), unit.o.payload
        with m.If(unit.i.valid & unit.i.ready):
            m.d.sync += [cmd.eq(request), index.eq(index + 1)]
        replied, completed = Signal(), Signal()
        good = Signal()
        m.d.comb += [
            replied.eq(unit.o.valid),
            completed.eq(replied & reply.last),
            good.eq(completed & (reply.fault == Fault.NONE)),
        ]

        live, used = Signal(), Signal(range(unit.page_tokens + 1))
        is_slot = (reply.page == self.page) & (reply.slot == self.slot)
        allocated = Signal()
        moves_away = good & (cmd.op == Op.MOVE) & (cmd.page == self.page) & (cmd.slot == self.slot)
        references = [Signal(unit.reference_bits + 1, name=f"references{k}") for k in range(2)]
        resident = [Signal(name=f"resident{k}") for k in range(2)]
        frame = [Signal(unit.address_bits, name=f"frame{k}") for k in range(2)]
        m.d.comb += allocated.eq(good & ((cmd.op == Op.APPEND) | (cmd.op == Op.MOVE)))
        freed = Signal(2)
        for k, page in enumerate((self.page, self.other)):
            here = allocated & (reply.page == page)
            with m.If(here & (reply.slot == 0)):
                m.d.sync += [references[k].eq(0), resident[k].eq(1)]
                m.d.sync += frame[k].eq(reply.address)
            with m.If(replied & ~reply.last & (reply.op == Op.STEP) & (reply.page == page)):
                m.d.sync += resident[k].eq(0)
            with m.If(
                replied & ~reply.last & (reply.op == Op.FETCH) & (reply.page == page) & cmd.retain & reply.transit
            ):
                m.d.sync += [
                    resident[k].eq(1),
                    frame[k].eq((reply.address - reply.head * unit.head_page_bytes)[: unit.address_bits]),
                ]
            with m.If(good & (cmd.op == Op.HOLD) & (cmd.page == page)):
                m.d.sync += references[k].eq(references[k] + 1)
            with m.If(good & (cmd.op == Op.FREE) & (cmd.page == page)):
                m.d.sync += references[k].eq(Mux(references[k] != 0, references[k] - 1, 0))
                m.d.comb += freed[k].eq(reply.count == 0)
            with m.If(replied & ~reply.last & (reply.op == Op.EVICT) & (reply.page == page)):
                m.d.comb += freed[k].eq(references[k] == 0)
            with m.If(freed[k]):
                m.d.sync += resident[k].eq(0)
        with m.If(allocated & is_slot):
            m.d.comb += Assert(~live | moves_away)
            m.d.sync += live.eq(1)
        with m.Elif(moves_away | freed[0]):
            m.d.sync += live.eq(0)
        with m.If(allocated & (reply.page == self.page)):
            m.d.sync += used.eq(reply.slot + 1)
        with m.If(completed & (cmd.op == Op.LOOKUP) & (cmd.page == self.page) & (cmd.slot == self.slot)):
            m.d.comb += [
                Assert((reply.fault == Fault.NONE) == live),
                Assert(~good | ((reply.tier == Tier.DEVICE) == resident[0])),
            ]
        m.d.comb += Assert(~(resident[0] & resident[1] & (frame[0] == frame[1])))

        return SimpleNamespace(
            cmd=cmd, reply=reply, replied=replied, completed=completed, good=good, live=live, used=used,
            allocated=allocated, moves_away=moves_away, references=references, resident=resident, freed=freed,
        )  # fmt: skip

    def _track_head_page(self, m: Module, bases: Mapping[Any, tuple[int, int]], state: SimpleNamespace) -> None:
        """State of the tracked head page: selected, reported and read. BEGIN resets the state."""
        unit, cmd, reply = self.unit, state.cmd, state.reply
        replied, completed, good = state.replied, state.completed, state.good
        live, used, allocated, references = state.live, state.used, state.allocated, state.references
        resident, freed = state.resident, state.freed
        marked, owner, chained = Signal(), Signal.like(cmd.cluster), Signal()
        reports, moved, reads = Signal(2), Signal(), Signal(2)
        sent, descriptor = Signal(), unit.o_dma.payload
        with m.If(allocated & (reply.page == self.page) & (reply.slot == 0)):
            m.d.sync += [owner.eq(cmd.cluster), chained.eq(1), marked.eq(0)]
        with m.If(replied & ~reply.last & (reply.op == Op.EVICT) & (reply.page == self.page)):
            m.d.sync += chained.eq(0)
        here = cmd.heads.bit_select(self.head, 1)
        in_use = resident[0] | live | (references[0] != 0) | chained
        with m.If(good & (cmd.op == Op.SELECT) & chained & (cmd.cluster == owner) & here):
            m.d.sync += marked.eq(1)
        with m.If(good & (cmd.op == Op.MARK) & (cmd.page == self.page) & here & in_use):
            m.d.sync += marked.eq(1)
        with m.If(freed[0]):
            m.d.sync += [marked.eq(0), chained.eq(0)]
        m.d.comb += sent.eq(unit.o_dma.valid & unit.o_dma.ready)
        first = (self.page * unit.kv_heads + self.head) * unit.head_page_bytes + self.slot * unit.slot_bytes
        backing_address = Mux(descriptor.source_tier == Tier.HOST, bases[Tier.HOST][0], bases[Tier.STORAGE][0]) + first
        covers = (
            (descriptor.source_tier != Tier.DEVICE)
            & (descriptor.source <= backing_address)
            & (backing_address < descriptor.source + descriptor.bytes)
        )
        with m.If(sent & covers & (cmd.op == Op.FETCH)):
            m.d.sync += reads.eq(reads + (reads != 3))
        with m.If(
            replied & ~reply.last & (reply.op == Op.FETCH) & (reply.page == self.page) & (reply.head == self.head)
        ):
            m.d.sync += [reports.eq(reports + (reports != 3)), moved.eq(reply.transit)]
        with m.If(completed & (cmd.op == Op.FETCH)):
            m.d.sync += [reports.eq(0), moved.eq(0), reads.eq(0), marked.eq(0)]
            m.d.comb += [
                Assert(reports <= 1),
                Assert(~good | cmd.retain | ((reports == 1) == marked)),
                Assert(~good | ~cmd.retain | ~marked | (reports == 1)),
                Assert(reads == (moved & (self.slot < used))),
            ]
        with m.If(good & (cmd.op == Op.BEGIN)):
            m.d.sync += [
                live.eq(0),
                marked.eq(0),
                chained.eq(0),
                *(r.eq(0) for r in resident),
                *(h.eq(0) for h in references),
            ]
        state.reads = reads

    def _check_descriptors(self, m: Module, bases: Mapping[Any, tuple[int, int]], staging: tuple[int, int]) -> None:
        """Source and target of every descriptor lie in one region."""
        unit, descriptor = self.unit, self.unit.o_dma.payload
        for side in ("source", "target"):
            tier, begin = descriptor[f"{side}_tier"], descriptor[side]
            end = begin + descriptor.bytes
            in_region = [(tier == t) & (begin >= low) & (end <= high) for t, (low, high) in bases.items()]
            if side == "target":
                in_region.append((tier == Tier.DEVICE) & (begin >= staging[0]) & (end <= staging[1]))
            m.d.comb += Assert(~unit.o_dma.valid | Cat(in_region).any())

    def _cover(self, m: Module, state: SimpleNamespace) -> None:
        """Events that must be reachable."""
        offloads = (state.reply.op == Op.STEP) & (state.reply.page == self.page)
        events = {
            "appended": state.live & (self.slot == 1),
            "moved": state.moves_away,
            "offloaded": state.replied & ~state.reply.last & offloads,
            "fetched": state.completed & (state.cmd.op == Op.FETCH) & (state.reads == 1),
            "freed": state.freed[0],
        }
        for name, event in events.items():
            if hasattr(self, f"cover_{name}"):
                m.d.comb += getattr(self, f"cover_{name}").eq(event)


def small_kvmu() -> KVMU:
    """A KVMU with four pages of two slots and two page frames."""
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


# name -> specification, and number of cycles of the bounded proof (None: all cycles)
PROOFS: dict[str, tuple[Callable[[], wiring.Component], int | None]] = {
    "free_list": (lambda: FreeListSpec(4), None),
    "age_list": (lambda: AgeListSpec(4, 4), None),
    "tracker": (lambda: TrackerSpec(tags=2, count_bits=2), None),
    "transfer": (lambda: TransferSpec(address_bits=3, boundary=2), 7),
    "kvmu_fetching": (_scripted(Op.APPEND, Op.APPEND, Op.STEP, Op.SELECT, Op.FETCH, Op.LOOKUP), 48),
    "kvmu_holding": (_scripted(Op.APPEND, Op.APPEND, Op.HOLD, Op.EVICT, Op.LOOKUP, Op.FREE, Op.LOOKUP), 55),
    "kvmu_moving": (_scripted(Op.APPEND, Op.APPEND, Op.MOVE, Op.LOOKUP, Op.FREE, Op.APPEND, Op.LOOKUP), 48),
}
