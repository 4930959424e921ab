"""KVMU: KV cache management unit (V-Rex, section V-C)."""

from amaranth import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.common.counters import count
from hw.common.memory import Ram
from hw.config import Config
from hw.dre.kvmu.age_list import AgeList
from hw.dre.kvmu.command import Fault, Stat, command_layout, reply_layout
from hw.dre.kvmu.control import Control
from hw.dre.kvmu.datapath import Tables
from hw.dre.kvmu.free_list import FreeList
from hw.dre.kvmu.timing import KvmuTiming
from hw.dre.transfer import BOUNDARY, Joiner, Splitter, Tracker, descriptor_layout

GROUP = 32  # pages per word of marks; one priority search covers one word


class KVMU(wiring.Component):
    """Stores the tokens of a cluster contiguously, keeps the newest pages in device memory, and issues DMA descriptors.

    Terms. A page holds `page_tokens` token slots of one cluster. A page frame is a position in device memory that
    holds one page. A head page is the part of a page that belongs to one KV head. The backing tier of a page is host
    memory or storage; each page number has a fixed address there. The pages of a cluster form a chain.

    Storing. APPEND stores a token in the open page of its cluster. A page closes when it is full, offloaded, sealed, or
    when a token is moved out of it; the next token of the cluster opens another page. A page stays in its page frame
    until STEP offloads it to its backing tier, oldest page first.

    Fetching. SELECT marks the pages of a cluster for some KV heads. FETCH visits the marked pages in ascending order,
    reports the address of each marked head page, and issues the transfers of the offloaded ones to the staging area
    (or, with `retain`, of whole pages to page frames, as the newest pages). Contiguous head pages become one extent;
    extents are split into descriptors. A page that is marked twice is fetched once. Freed page numbers are used
    again, oldest first.

    References. A page belongs to its cluster. HOLD adds references for tables outside the unit that name the page by
    its number, for example a second stream with the same prefix. EVICT shortens a chain to its first and last pages.
    FREE drops one reference. A page without a reference is free; until then it keeps its bytes and can be fetched
    (MARK). A compaction is a series of MOVE commands, token by token, in ascending order, to the remaining chain.

    The tables hold one layer of one sequence. Marks belong to pages: a MOVE between SELECT and FETCH does not move a
    mark; FREE clears it.

    Transfers. The engine at `o_dma` executes descriptors in order and answers each on `i_done`. A command whose
    transfers are of another kind than those in flight waits for them. A token that would open a page waits while
    anything but a fetch is in flight. So no page frame is written while it is read.

    Faults. A refused command changes nothing, replies with its cause and sets bit `1 << cause` of `stat_faults`; the
    unit continues. There are two exceptions. A MOVE that is refused because no page or page frame is free has sealed
    its page. A FETCH that runs out of staging area or page frames keeps its completed transfers and drops the other
    marks; its last beat carries the cause. If the regions do not fit the address space, all commands are refused
    until a BEGIN with regions that fit.

    Timing
    ------
    One command at a time; `cycles` gives the cycles of each command, exact while no stream stalls. After reset and
    with BEGIN the tables are cleared: `i` is not ready for max(max_clusters, max_pages) + 1 cycles. Outputs depend on
    registers only; there is no combinational path between streams.

    Numerics: integers only.

    Parameters
    ----------
    kv_heads, head_dim : of the model; a slot holds 2 * head_dim BF16 values, first the key, then the value
    page_tokens : token slots of a page, a power of two
    max_pages, page_frames : page numbers and page frames of a layer, powers of two
    max_clusters : cluster numbers of a layer
    layers : layers that have memory regions of their own
    cluster_bits, address_bits : widths of cluster numbers and byte addresses
    tags : commands with transfers in flight
    reference_bits : width of the number of further references of a page

    Members
    -------
    i : stream of `command_layout` ; o : stream of `reply_layout`
    o_dma : stream of `descriptor_layout`
    i_done : completions {tag, error}, at least one cycle after the descriptor
    o_complete : stream of {tag, error}, sent when all descriptors of a tag are done
    cfg_page_frames_base, cfg_host_pages_base, cfg_storage_pages_base, cfg_staging_base :
        byte addresses, read by BEGIN and at reset
    cfg_staging_head_pages : head pages of each of the two staging banks
    cfg_max_resident_tokens : tokens that remain in device memory after STEP; one page always remains
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
        layers: int = 64,
        cluster_bits: int = 16,
        address_bits: int = 48,
        tags: int = 4,
        reference_bits: int = 4,
    ):
        for name, value in (("page_tokens", page_tokens), ("max_pages", max_pages), ("page_frames", page_frames)):
            if value < 2 or value & (value - 1):
                raise ValueError(f"{name} must be a power of two, at least 2, got {value}")
        for name, value in (
            ("kv_heads", kv_heads),
            ("head_dim", head_dim),
            ("layers", layers),
            ("reference_bits", reference_bits),
        ):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if not 2 <= max_clusters <= 1 << cluster_bits:
            raise ValueError(f"max_clusters must be 2 to 2**cluster_bits = {1 << cluster_bits}, got {max_clusters}")
        if page_frames > max_pages:
            raise ValueError(f"page_frames must be at most max_pages = {max_pages}, got {page_frames}")
        self.kv_heads, self.head_dim, self.page_tokens = kv_heads, head_dim, page_tokens
        self.max_pages, self.page_frames, self.max_clusters, self.layers = max_pages, page_frames, max_clusters, layers
        self.cluster_bits, self.address_bits, self.tags = cluster_bits, address_bits, tags
        self.reference_bits = reference_bits
        self.slot_bytes = 4 * head_dim
        self.head_page_bytes = page_tokens * self.slot_bytes
        self.page_bytes = kv_heads * self.head_page_bytes
        region = layers * max_pages * self.page_bytes
        if region > 1 << address_bits:
            raise ValueError(f"address_bits must be at least {(region - 1).bit_length()}, got {address_bits}")
        self.staging_head_pages = max_pages * kv_heads
        self.length_bits = (max_pages * self.page_bytes).bit_length()
        self.group = min(GROUP, max_pages)
        self.command = command_layout(
            max_clusters=max_clusters,
            max_pages=max_pages,
            page_tokens=page_tokens,
            kv_heads=kv_heads,
            cluster_bits=cluster_bits,
            layers=layers,
        )
        self.reply = reply_layout(
            max_pages=max_pages,
            page_tokens=page_tokens,
            kv_heads=kv_heads,
            address_bits=address_bits,
            tags=tags,
            reference_bits=reference_bits,
        )
        completion = data.StructLayout({"tag": range(tags), "error": 1})
        self.cycles = KvmuTiming(kv_heads=kv_heads, group=self.group, clear_rows=max(max_clusters, max_pages))
        super().__init__(
            {
                "i": In(stream.Signature(self.command)),
                "o": Out(stream.Signature(self.reply)),
                "o_dma": Out(stream.Signature(descriptor_layout(address_bits, (tags - 1).bit_length()))),
                "i_done": In(stream.Signature(completion)),
                "o_complete": Out(stream.Signature(completion)),
                "cfg_page_frames_base": In(address_bits),
                "cfg_host_pages_base": In(address_bits),
                "cfg_storage_pages_base": In(address_bits),
                "cfg_staging_base": In(address_bits),
                "cfg_staging_head_pages": In(range(self.staging_head_pages + 1)),
                "cfg_max_resident_tokens": In(range(page_frames * page_tokens + 1)),
                "cfg_offload_to_storage": In(1),
                "cfg_max_descriptor_bytes": In(range(BOUNDARY + 1)),
                "stat_clear": In(1),
                "stat_faults": Out(len(Fault)),
                "stat_resident": Out(range(page_frames * page_tokens + 1)),
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
            cluster_bits=config.cluster_bits,
        )

    @property
    def timing(self) -> dict[str, object]:
        """Latency and cycle formulas, as written into the JSON of the generated unit."""
        return {"latency": self.latency, **self.cycles.formulas()}

    @property
    def memory_bits(self) -> dict[str, int]:
        """Size of each memory in bits."""
        page_bits, page_frame_bits = (self.max_pages - 1).bit_length(), (self.page_frames - 1).bit_length()
        return {
            "clusters": self.max_clusters * self.chain.size,
            "pages": self.max_pages * self.entry.size,
            "live": self.max_pages * self.page_tokens,
            "marks": self.max_pages * self.kv_heads,
            "touched": self.max_pages,
            "free_pages": self.max_pages * page_bits,
            "free_page_frames": self.page_frames * page_frame_bits,
            "ages": self.page_frames * (page_bits + 2 * page_frame_bits),
        }

    @property
    def entry(self) -> data.StructLayout:
        """A row of the page table."""
        page_bits = (self.max_pages - 1).bit_length()
        return data.StructLayout(
            {
                "cluster": (self.max_clusters - 1).bit_length(),
                "previous_page": page_bits,  # neighbours in the page chain of its cluster
                "next_page": page_bits,
                "used": range(self.page_tokens + 1),
                "page_frame": range(self.page_frames),
                "references": self.reference_bits,  # references besides that of the cluster (HOLD)
                "chained": 1,  # in the chain of its cluster
                "open": 1,
                "resident": 1,
                "saved": 1,  # the backing tier holds a copy
                "storage": 1,  # the backing tier is storage
            }
        )

    @property
    def chain(self) -> data.StructLayout:
        """A row of the cluster table."""
        page_bits = (self.max_pages - 1).bit_length()
        return data.StructLayout({"first_page": page_bits, "last_page": page_bits, "length": range(self.max_pages + 1)})

    def _tables(self) -> Tables:
        return Tables(
            clusters=Ram(depth=self.max_clusters, width=self.chain.size),
            pages=Ram(depth=self.max_pages, width=self.entry.size),
            live=Ram(depth=self.max_pages, width=1, words=self.page_tokens),
            marks=Ram(depth=self.max_pages, width=1, words=self.kv_heads),
            touched=Ram(depth=self.max_pages // self.group, width=1, words=self.group),
            free_pages=FreeList(size=self.max_pages),
            free_page_frames=FreeList(size=self.page_frames),
            ages=AgeList(size=self.page_frames, owners=self.max_pages),
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        tables = self._tables()
        for name, table in vars(tables).items():
            m.submodules[name] = table
        sizes = {"address_bits": self.address_bits, "length_bits": self.length_bits}
        m.submodules.joiner = joiner = Joiner(**sizes)
        m.submodules.splitter = splitter = Splitter(**sizes, tag_bits=(self.tags - 1).bit_length())
        m.submodules.tracker = tracker = Tracker(tags=self.tags, count_bits=self.length_bits)
        wiring.connect(m, joiner.o, splitter.i)
        wiring.connect(m, splitter.o, wiring.flipped(self.o_dma))
        wiring.connect(m, wiring.flipped(self.i_done), tracker.i_done)
        wiring.connect(m, tracker.o, wiring.flipped(self.o_complete))
        control = Control(self, tables, joiner, splitter, tracker)
        control.build(m)
        descriptor_sent = Signal()
        m.d.comb += [
            descriptor_sent.eq(self.o_dma.valid & self.o_dma.ready),
            splitter.cfg_max_descriptor_bytes.eq(self.cfg_max_descriptor_bytes),
            splitter.tag.eq(tracker.tag),
            splitter.kind.eq(control.kind),
            tracker.kind.eq(control.kind),
            tracker.issue.eq(descriptor_sent),
        ]

        steps = {
            **control.events,
            Stat.EXTENTS: joiner.o.valid & joiner.o.ready,
            Stat.DESCRIPTORS: descriptor_sent,
            Stat.BYTES: Mux(descriptor_sent, self.o_dma.payload.bytes, 0),
            Stat.BLOCKED_DMA: self.o_dma.valid & ~self.o_dma.ready,
        }
        count(m, self, steps)
        for cause in Fault:
            if cause is not Fault.NONE:
                fault_event = {Fault.STRAY: tracker.stray, Fault.TRANSFER: tracker.failed}.get(
                    cause, control.fault == cause
                )
                with m.If(fault_event):
                    m.d.sync += self.stat_faults[cause.value].eq(1)
        with m.If(self.stat_clear):
            m.d.sync += self.stat_faults.eq(0)
        return m
