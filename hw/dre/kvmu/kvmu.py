"""KVMU: KV cache management unit (V-Rex, section V-C)."""

# mypy: disable-error-code="assignment,arg-type"

from dataclasses import dataclass

from amaranth import Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hw.axi.engines import read_word_layout, write_word_layout
from hw.axi.ports import JOB, check_width
from hw.common.counters import count
from hw.config import Config
from hw.dre.kvmu.access import broadcast, merge, share
from hw.dre.kvmu.candidate_loader import CandidateLoader
from hw.dre.kvmu.chain_editor import ChainEditor
from hw.dre.kvmu.command import COUNT_BITS, Fault, Op, Stat
from hw.dre.kvmu.copy_generator import CopyGenerator
from hw.dre.kvmu.dispatcher import EXECUTORS, Dispatcher
from hw.dre.kvmu.free_pages import FreePages
from hw.dre.kvmu.headers import Headers
from hw.dre.kvmu.line_cache import LineCache
from hw.dre.kvmu.offloader import Offloader
from hw.dre.kvmu.page_editor import PageEditor
from hw.dre.kvmu.page_frames import PageFrames
from hw.dre.kvmu.page_walker import PageWalker
from hw.dre.kvmu.records import BASE_BITS, BLOCK_BITS
from hw.dre.kvmu.sizes import KvmuSizes
from hw.dre.kvmu.timing import KvmuTiming
from hw.dre.transfer import BOUNDARY, Joiner, Splitter, Tracker, TransferKind, descriptor_layout

WAITING_EXTENTS = 32  # extents whose pages are looked up, before the engine copies them


@dataclass(frozen=True)
class Parts:
    """The components of a KVMU."""

    dispatcher: Dispatcher
    headers: Headers
    candidate_loader: CandidateLoader
    chain_editor: ChainEditor
    page_editor: PageEditor
    page_walker: PageWalker
    offloader: Offloader
    free_pages: FreePages
    page_frames: PageFrames
    cache: LineCache
    copies: CopyGenerator
    joiner: Joiner
    splitter: Splitter
    tracker: Tracker


class KVMU(wiring.Component):
    """Keeps the retrieval state of many contexts in memory, stores tokens in pages and issues DMA descriptors.

    Terms. A context is one layer of one stream. A page holds `page_tokens` token slots of a cluster. A page frame is a
    position in device memory that holds one page. A head page is the part of a page that belongs to one KV head. The
    backing tier of a page is host memory or storage; each page number of a context has a fixed address there. The pages
    of a cluster form a chain.

    State. All records are in a store in memory (`hw.dre.kvmu.records`): clusters, token counts, pages, token lists and
    page frames. On chip are a few lines of it (`LineCache`), and the headers of the store and of the open context. OPEN
    selects the context and sends the cluster records that are candidates for new tokens. Changes reach memory when
    lines are evicted and with STEP, which ends a step. An undo log in memory keeps the old content of changed lines and
    of the mean keys of clusters that get tokens. So software can restore the start of the step after a fault or a
    reset: the store is either the old or the new one. The mean keys of a step may be changed as soon as its tokens are
    stored and `settled` is high.

    Storing. APPEND stores a token in the open page of its cluster. A page closes when it is full, offloaded, sealed, or
    when a token is moved out of it; the next token of the cluster opens another page. A page stays in its page frame
    until STEP offloads it to its backing tier. All contexts share the page frames; the oldest pages leave first.

    Fetching. SELECT reports the address of each head page of a cluster and issues the transfers of the offloaded ones
    to the staging area (or, with `retain`, of whole pages to page frames). With `retain`, every selected page becomes
    the newest one: the pages that leave first are those that were not used for the longest time. Contiguous head pages
    become one extent; extents are split into descriptors. FETCH ends the fetch. Freed page numbers are used again,
    oldest first.

    References. A page belongs to its cluster. HOLD adds references for tables outside the unit that name the page by
    its number. EVICT shortens a chain to its first and last pages. FREE drops one reference. A page without a reference
    is free; until then it keeps its bytes and can be fetched (MARK).

    Transfers. Up to `WAITING_EXTENTS` extents wait while further clusters are looked up. The engine at `o_dma` executes
    descriptors in order and answers each on `i_done`. A command whose transfers are of another kind than those in
    flight waits for them. A token that would open a page waits while anything but a fetch is in flight. So no page
    frame is written while it is read.

    Faults. A refused command changes nothing, replies with its cause and sets bit `1 << cause` of `stat_faults`; the
    unit continues. Exceptions: a SELECT or MARK that runs out of staging area or page frames keeps its completed
    transfers, and the rest of its fetch is refused; LOG is final: the step cannot be committed, everything is refused
    until reset.

    Timing
    ------
    One command at a time; `cycles` gives the cycles of commands, exact while no stream stalls. There is no
    combinational path between streams, except between `read_words` and `o_candidates` if a word holds whole records.

    Numerics: integers only.

    Parameters
    ----------
    kv_heads, head_dim : of the model
    kv_bits : bits of a stored element, see `hw.kv_codec.page_layout`. 16: a slot holds the key, then the value.
        4: an address is that of the block of a slot; copies consist of whole blocks; MOVE does not exist
    page_tokens : token slots of a page, a power of two, at most 32
    max_pages, max_clusters : largest sizes of a context ; page_frames : largest number of page frames of all contexts
    max_contexts : largest number of contexts
    word : bits of a memory word ; cache_lines : lines on chip, of one memory word and at least 32 bytes
    max_window_tokens : largest window
    cluster_bits, hash_bits, address_bits : widths of cluster numbers, hash codes and byte addresses
    tags : commands with transfers in flight
    reference_bits : width of the number of further references of a page
    counters : False: the counters `Stat` are always zero

    Members
    -------
    i : stream of `command_layout` ; o : stream of `reply_layout`
    o_candidates : stream of `candidate_layout`
    o_dma : stream of `descriptor_layout`
    i_done : completions {tag, error}, at least one cycle after the descriptor
    o_complete : stream of {tag, error}, sent when all descriptors of a tag are done
    read_job, read_words, write_job, write_words, write_done : a read engine and a write engine for the store
    settled : memory has acknowledged all writes to the store
    tokens, clusters, counts_base, mean_keys_base : of the open context; base addresses in units of 128 bytes
    cfg_store_base : byte address of the store header, a multiple of 128
    cfg_page_frames_base, cfg_staging_base : byte addresses
    cfg_staging_head_pages : head pages of each of the two staging banks
    cfg_max_resident_tokens : tokens of all contexts that remain in device memory after STEP; one page always remains
    cfg_max_cluster_tokens : token count at which the count of a cluster saturates
    cfg_window_tokens : largest age of the first token of a candidate; 0: no limit
    cfg_offload_to_storage : 1: the backing tier of new pages is storage; 0: host memory
    cfg_max_descriptor_bytes : longest descriptor, 1 to 4096; 0 means 4096
    stat_* : see `Stat` ; stat_faults : sticky, one bit per `Fault` ; stat_resident : tokens in device memory

    Raises
    ------
    ValueError
        If a size is outside its range.

    Source: V-Rex (arXiv 2512.12284), section V-C.
    """

    latency = None

    def __init__(
        self,
        *,
        kv_heads: int,
        head_dim: int,
        page_tokens: int,
        max_pages: int,
        page_frames: int,
        max_clusters: int,
        max_contexts: int,
        word: int,
        cache_lines: int,
        max_window_tokens: int = 4096,
        cluster_bits: int = 16,
        hash_bits: int = 32,
        address_bits: int = 48,
        tags: int = 4,
        reference_bits: int = 4,
        counters: bool = True,
        kv_bits: int = 16,
    ):
        check_width(word)
        self.sizes = sizes = KvmuSizes(
            kv_heads=kv_heads,
            head_dim=head_dim,
            page_tokens=page_tokens,
            max_pages=max_pages,
            page_frames=page_frames,
            max_clusters=max_clusters,
            max_contexts=max_contexts,
            word=word,
            cache_lines=cache_lines,
            max_window_tokens=max_window_tokens,
            cluster_bits=cluster_bits,
            hash_bits=hash_bits,
            address_bits=address_bits,
            tags=tags,
            reference_bits=reference_bits,
            kv_bits=kv_bits,
        )
        self.command, self.reply, self.tags, self.counters = sizes.command, sizes.reply, tags, counters
        self.cycles = KvmuTiming(line_words=sizes.line // word)
        super().__init__(
            {
                "i": In(stream.Signature(sizes.command)),
                "o": Out(stream.Signature(sizes.reply)),
                "o_candidates": Out(stream.Signature(sizes.candidate)),
                "o_dma": Out(stream.Signature(descriptor_layout(address_bits, (tags - 1).bit_length()))),
                "i_done": In(stream.Signature(sizes.completion)),
                "o_complete": Out(stream.Signature(sizes.completion)),
                "read_job": Out(stream.Signature(JOB)),
                "read_words": In(stream.Signature(read_word_layout(word))),
                "write_job": Out(stream.Signature(JOB)),
                "write_words": Out(stream.Signature(write_word_layout(word))),
                "write_done": In(1),
                "settled": Out(1),
                "tokens": Out(32),
                "clusters": Out(range(max_clusters + 1)),
                "counts_base": Out(BASE_BITS),
                "mean_keys_base": Out(BASE_BITS),
                "cfg_store_base": In(address_bits),
                "cfg_page_frames_base": In(address_bits),
                "cfg_staging_base": In(address_bits),
                "cfg_staging_head_pages": In(range(sizes.staging_head_pages + 1)),
                "cfg_max_resident_tokens": In(range(page_frames * page_tokens + 1)),
                "cfg_max_cluster_tokens": In(COUNT_BITS),
                "cfg_window_tokens": In(range(max_window_tokens + 1)),
                "cfg_offload_to_storage": In(1),
                "cfg_max_descriptor_bytes": In(range(BOUNDARY + 1)),
                "stat_clear": In(1),
                "stat_faults": Out(len(Fault)),
                "stat_resident": Out(32),
                **{f"stat_{name}": Out(48 if name == Stat.BYTES else 32) for name in Stat},
            }
        )

    @classmethod
    def from_config(cls, config: Config) -> "KVMU":
        """The KVMU of one core."""
        return cls(
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            page_tokens=config.page_tokens,
            max_pages=config.max_pages,
            page_frames=config.page_frames,
            max_clusters=config.max_clusters,
            max_contexts=config.max_contexts,
            word=16 * config.dpe_inputs,
            cache_lines=config.cache_lines,
            max_window_tokens=config.max_window_tokens,
            cluster_bits=config.cluster_bits,
            hash_bits=config.hash_bits,
            counters=bool(config.dre_counters),
            kv_bits=config.kv_bits,
        )

    @property
    def timing(self) -> dict[str, object]:
        """Latency and cycle formulas, as written into the JSON of the generated unit."""
        return {"latency": self.latency, **self.cycles.formulas()}

    @property
    def memory_bits(self) -> dict[str, int]:
        """Size of each memory in bits."""
        sizes = self.sizes
        return {
            "lines": sizes.cache_lines * max(sizes.word, BLOCK_BITS),
            "extents": WAITING_EXTENTS * sizes.piece.size,
        }

    def elaborate(self, platform: object) -> Module:
        m = Module()
        parts = self._parts()
        for name, part in vars(parts).items():
            m.submodules[name] = part
        for name in self.signature.members:
            if name.startswith("cfg_"):
                for part in vars(parts).values():
                    if name in part.signature.members:
                        m.d.comb += getattr(part, name).eq(getattr(self, name))
        self._connect_commands(m, parts)
        self._connect_store(m, parts)
        self._connect_memory(m, parts)
        self._connect_copies(m, parts)
        self._count_events(m, parts)
        return m

    def _parts(self) -> Parts:
        sizes = self.sizes
        engines = {"address_bits": sizes.address_bits, "length_bits": sizes.length_bits}
        return Parts(
            dispatcher=Dispatcher(sizes=sizes),
            headers=Headers(
                address_bits=sizes.address_bits,
                line_blocks=sizes.line // BLOCK_BITS,
                limits={name: getattr(sizes, name) for name in ("max_clusters", "max_pages", "page_frames")},
                contexts=sizes.max_contexts,
                page_bytes=sizes.page_bytes,
                head_page_bytes=sizes.head_page_bytes,
                staging_bits=sizes.staging_head_pages.bit_length(),
            ),
            candidate_loader=CandidateLoader(
                word=sizes.word,
                cluster_bits=sizes.cluster_bits,
                hash_bits=sizes.hash_bits,
                window_bits=sizes.max_window_tokens.bit_length(),
            ),
            chain_editor=ChainEditor(sizes=sizes),
            page_editor=PageEditor(sizes=sizes),
            page_walker=PageWalker(sizes=sizes),
            offloader=Offloader(sizes=sizes),
            free_pages=FreePages(sizes=sizes),
            page_frames=PageFrames(sizes=sizes),
            cache=LineCache(word=sizes.word, lines=sizes.cache_lines),
            copies=CopyGenerator(sizes=sizes),
            joiner=Joiner(**engines),
            splitter=Splitter(**engines, tag_bits=(sizes.tags - 1).bit_length()),
            tracker=Tracker(tags=sizes.tags, count_bits=sizes.length_bits),
        )

    def _connect_commands(self, m: Module, parts: Parts) -> None:
        """Commands and results between the dispatcher and the components; calls of the pages and page frames."""
        dispatcher, headers, tracker = parts.dispatcher, parts.headers, parts.tracker
        wiring.connect(m, wiring.flipped(self.i), dispatcher.i)
        for name in EXECUTORS:
            part = getattr(parts, name)
            wiring.connect(m, getattr(dispatcher, name), part.i)
            wiring.connect(m, part.o, getattr(dispatcher, f"{name}_result"))
        wiring.connect(m, dispatcher.headers, headers.i)
        wiring.connect(m, headers.o, dispatcher.headers_result)
        wiring.connect(m, parts.chain_editor.release, parts.page_editor.release)
        for callee, callers, answers in (
            (parts.free_pages.call, ("chain_editor", "page_editor"), ("page", "available")),
            (
                parts.page_frames.call,
                ("chain_editor", "page_editor", "page_walker", "offloader"),
                ("frame", "available"),
            ),
        ):
            port = "pages" if callee is parts.free_pages.call else "frames"
            calls = [getattr(getattr(parts, name), port) for name in callers]
            merge(m, [call.request for call in calls], callee.request)
            for call in calls:
                m.d.comb += [getattr(call, answer).eq(getattr(callee, answer)) for answer in answers]
        m.d.comb += [
            dispatcher.number.eq(headers.number),
            dispatcher.is_open.eq(headers.is_open),
            dispatcher.loaded.eq(parts.candidate_loader.done),
            dispatcher.active.eq(tracker.active),
            parts.candidate_loader.start.eq(dispatcher.load),
            parts.page_walker.number.eq(headers.number),
            parts.page_walker.retain.eq(dispatcher.retain),
            parts.chain_editor.number.eq(headers.number),
        ]

    def _connect_store(self, m: Module, parts: Parts) -> None:
        """Registers of the headers: their values to all components, and changes back."""
        headers, loader = parts.headers, parts.candidate_loader
        for name, editors in (
            ("store", (parts.chain_editor, parts.page_editor, parts.page_walker, parts.offloader, parts.page_frames)),
            ("context", (parts.chain_editor, parts.page_editor, parts.free_pages)),
        ):
            value, changed, write = (getattr(headers, f"{name}{suffix}") for suffix in ("", "_in", "_write"))
            m.d.comb += changed.eq(value)
            for editor in editors:
                port = getattr(editor, name)
                m.d.comb += port.value.eq(value)
                with m.If(port.write):
                    m.d.comb += [write.eq(1), changed.eq(port.next)]
        with m.If(loader.done):
            m.d.comb += [
                headers.context_write.eq(1),
                headers.context_in.first_candidate.eq(loader.first_candidate),
            ]
        m.d.comb += [
            parts.page_walker.context.eq(headers.context),
            loader.context.eq(headers.context),
            self.tokens.eq(headers.context.tokens),
            self.clusters.eq(headers.context.clusters[: len(self.clusters)]),
            self.counts_base.eq(headers.context.counts_base),
            self.mean_keys_base.eq(headers.context.mean_keys_base),
            self.stat_resident.eq(headers.store.resident_tokens),
        ]

    def _connect_memory(self, m: Module, parts: Parts) -> None:
        """Accesses to the cache; the cache and the loader of candidates share the read port."""
        cache, headers, loader = parts.cache, parts.headers, parts.candidate_loader
        clients = (
            headers,
            parts.chain_editor,
            parts.page_editor,
            parts.page_walker,
            parts.offloader,
            parts.free_pages,
            parts.page_frames,
        )
        share(m, [client.memory for client in clients], cache.memory)
        merge(m, [cache.read_job, loader.read_job], self.read_job)
        broadcast(m, self.read_words, [cache.read_words, loader.read_words])
        wiring.connect(m, cache.write_job, wiring.flipped(self.write_job))
        wiring.connect(m, cache.write_words, wiring.flipped(self.write_words))
        wiring.connect(m, loader.o, wiring.flipped(self.o_candidates))
        m.d.comb += [
            cache.write_done.eq(self.write_done),
            self.settled.eq(cache.settled),
            cache.log_base.eq(headers.store.log_base),
            cache.log_entries.eq(headers.store.log_entries),
            cache.step.eq(headers.store.step),
            cache.restart.eq(headers.committed),
            headers.log_full.eq(cache.log_full),
            parts.dispatcher.log_full.eq(cache.log_full),
        ]

    def _connect_copies(self, m: Module, parts: Parts) -> None:
        """Copy jobs to descriptors, completions back."""
        copies, dispatcher, joiner = parts.copies, parts.dispatcher, parts.joiner
        splitter, tracker = parts.splitter, parts.tracker
        sources = (dispatcher, parts.chain_editor, parts.page_editor, parts.page_walker, parts.offloader)
        merge(m, [source.copies for source in sources], copies.i)
        wiring.connect(m, copies.o, wiring.flipped(self.o))
        wiring.connect(m, copies.pieces, joiner.i)
        extents = SyncFIFOBuffered(width=Value.cast(joiner.o.payload).shape().width, depth=WAITING_EXTENTS)
        m.submodules.extents = extents  # look-ups go on while their pages wait for the engine
        m.d.comb += [
            extents.w_en.eq(joiner.o.valid),
            joiner.o.ready.eq(extents.w_rdy),
            extents.w_data.eq(joiner.o.payload),
            splitter.i.valid.eq(extents.r_rdy),
            extents.r_en.eq(splitter.i.ready),
            Value.cast(splitter.i.payload).eq(extents.r_data),
        ]
        wiring.connect(m, splitter.o, wiring.flipped(self.o_dma))
        wiring.connect(m, wiring.flipped(self.i_done), tracker.i_done)
        wiring.connect(m, tracker.o, wiring.flipped(self.o_complete))
        m.d.comb += [
            copies.drained.eq(joiner.idle & (extents.level == 0) & ~extents.r_rdy & splitter.idle),
            copies.tag.eq(tracker.tag),
            copies.tag_free.eq(tracker.free),
            copies.active.eq(tracker.active),
            copies.active_kind.eq(tracker.active_kind),
            copies.restart.eq(dispatcher.restart),
            copies.bank.eq(dispatcher.bank),
            dispatcher.fetched.eq(copies.fetched),
            dispatcher.tagged.eq(copies.tagged),
            dispatcher.retained.eq(parts.page_walker.changed),
            parts.page_walker.out_of_space.eq(copies.out_of_space),
            parts.chain_editor.frames_busy.eq(tracker.active & (tracker.active_kind != TransferKind.FETCH)),
            splitter.tag.eq(tracker.tag),
            splitter.kind.eq(copies.kind),
            tracker.kind.eq(copies.kind),
            tracker.close.eq(copies.close),
            tracker.issue.eq(self.o_dma.valid & self.o_dma.ready),
        ]

    def _count_events(self, m: Module, parts: Parts) -> None:
        """Counters and sticky fault bits."""
        dispatcher, copies, cache, tracker = parts.dispatcher, parts.copies, parts.cache, parts.tracker
        good, descriptor_sent = Signal(), Signal()
        m.d.comb += [
            good.eq(dispatcher.completed & (dispatcher.fault == Fault.NONE)),
            descriptor_sent.eq(self.o_dma.valid & self.o_dma.ready),
        ]
        events = {
            Stat.APPENDED: good & (dispatcher.op == Op.APPEND),
            Stat.MOVED: good & (dispatcher.op == Op.MOVE),
            Stat.OPENED: parts.chain_editor.opening,
            Stat.OFFLOADED: parts.offloader.offloaded,
            Stat.FREED: parts.page_editor.freed,
            Stat.HITS: copies.hit,
            Stat.FETCHED: copies.copied,
            Stat.EXTENTS: parts.joiner.o.valid & parts.joiner.o.ready,
            Stat.DESCRIPTORS: descriptor_sent,
            Stat.BYTES: Mux(descriptor_sent, self.o_dma.payload.bytes, 0),
            Stat.BUSY: dispatcher.busy,
            Stat.BLOCKED_REPLY: copies.blocked,
            Stat.BLOCKED_DMA: self.o_dma.valid & ~self.o_dma.ready,
            Stat.WAITING: dispatcher.waiting | copies.waiting | parts.chain_editor.waiting,
            Stat.ACCESSES: cache.memory.request.valid & cache.memory.request.ready,
            Stat.FILLS: cache.filled,
            Stat.WRITEBACKS: cache.written_back,
            Stat.LOGGED: cache.logged,
        }
        count(m, self, events, enable=self.counters)
        others = {Fault.STRAY: tracker.stray, Fault.TRANSFER: tracker.failed}
        for cause in Fault:
            if cause is not Fault.NONE:
                event = others.get(cause, dispatcher.completed & (dispatcher.fault == cause))
                with m.If(event):
                    m.d.sync += self.stat_faults[cause.value].eq(1)
        with m.If(self.stat_clear):
            m.d.sync += self.stat_faults.eq(0)
