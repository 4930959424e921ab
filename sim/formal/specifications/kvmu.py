"""Specifications of the components of the KVMU; the docstring of each specification is the property."""

from collections.abc import Callable
from itertools import permutations

from amaranth import Array, Cat, Const, Module, Mux, ResetSignal, Signal, Value
from amaranth.hdl import Assert, Assume
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.dre.kvmu.access import Access
from hw.dre.kvmu.candidate_loader import CandidateLoader
from hw.dre.kvmu.command import Op
from hw.dre.kvmu.copy_generator import CopyGenerator
from hw.dre.kvmu.free_pages import FreePages
from hw.dre.kvmu.line_cache import LineCache
from hw.dre.kvmu.page_frames import PageFrames
from hw.dre.kvmu.page_walker import PageWalker
from hw.dre.kvmu.records import CLUSTER_RECORD, CONTEXT_HEADER, FRAME_RECORD, NONE, PAGE_RECORD, STORE_HEADER
from hw.dre.kvmu.sizes import FrameAction, KvmuSizes
from hw.dre.kvmu.undo_log import LineWriter
from hw.dre.transfer import Joiner, Splitter, Tracker
from sim.formal.specifications.common import StreamContract, constant, stability

SIZES = {
    "kv_heads": 1,
    "head_dim": 1,
    "page_tokens": 2,
    "max_pages": 4,
    "page_frames": 4,
    "max_clusters": 2,
    "max_contexts": 2,
    "word": 256,
    "cache_lines": 2,
    "max_window_tokens": 3,
    "cluster_bits": 2,
    "hash_bits": 2,
    "address_bits": 16,
    "tags": 2,
    "reference_bits": 1,
}


def held(m: Module, port: stream.Interface) -> None:
    """Assume that the sender of a stream repeats a beat until it is accepted."""
    waits, payload = Signal(), Value.cast(port.payload)
    previous = Signal.like(payload)
    m.d.sync += [waits.eq(port.valid & ~port.ready), previous.eq(payload)]
    m.d.comb += Assume(~waits | (port.valid & (payload == previous)))


class SteadyStreams(StreamContract):
    """Every output stream repeats a beat unchanged until the reader accepts it, if every input stream does the same.

    The inputs of the component that are not streams are constant; the KVMU changes them only between its jobs.
    """

    def elaborate(self, platform: object) -> Module:
        m = super().elaborate(platform)
        constant(m, *(getattr(self, name) for name in self.inputs))
        return m


class LineCacheSpec(wiring.Component):
    """A read returns what was written last, and no line is written back before its log entry is acknowledged.

    The specification tracks one bit of an arbitrary block. Memory applies a write at its acknowledgement, as late as
    possible. The old content in a log entry is the content that memory has then.
    """

    def __init__(self) -> None:
        names = (
            *(
                "offer",
                "bit",
                "strobe",
                "accept",
                "job_ready",
                "word",
                "word_bit",
                "write_ready",
                "words_ready",
                "done",
            ),
            *("cover_read_back", "cover_logged_again"),
        )
        super().__init__(
            {
                **{name: Out(1) if name.startswith("cover") else In(1) for name in names},
                "op": In(2),
                "address": In(2),
                "tracked": In(2),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.cache = cache = LineCache(word=256, lines=2)
        constant(m, self.tracked)
        request, response = cache.memory.request, cache.memory.response
        m.d.comb += [
            Assume(~ResetSignal()),
            Assume(self.op != Value.cast(Access.INVALIDATE)),
            request.valid.eq(self.offer),
            Value.cast(request.payload.op).eq(self.op),
            request.payload.address.eq(self.address),
            request.payload.data.eq(self.bit),
            request.payload.strobe.eq(self.strobe),
            response.ready.eq(self.accept),
            cache.log_base.eq(1),
            cache.log_entries.eq(64),
        ]
        held(m, request)
        for name in ("read_job", "write_job", "write_words"):
            m.d.comb += Assert(stability(m, name, getattr(cache, name))[1])
        m.d.comb += Assert(stability(m, "response", response)[1])
        reference, expected, checks = Signal(), Signal(), Signal()
        here = request.payload.address == self.tracked
        with m.If(request.valid & request.ready & (request.payload.op != Access.FLUSH)):
            m.d.sync += [checks.eq(here & (request.payload.op == Access.READ)), expected.eq(reference)]
            with m.If(here & (request.payload.op == Access.WRITE) & self.strobe):
                m.d.sync += reference.eq(self.bit)
        with m.If(request.valid & request.ready & (request.payload.op == Access.FLUSH)):
            m.d.sync += checks.eq(0)
        m.d.comb += Assert(~response.valid | ~checks | (response.payload[0] == expected))
        memory, evicted = Signal(), Signal()
        self._reads(m, cache, memory)
        self._writes(m, cache, memory, evicted)
        m.d.comb += self.cover_read_back.eq(response.valid & checks & expected & evicted)
        return m

    def _reads(self, m: Module, cache: LineCache, memory: Signal) -> None:
        """One read job at a time, of one word."""
        busy, here, content = Signal(), Signal(), Signal()
        m.d.comb += [
            cache.read_job.ready.eq(self.job_ready & ~busy),
            cache.read_words.valid.eq(busy & self.word),
            cache.read_words.payload.data.eq(Mux(here, content, self.word_bit)),
            cache.read_words.payload.last.eq(1),
        ]
        held(m, cache.read_words)
        with m.If(cache.read_words.valid & cache.read_words.ready):
            m.d.sync += busy.eq(0)
        with m.If(cache.read_job.valid & cache.read_job.ready):
            m.d.sync += [busy.eq(1), here.eq(cache.read_job.payload.address == self.tracked), content.eq(memory)]

    def _writes(self, m: Module, cache: LineCache, memory: Signal, evicted: Signal) -> None:
        """Jobs of one word (write-back) and of two words (log entry); acknowledged in order."""
        job, words = cache.write_job, cache.write_words
        m.d.comb += [
            job.ready.eq(self.write_ready),
            words.ready.eq(self.words_ready),
            cache.write_done.eq(self.done),
        ]
        jobs, sending, count, address = Signal(4), Signal(), Signal(2), Signal(32)
        index, old = Signal(1), Signal()
        issued, sent = job.valid & job.ready, words.valid & words.ready
        last = sent & (index == count - 1)
        m.d.comb += [
            Assume(jobs != 15),
            Assume(~self.done | (jobs > sending)),
            Assert(~words.valid | sending),
            Assert(~job.valid | ~sending),
        ]
        m.d.sync += jobs.eq(jobs + issued - self.done)
        with m.If(issued):
            m.d.sync += [sending.eq(1), count.eq(job.payload.count), address.eq(job.payload.address), index.eq(0)]
        with m.If(sent):
            m.d.sync += [index.eq(index + 1), old.eq(words.payload.data[0])]
        with m.If(last):
            m.d.sync += sending.eq(0)
        # acknowledgements until that of the tracked log entry, and of the tracked write-back
        log_ahead, logged, home_ahead, content = Signal(4), Signal(), Signal(4), Signal()
        entry = last & (count == 2) & (words.payload.data[:32] == self.tracked)
        home = issued & (job.payload.count == 1) & (job.payload.address == self.tracked)
        m.d.comb += [
            Assert(~entry | (old == memory)),
            Assert(~home | (logged & (log_ahead == 0) & (home_ahead == 0))),
            self.cover_logged_again.eq(entry & evicted),
        ]
        with m.If(self.done & (log_ahead != 0)):
            m.d.sync += log_ahead.eq(log_ahead - 1)
        with m.If(entry):
            m.d.sync += [logged.eq(1), log_ahead.eq(jobs - self.done)]
        with m.If(self.done & (home_ahead != 0)):
            m.d.sync += home_ahead.eq(home_ahead - 1)
            with m.If(home_ahead == 1):
                m.d.sync += [memory.eq(content), evicted.eq(1)]
        with m.If(home):
            m.d.sync += [logged.eq(0), home_ahead.eq(jobs + 1 - self.done)]
        with m.If(last & (count == 1) & (address == self.tracked)):
            m.d.sync += content.eq(words.payload.data[0])


class PageWalkerSpec(wiring.Component):
    """SELECT visits each page of the chain once, in the order of the chain, and reports the length of the chain.

    The chain is an arbitrary path of up to three pages; the latencies of memory and of the copies are arbitrary.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                **{name: In(1) for name in ("start", "request_ready", "response", "copy_ready")},
                "chain": In(data.ArrayLayout(2, 3)),
                "pages": In(range(4)),
                "resident": In(4),
                "cover_three": Out(1),
                "cover_none": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        sizes = KvmuSizes(**SIZES)
        m.submodules.walker = walker = PageWalker(sizes=sizes)
        constant(m, self.chain, self.pages, self.resident)
        command, request, response = walker.i, walker.memory.request, walker.memory.response
        started, visited = Signal(), Signal(range(5))
        m.d.comb += [
            Assume(~ResetSignal()),
            *(Assume(self.chain[a] != self.chain[b]) for a, b in ((0, 1), (0, 2), (1, 2))),
            command.valid.eq(self.start | started),
            command.payload.op.eq(Op.SELECT),
            command.payload.heads.eq(1),
            walker.context.clusters.eq(1),
            walker.context.never_used.eq(4),
            walker.context.clusters_base.eq(1),
            walker.store.value.page_frames.eq(4),
            request.ready.eq(self.request_ready),
            walker.copies.ready.eq(self.copy_ready),
            walker.o.ready.eq(1),
        ]
        m.d.sync += started.eq(command.valid & ~command.ready)
        self._serve(m, request, response)
        copied = walker.copies.valid & walker.copies.ready
        with m.If(copied):
            m.d.sync += visited.eq(visited + 1)
        with m.If(walker.o.valid):
            m.d.sync += visited.eq(0)
        expected = Array(self.chain[n] for n in range(3))[visited]
        m.d.comb += [
            Assert(~walker.copies.valid | ((visited < self.pages) & (walker.copies.payload.page == expected))),
            Assert(~walker.o.valid | ((visited == self.pages) & (walker.o.payload.count == self.pages))),
            self.cover_three.eq(walker.o.valid & (self.pages == 3)),
            self.cover_none.eq(walker.o.valid & (self.pages == 0)),
        ]
        return m

    def _serve(self, m: Module, request: stream.Interface, response: stream.Interface) -> None:
        """Answer reads: block 4 is the record of the cluster, the blocks below are those of the pages."""
        busy, address = Signal(), Signal(32)
        cluster, page = Signal(CLUSTER_RECORD), Signal(PAGE_RECORD)
        m.d.comb += [
            cluster.pages.eq(self.pages),
            cluster.first_page.eq(self.chain[0]),
            page.used.eq(1),
            page.live.eq(1),
            page.flags.chained.eq(1),
            page.flags.resident.eq(self.resident.bit_select(address[:2], 1)),
            page.next.eq(NONE),
            response.valid.eq(busy & self.response),
            response.payload.eq(Mux(address == 4, cluster, page)),
            Assert(~request.valid | (request.payload.op == Access.READ)),
            Assert(~busy | (address <= 4)),
        ]
        for before, after in ((0, 1), (1, 2)):
            with m.If(address == self.chain[before]):
                m.d.comb += page.next.eq(self.chain[after])
        held(m, response)
        with m.If(response.valid & response.ready):
            m.d.sync += busy.eq(0)
        with m.If(request.valid & request.ready):
            m.d.sync += [busy.eq(1), address.eq(request.payload.address)]


def _number(compact: Value) -> Value:
    """A number of 32 bits from a compact one, whose highest bit stands for `NONE`."""
    return Mux(compact[-1], Const(NONE, 32), compact[:-1])


class FreePagesSpec(wiring.Component):
    """No page is allocated twice and none is lost: a page is available exactly while one is free.

    Memory has a record with the link of each page. Assumption: only allocated pages are released.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                **{name: In(1) for name in ("offer", "release", "request_ready", "response")},
                "page": In(2),
                "cover_exhausted": Out(1),
                "cover_reused": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.pages = pages = FreePages(sizes=KvmuSizes(**SIZES))
        context, call = Signal(CONTEXT_HEADER, init={"free_first": NONE, "free_last": NONE, "max_pages": 4}), pages.call
        links, allocated = Array(Signal(3, name=f"link{n}") for n in range(4)), Signal(4)
        request, response = pages.memory.request, pages.memory.response
        busy, link = Signal(), Signal(3)
        m.d.comb += [
            Assume(~ResetSignal()),
            pages.context.value.eq(context),
            call.request.valid.eq(self.offer),
            call.request.payload.release.eq(self.release),
            call.request.payload.page.eq(self.page),
            Assume(~self.offer | ~self.release | allocated.bit_select(self.page, 1)),
            Assume(~self.offer | self.release | call.available),
            request.ready.eq(self.request_ready & ~busy),
            response.valid.eq(busy & self.response),
            response.payload[32:64].eq(_number(link)),
        ]
        held(m, call.request)
        held(m, response)
        with m.If(pages.context.write):
            m.d.sync += context.eq(pages.context.next)
        with m.If(response.valid & response.ready):
            m.d.sync += busy.eq(0)
        with m.If(request.valid & request.ready):
            number, value = request.payload.address[:2], request.payload.data[32:64]
            with m.If(request.payload.op == Access.READ):
                m.d.sync += [busy.eq(1), link.eq(links[number])]
            with m.Elif(request.payload.strobe[2]):
                m.d.sync += links[number].eq(Cat(value[:2], value == NONE))
        done = call.request.valid & call.request.ready
        with m.If(done):
            m.d.sync += allocated.bit_select(Mux(self.release, self.page, call.page), 1).eq(~self.release)
        m.d.comb += [
            Assert(call.available == ~allocated.all()),
            Assert(~done | self.release | ~allocated.bit_select(call.page, 1)),
            self.cover_exhausted.eq(allocated.all()),
            self.cover_reused.eq(done & ~self.release & (context.never_used == 4)),
        ]
        return m


class PageFramesSpec(wiring.Component):
    """No page frame is allocated twice, none is lost; `oldest` was allocated or renewed first, `newest` last.

    Between two commands each record links the frames before and after its own. Memory has the record of each frame.
    Assumption: only allocated frames are released and renewed.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                **{name: In(1) for name in ("offer", "request_ready", "response")},
                "action": In(FrameAction),
                "frame": In(2),
                "cover_full": Out(1),
                "cover_middle_released": Out(1),
                "cover_middle_renewed": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.frames = frames = PageFrames(sizes=KvmuSizes(**SIZES))
        none = dict.fromkeys(("free_first", "free_last", "oldest", "newest"), NONE)
        store, call = Signal(STORE_HEADER, init={**none, "page_frames": 4}), frames.call
        member = Signal(4)
        older = [Signal(4, name=f"older{f}") for f in range(4)]  # bit g: frame g was allocated or renewed before f
        takes, releases, renews = (
            self.action == action for action in (FrameAction.TAKE, FrameAction.RELEASE, FrameAction.RENEW)
        )
        m.d.comb += [
            Assume(~ResetSignal()),
            frames.store.value.eq(store),
            call.request.valid.eq(self.offer),
            call.request.payload.action.eq(self.action),
            call.request.payload.frame.eq(self.frame),
            Assume(takes | releases | renews),
            Assume(~self.offer | takes | member.bit_select(self.frame, 1)),
            Assume(~self.offer | ~takes | call.available),
        ]
        held(m, call.request)
        with m.If(frames.store.write):
            m.d.sync += store.eq(frames.store.next)
        links = self._serve(m, frames)
        done = call.request.valid & call.request.ready
        becomes_newest = Mux(takes, call.frame, self.frame)
        with m.If(done & releases):
            m.d.sync += member.bit_select(self.frame, 1).eq(0)
        with m.If(done & ~releases):
            m.d.sync += member.bit_select(becomes_newest, 1).eq(1)
            for f in range(4):
                with m.If(becomes_newest == f):
                    m.d.sync += older[f].eq(member & ~Const(1 << f, 4))
                with m.Else():
                    m.d.sync += older[f].bit_select(becomes_newest, 1).eq(0)
        for f in range(4):
            others = member & ~Const(1 << f, 4)
            m.d.comb += [
                Assert(~member[f] | (older[f] & member).any() | (store.oldest == f)),
                Assert(~member[f] | ((older[f] & others) != others) | (store.newest == f)),
            ]
        idle = ~call.request.valid & ~frames.memory.request.valid
        for f, g in permutations(range(4), 2):  # g is next to f, if all others are older than g or newer than f
            before = member[f] & member[g] & ((older[f] & member) == (older[g] & member | Const(1 << g, 4)))
            m.d.comb += Assert(~(idle & before) | ((links["o"][f] == g) & (links["n"][g] == f)))
        middle = Signal()
        for f in range(4):
            with m.If(self.frame == f):
                m.d.comb += middle.eq((older[f] & member).any())
        m.d.comb += [
            Assert(call.available == ~member.all()),
            Assert(~done | ~takes | ~member.bit_select(call.frame, 1)),
            Assert(store.resident_pages == sum(member[f] for f in range(4))),
            self.cover_full.eq(member.all()),
            self.cover_middle_released.eq(done & releases & middle & (store.resident_pages == 3)),
            self.cover_middle_renewed.eq(done & renews & middle & (store.newest != self.frame)),
        ]
        return m

    def _serve(self, m: Module, frames: PageFrames) -> dict[str, Array]:
        """Answer reads and execute writes; two records are in one block. Returns the links of the records."""
        request, response = frames.memory.request, frames.memory.response
        busy, block = Signal(), Signal(1)
        words = {"o": 2, "n": 3}  # older and newer frame
        links = {name: Array(Signal(3, name=f"{name}{n}") for n in range(4)) for name in words}
        content = Signal(256)
        m.d.comb += [
            request.ready.eq(self.request_ready & ~busy),
            response.valid.eq(busy & self.response),
            response.payload.eq(content),
        ]
        for half in range(2):
            for name, values in links.items():
                start = half * FRAME_RECORD.size + 32 * words[name]
                m.d.comb += content[start : start + 32].eq(_number(values[(block << 1) + half]))
        held(m, response)
        with m.If(response.valid & response.ready):
            m.d.sync += busy.eq(0)
        with m.If(request.valid & request.ready):
            with m.If(request.payload.op == Access.READ):
                m.d.sync += [busy.eq(1), block.eq(request.payload.address[0])]
            with m.Else():
                for half in range(2):
                    for name, values in links.items():
                        value = request.payload.data[half * FRAME_RECORD.size + 32 * words[name] :][:32]
                        with m.If(request.payload.strobe[half * 8 + 2 * words[name]]):
                            number = (request.payload.address[0] << 1) + half
                            m.d.sync += values[number].eq(Cat(value[:2], value == NONE))
        return links


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


def _small_loader() -> SteadyStreams:
    return SteadyStreams(CandidateLoader(word=512, cluster_bits=2, hash_bits=2, window_bits=2))


# name -> specification, and number of cycles of the bounded proof (None: all cycles)
PROOFS: dict[str, tuple[Callable[[], wiring.Component], int | None]] = {
    "free_pages": (FreePagesSpec, 24),
    "page_frames": (PageFramesSpec, 26),
    "page_walker": (PageWalkerSpec, None),
    "line_cache": (LineCacheSpec, 24),
    "line_writer_streams": (lambda: StreamContract(LineWriter(word=64, line=256)), None),
    "copy_generator_streams": (lambda: SteadyStreams(CopyGenerator(sizes=KvmuSizes(**SIZES))), 12),
    "candidate_loader_streams": (_small_loader, 12),
    "tracker": (lambda: TrackerSpec(tags=2, count_bits=2), None),
    "transfer": (lambda: TransferSpec(address_bits=3, boundary=2), 7),
}
SLOW = ("free_pages", "page_frames", "line_cache", "candidate_loader_streams")  # proofs of minutes
