"""HC table: what is kept of every hash cluster, and the lists of its tokens (V-Rex, Fig. 8 and 11)."""

import enum as python_enum

from amaranth import Cat, Const, Module, Mux, Signal, unsigned
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.common.counters import count
from hw.common.memory import Ram
from hw.config import Config

RECORD_BYTES, INDEX_BYTES = 16, 4


class Op(enum.Enum, shape=unsigned(3)):
    """Operations; in brackets the fields of the command that each one reads."""

    UPDATE = 0  # `token` joined `cluster`, which now has `count`, or opened it with `hash` [`opened`]
    BEGIN = 1  # an empty table; its token lists begin at page `first`
    LOAD = 2  # append an entry saved earlier [`hash`, `token` = its first, `count`, `first`, `newest`]
    LINK = 3  # in a token list, page `newest` comes after page `first`
    READ = 4  # the entry of `cluster`
    LIST = 5  # the pages of the token list of `cluster`
    COUNTS = 6  # the counts of all clusters, on `o_counts`


class Fault(enum.Enum, shape=unsigned(3)):
    """Why a command was refused; the sticky register has one bit for each."""

    NONE = 0
    CLUSTER = 1  # no such cluster, or not the next one, or the table is full
    COUNT = 2  # the count is not one more than before: the cluster is saturated, or an earlier token was refused
    NO_PAGE = 3  # every page of the token lists is in use
    REGION = 4  # a region does not fit into the address space
    OP = 5  # no such operation


class Stat(python_enum.StrEnum):
    """Counters, 32 bits each, cleared by `stat_clear`."""

    LISTED = "listed"  # tokens entered
    OPENED = "opened"  # clusters opened
    REFUSED = "refused"  # commands refused
    WRITES = "writes"  # writes to memory
    BUSY = "busy"  # cycles with a command
    BLOCKED_WRITE = "blocked_write"  # of these, waiting for `o_write`
    BLOCKED_REPLY = "blocked_reply"  # of these, waiting for `o` or `o_counts`


class HcTable(wiring.Component):
    """Keeps the entry of every cluster of one layer, and writes the token lists to memory.

    An entry has the leader's hash, the count, the first token and the ends of its token list; the representative key
    lies at its number times the key's size. A token list is a chain of pages of token indices in memory, all full
    but the last; page numbers are handed out in ascending order. UPDATE takes the HCU's assignment stream as it is.
    Every change is also a write to memory (a record of 16 bytes per cluster, an index of 4 bytes per token and per
    link), so BEGIN, LOAD and LINK bring back a table that was left.

    A refused command changes nothing and sets a sticky bit; a refused READ or LIST answers with the cause. A cluster
    whose update was refused takes no further token.

    Timing
    ------
    One command at a time; cycles from its transfer to the first in which the next can be taken, while nobody stalls:
    `cycles_update` 4, or 5 when a list continues on a new page, or 2 when refused; BEGIN, LOAD, LINK and READ 2;
    LIST 2 * pages + 2; COUNTS ceil(clusters / lanes) + 2, a beat per cycle. Outputs depend on registers only.

    Numerics: integers only.

    Parameters
    ----------
    clusters, pages, page_tokens : entries, pages of the token lists, indices of a page
    lanes : counts per beat of `o_counts`
    dimension : values of a representative key
    hash_bits, count_bits, token_bits, cluster_bits, address_bits : widths

    Members
    -------
    i : stream of `command`
    o : stream of `reply`: one beat for READ, one per page for LIST
    o_counts : stream of `beat`; clusters 0 to `size` - 1, at least one beat
    o_write : stream of `write`: `bytes` bytes of `data` at `address`
    cfg_cluster_records_base, cfg_token_lists_base, cfg_list_links_base, cfg_mean_keys_base :
        byte addresses of the regions
    size : clusters in the table
    stat_* : see `Stat`; stat_faults : sticky, one bit per `Fault`

    Raises
    ------
    ValueError
        For sizes that cannot be built.
    """

    latency = None

    def __init__(
        self,
        *,
        max_clusters: int,
        max_list_pages: int,
        list_page_tokens: int,
        lanes: int,
        key_dim: int,
        hash_bits: int = 32,
        count_bits: int = 16,
        token_bits: int = 32,
        cluster_bits: int = 16,
        address_bits: int = 48,
    ):
        for name, value in (("list_page_tokens", list_page_tokens), ("lanes", lanes)):
            if value < 2 or value & (value - 1):
                raise ValueError(f"{name} must be a power of two, at least 2, got {value}")
        if max_clusters % lanes or not 2 * lanes <= max_clusters <= 1 << cluster_bits:
            valid = f"a multiple of lanes = {lanes}, from {2 * lanes} to 2**cluster_bits = {1 << cluster_bits}"
            raise ValueError(f"max_clusters must be {valid}, got {max_clusters}")
        for name, value, low, high in (
            ("max_list_pages", max_list_pages, 2, 1 << 16),
            ("key_dim", key_dim, 1, 1 << 20),
            ("hash_bits", hash_bits, 1, 32),
            ("token_bits", token_bits, 1, 32),
            ("count_bits", count_bits, 1, 16),
        ):
            if not low <= value <= high:
                raise ValueError(f"{name} must be {low} to {high}, got {value}")
        self.max_clusters, self.max_list_pages, self.list_page_tokens, self.lanes = (
            max_clusters,
            max_list_pages,
            list_page_tokens,
            lanes,
        )
        self.key_dim, self.hash_bits, self.count_bits = key_dim, hash_bits, count_bits
        self.token_bits, self.cluster_bits, self.address_bits = token_bits, cluster_bits, address_bits
        self.command = data.StructLayout(
            {
                "op": Op,
                "token": token_bits,
                "cluster": cluster_bits,
                "hash": hash_bits,
                "count": count_bits,
                "opened": 1,
                "first": range(max_list_pages),
                "newest": range(max_list_pages),
            }
        )
        self.reply = data.StructLayout(
            {
                "op": Op,
                "fault": Fault,
                "hash": hash_bits,
                "count": count_bits,
                "first_token": token_bits,
                "first": range(max_list_pages),
                "newest": range(max_list_pages),
                "address": address_bits,  # READ: of the representative key; LIST: of the page
                "last": 1,
            }
        )
        self.beat = data.StructLayout(
            {"counts": data.ArrayLayout(count_bits, lanes), "used": range(lanes + 1), "last": 1}
        )
        self.write = data.StructLayout(
            {"address": address_bits, "data": 8 * RECORD_BYTES, "bytes": range(RECORD_BYTES + 1)}
        )
        super().__init__(
            {
                "i": In(stream.Signature(self.command)),
                "o": Out(stream.Signature(self.reply)),
                "o_counts": Out(stream.Signature(self.beat)),
                "o_write": Out(stream.Signature(self.write)),
                **{
                    f"cfg_{name}_base": In(address_bits)
                    for name in ("cluster_records", "token_lists", "list_links", "mean_keys")
                },
                "clusters": Out(range(max_clusters + 1)),
                "stat_clear": In(1),
                "stat_faults": Out(len(Fault)),
                **{f"stat_{name}": Out(32) for name in Stat},
            }
        )

    @classmethod
    def from_config(cls, config: Config) -> "HcTable":
        """The HC table of one core."""
        return cls(
            max_clusters=config.max_clusters,
            max_list_pages=config.max_pages,
            list_page_tokens=config.page_tokens,
            lanes=config.wtu_lanes,
            key_dim=config.kv_heads * config.head_dim,
            hash_bits=config.hash_bits,
            count_bits=config.count_bits,
            token_bits=config.token_bits,
            cluster_bits=config.cluster_bits,
        )

    @property
    def timing(self) -> dict[str, object]:
        """Latency and cycle formulas, as written into the generated unit's JSON."""
        return {
            "latency": self.latency,
            "cycles_update": "4, or 5 when a list continues on a new page",
            "cycles_read": 2,
            "cycles_list": "2 * pages + 2",
            "cycles_counts": f"ceil(clusters / {self.lanes}) + 2",
        }

    @property
    def entry(self) -> data.StructLayout:
        """A row of the table, beside its count."""
        pages = range(self.max_list_pages)
        return data.StructLayout(
            {"hash": self.hash_bits, "first_token": self.token_bits, "first": pages, "newest": pages}
        )

    @property
    def memory_bits(self) -> dict[str, int]:
        """Storage in bits, by memory."""
        return {
            "entries": self.max_clusters * self.entry.size,
            "counts": self.max_clusters * self.count_bits,
            "links": self.max_list_pages * (self.max_list_pages - 1).bit_length(),
        }

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.entries = entries = Ram(depth=self.max_clusters, width=self.entry.size)
        m.submodules.counts = counts = Ram(
            depth=self.max_clusters // self.lanes, width=self.count_bits, words=self.lanes
        )
        m.submodules.links = links = Ram(depth=self.max_list_pages, width=(self.max_list_pages - 1).bit_length())
        lane_bits, slot_bits = self.lanes.bit_length() - 1, self.list_page_tokens.bit_length() - 1
        page_bytes = self.list_page_tokens * INDEX_BYTES

        cmd, fresh = Signal(self.command), Signal(range(self.max_list_pages + 1))
        found = data.View(self.entry, entries.r_data[0])
        fault = Signal(Fault)

        regions = (
            (self.cfg_cluster_records_base, self.max_clusters * RECORD_BYTES),
            (self.cfg_token_lists_base, self.max_list_pages * page_bytes),
            (self.cfg_list_links_base, self.max_list_pages * INDEX_BYTES),
            (self.cfg_mean_keys_base, self.max_clusters * self.key_dim * 2),
        )
        region_bad = Signal()
        m.d.comb += region_bad.eq(Cat(base + size > 1 << self.address_bits for base, size in regions).any())

        # what an update makes of its entry
        lane = cmd.cluster[:lane_bits]
        held, changed, record = Signal(self.count_bits), Signal(self.entry), Signal(self.entry)
        slot, page = Signal(slot_bits), Signal(range(self.max_list_pages))
        turns, known = Signal(), Signal()
        m.d.comb += [
            held.eq(Mux(cmd.opened, 0, counts.r_data[lane])),
            slot.eq(held[:slot_bits]),
            turns.eq(slot == 0),
            page.eq(Mux(turns, fresh[: len(page)], found.newest)),
            known.eq(cmd.cluster < self.clusters),
            changed.eq(found),
            changed.newest.eq(page),
        ]
        with m.If(cmd.opened):
            m.d.comb += [changed.hash.eq(cmd.hash), changed.first_token.eq(cmd.token), changed.first.eq(page)]
        # kept while it is written to memory: place of the token, entry, page that the list came from
        at, old, relink = (
            Signal(range(self.max_list_pages * self.list_page_tokens)),
            Signal(range(self.max_list_pages)),
            Signal(),
        )

        def enter(cluster, entry, count) -> list:
            """Write an entry with its count."""
            return [
                entries.w_addr.eq(cluster[: len(entries.w_addr)]),
                entries.w_mask.eq(1),
                entries.w_data[0].eq(entry),
                counts.w_addr.eq((cluster >> lane_bits)[: len(counts.w_addr)]),
                counts.w_mask.eq((Const(1, self.lanes) << cluster[:lane_bits])[: self.lanes]),
                *(word.eq(count) for word in counts.w_data),
            ]

        def write(address, value, size) -> None:
            """Offer a write to memory."""
            m.d.comb += [
                self.o_write.valid.eq(1),
                self.o_write.payload.address.eq(address[: self.address_bits]),
                self.o_write.payload.data.eq(value),
                self.o_write.payload.bytes.eq(size),
            ]

        # COUNTS: a row is read while the one before is on offer
        row, offered, last_row = Signal(range(self.max_clusters // self.lanes + 1)), Signal(), Signal()
        left = Signal(range(self.max_clusters + 1))  # clusters from the row on offer on
        more = Signal()
        m.d.comb += [
            last_row.eq(left <= self.lanes),
            self.o_counts.valid.eq(offered),
            self.o_counts.payload.used.eq(Mux(last_row, left, self.lanes)),
            self.o_counts.payload.last.eq(last_row),
            more.eq(self.o_counts.ready & ~last_row),
        ]
        for w in range(self.lanes):
            m.d.comb += self.o_counts.payload.counts[w].eq(Mux(w < left, counts.r_data[w], 0))

        m.d.comb += [
            self.o.payload.op.eq(cmd.op),
            self.o.payload.hash.eq(found.hash),
            self.o.payload.count.eq(held),
            self.o.payload.first_token.eq(found.first_token),
            self.o.payload.first.eq(found.first),
            self.o.payload.newest.eq(found.newest),
            self.o.payload.address.eq(
                (self.cfg_mean_keys_base + cmd.cluster * (self.key_dim * 2))[: self.address_bits]
            ),
            self.o.payload.last.eq(1),
        ]

        walk, rest = Signal(range(self.max_list_pages)), Signal(self.count_bits)
        with m.FSM(init="IDLE") as fsm:
            with m.State("IDLE"):
                asked = self.i.payload
                m.d.comb += [
                    self.i.ready.eq(1),
                    entries.r_addr.eq(asked.cluster[: len(entries.r_addr)]),
                    entries.r_en.eq(1),
                    counts.r_addr.eq((asked.cluster >> lane_bits)[: len(counts.r_addr)]),
                    counts.r_en.eq(1),
                ]
                m.d.sync += cmd.eq(asked)
                with m.If(self.i.valid):
                    m.next = "SERVE"
            with m.State("SERVE"):
                m.next = "IDLE"
                with m.Switch(cmd.op):
                    with m.Case(Op.UPDATE):
                        out_of_turn = (cmd.cluster != self.clusters) | (self.clusters == self.max_clusters)
                        with m.If(Mux(cmd.opened, out_of_turn, ~known)):
                            m.d.comb += fault.eq(Fault.CLUSTER)
                        with m.Elif(cmd.count != held + 1):
                            m.d.comb += fault.eq(Fault.COUNT)
                        with m.Elif(turns & (fresh == self.max_list_pages)):
                            m.d.comb += fault.eq(Fault.NO_PAGE)
                    with m.Case(Op.LOAD), m.If(self.clusters == self.max_clusters):
                        m.d.comb += fault.eq(Fault.CLUSTER)
                    with m.Case(Op.READ, Op.LIST), m.If(~known):
                        m.d.comb += fault.eq(Fault.CLUSTER)
                    with m.Case(Op.BEGIN, Op.LINK, Op.COUNTS):
                        pass
                    with m.Default():
                        m.d.comb += fault.eq(Fault.OP)
                with m.If(region_bad):
                    m.d.comb += fault.eq(Fault.REGION)
                with m.If(fault == Fault.NONE), m.Switch(cmd.op):
                    with m.Case(Op.UPDATE):
                        m.d.comb += enter(cmd.cluster, changed, cmd.count)
                        m.d.comb += [
                            links.w_addr.eq(found.newest),
                            links.w_data[0].eq(page),
                            links.w_mask.eq(turns & ~cmd.opened),
                        ]
                        m.d.sync += [
                            self.clusters.eq(self.clusters + cmd.opened),
                            fresh.eq(fresh + turns),
                            record.eq(changed),
                            at.eq(Cat(slot, page)),
                            old.eq(found.newest),
                            relink.eq(turns & ~cmd.opened),
                        ]
                        m.next = "TOKEN"
                    with m.Case(Op.BEGIN):
                        m.d.sync += [self.clusters.eq(0), fresh.eq(cmd.first)]
                    with m.Case(Op.LOAD):
                        m.d.comb += [
                            changed.hash.eq(cmd.hash),
                            changed.first_token.eq(cmd.token),
                            changed.first.eq(cmd.first),
                            changed.newest.eq(cmd.newest),
                            *enter(self.clusters, changed, cmd.count),
                        ]
                        m.d.sync += self.clusters.eq(self.clusters + 1)
                    with m.Case(Op.LINK):
                        m.d.comb += [links.w_addr.eq(cmd.first), links.w_data[0].eq(cmd.newest), links.w_mask.eq(1)]
                    with m.Case(Op.LIST):
                        m.d.sync += [walk.eq(found.first), rest.eq(held)]
                        m.next = "FOLLOW"
                    with m.Case(Op.COUNTS):
                        m.d.comb += [counts.r_addr.eq(0), counts.r_en.eq(1)]
                        m.d.sync += [offered.eq(1), row.eq(1), left.eq(self.clusters)]
                        m.next = "COUNTS"
                with m.If((cmd.op == Op.READ) | ((cmd.op == Op.LIST) & (fault != Fault.NONE))):
                    m.d.comb += [self.o.valid.eq(1), self.o.payload.fault.eq(fault)]
                    with m.If(~self.o.ready):
                        m.next = "SERVE"
            with m.State("TOKEN"):
                write(self.cfg_token_lists_base + at * INDEX_BYTES, cmd.token, INDEX_BYTES)
                with m.If(self.o_write.ready):
                    m.next = "RECORD"
            with m.State("RECORD"):
                words = [
                    (record.hash, 32),
                    (record.first_token, 32),
                    (cmd.count, 16),
                    (record.first, 16),
                    (record.newest, 16),
                ]
                packed = Cat(Cat(value, Const(0, width - len(value))) for value, width in words)
                write(self.cfg_cluster_records_base + cmd.cluster * RECORD_BYTES, packed, RECORD_BYTES)
                with m.If(self.o_write.ready):
                    m.next = "IDLE"
                    with m.If(relink):
                        m.next = "LINKED"
            with m.State("LINKED"):
                write(self.cfg_list_links_base + old * INDEX_BYTES, at >> slot_bits, INDEX_BYTES)
                with m.If(self.o_write.ready):
                    m.next = "IDLE"
            with m.State("FOLLOW"):
                m.d.comb += [links.r_addr.eq(walk), links.r_en.eq(1)]
                m.next = "PAGE"
            with m.State("PAGE"):
                final = rest <= self.list_page_tokens
                m.d.comb += [
                    self.o.valid.eq(1),
                    self.o.payload.address.eq((self.cfg_token_lists_base + walk * page_bytes)[: self.address_bits]),
                    self.o.payload.count.eq(Mux(final, rest, self.list_page_tokens)),
                    self.o.payload.last.eq(final),
                ]
                with m.If(self.o.ready):
                    m.d.sync += [walk.eq(links.r_data[0]), rest.eq((rest - self.list_page_tokens)[: len(rest)])]
                    m.next = "FOLLOW"
                    with m.If(final):
                        m.next = "IDLE"
            with m.State("COUNTS"):
                m.d.comb += [counts.r_addr.eq(row[: len(counts.r_addr)]), counts.r_en.eq(more)]
                with m.If(more):
                    m.d.sync += [row.eq(row + 1), left.eq((left - self.lanes)[: len(left)])]
                with m.If(self.o_counts.ready & last_row):
                    m.d.sync += offered.eq(0)
                    m.next = "IDLE"

        blocked = {
            Stat.BLOCKED_WRITE: self.o_write.valid & ~self.o_write.ready,
            Stat.BLOCKED_REPLY: (self.o.valid & ~self.o.ready) | (offered & ~self.o_counts.ready),
        }
        served = fsm.ongoing("SERVE") & ~blocked[Stat.BLOCKED_REPLY]
        entered = served & (cmd.op == Op.UPDATE) & (fault == Fault.NONE)
        events = {
            **blocked,
            Stat.LISTED: entered,
            Stat.OPENED: entered & cmd.opened,
            Stat.REFUSED: served & (fault != Fault.NONE),
            Stat.WRITES: self.o_write.valid & self.o_write.ready,
            Stat.BUSY: ~fsm.ongoing("IDLE"),
        }
        count(m, self, events)
        with m.If(fault != Fault.NONE):
            m.d.sync += self.stat_faults.eq(self.stat_faults | (Const(1, len(Fault)) << fault.as_value())[: len(Fault)])
        with m.If(self.stat_clear):
            m.d.sync += self.stat_faults.eq(0)
        return m
