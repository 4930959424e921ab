"""HC table: entries, token counts and token lists of the hash clusters (V-Rex, Fig. 8 and 11)."""

import enum as python_enum
from dataclasses import dataclass

from amaranth import Cat, Const, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.common.counters import count
from hw.common.memory import Ram
from hw.config import Config

RECORD_BYTES = 16  # bytes of a cluster record in memory
INDEX_BYTES = 4  # bytes of a token index and of a list link in memory
COUNT_BYTES = 2  # bytes of a token count in memory


class Op(enum.Enum, shape=unsigned(3)):
    """Operation of a command; in brackets the fields of the command that it reads."""

    UPDATE = 0  # `token` joined `cluster`, which now has `count` tokens, or opened it with the leader `hash` [`opened`]
    BEGIN = 1  # start an empty table whose token lists begin at list page `first`
    LOAD = 2  # append an entry that was saved earlier [`hash`, `token` = first token, `count`, `first`, `newest`]
    LINK = 3  # list page `newest` follows list page `first`
    READ = 4  # send the entry of `cluster`
    LIST = 5  # send the list pages of `cluster`
    COUNTS = 6  # send the token counts of all clusters on `o_counts`


class Fault(enum.Enum, shape=unsigned(3)):
    """Cause of a refused command; the sticky register has one bit per cause."""

    NONE = 0
    CLUSTER = 1  # the cluster does not exist, is not the next one, or the table is full
    COUNT = 2  # the count is not one more than before: the cluster is saturated, or an earlier update was refused
    NO_PAGE = 3  # every list page is in use
    REGION = 4  # a memory region does not fit into the address space
    OP = 5  # the operation does not exist


class Stat(python_enum.StrEnum):
    """Counters of 32 bits, cleared by `stat_clear`."""

    TOKENS = "tokens"  # tokens added to a list
    OPENED = "opened"  # clusters opened
    REFUSED = "refused"  # commands refused
    WRITES = "writes"  # writes to memory
    BUSY = "busy"  # cycles with a command
    BLOCKED_WRITE = "blocked_write"  # busy cycles in which a write waited for `o_write`
    BLOCKED_REPLY = "blocked_reply"  # busy cycles in which a reply waited for `o` or `o_counts`


@dataclass(frozen=True)
class Memories:
    """On-chip memories: entries, token counts (`lanes` per row), and the next list page of each list page."""

    entries: Ram
    counts: Ram
    links: Ram


@dataclass(frozen=True)
class Update:
    """The command in execution and the values that follow from it and from the entry read.

    command : register of the command
    fault : cause of a refusal in this cycle
    stored : the entry read ; exists : the cluster of the command exists
    count : tokens of the cluster before the command
    new_page_due : the token of an UPDATE needs a new list page
    slot, page : position of this token in its list page, and the list page
    changed : entry after the command
    next_page : list page that is handed out next
    record, list_slot, previous_page, relink : registers of the writes of an UPDATE: entry, position of the token in
        all list pages, list page before the new one, and whether a link is written
    """

    command: data.View
    fault: Signal
    stored: data.View
    exists: Signal
    count: Signal
    new_page_due: Signal
    slot: Signal
    page: Signal
    changed: data.View
    next_page: Signal
    record: data.View
    list_slot: Signal
    previous_page: Signal
    relink: Signal


@dataclass(frozen=True)
class Send:
    """Registers of LIST and COUNTS.

    page, tokens_left : list page that is sent, and tokens of this page and the pages after it
    row, row_valid, clusters_left : row of counts that is read next; a row is on `o_counts`; clusters of this row and
        of the rows after it
    """

    page: Signal
    tokens_left: Signal
    row: Signal
    row_valid: Signal
    clusters_left: Signal


class HcTable(wiring.Component):
    """Holds the entry of every hash cluster of one layer and writes the token lists to memory.

    An entry has the leader's hash code, the token count, the first token and the first and last list page. The mean
    key of a cluster is at a fixed address: `cfg_mean_keys_base` + number * size of a key. A token list is a chain of
    list pages in memory. All pages of a list are full except the last one; page numbers are handed out in ascending
    order. UPDATE accepts the assignment stream of the HCU without changes. Every change is also written to memory: a
    record of 16 bytes and a token count of 2 bytes per cluster, and an index of 4 bytes per token and per link. BEGIN,
    LOAD and LINK restore a table from these data.

    A refused command changes nothing and sets a sticky bit. A refused READ or LIST answers with the cause. A cluster
    whose update was refused takes no more tokens, because the next count is wrong.

    Timing
    ------
    One command at a time. Cycles from the transfer of a command to the first cycle in which the next command can be
    accepted, while no output stalls: UPDATE 5, or 6 if a list continues on a new page, or 2 if it is refused; BEGIN,
    LOAD, LINK and READ 2; LIST 2 * pages + 2; COUNTS ceil(clusters / lanes) + 2, one beat per cycle. Outputs depend
    on registers only.

    Numerics: integers only.

    Parameters
    ----------
    max_clusters : entries, a multiple of `lanes`
    max_list_pages : list pages, 2 to 65536
    list_page_tokens : token indices of one list page, a power of two
    lanes : token counts per beat of `o_counts`, a power of two
    key_dim : elements of a mean key
    hash_bits, count_bits, token_bits, cluster_bits, address_bits : widths

    Members
    -------
    i : stream of `command`
    o : stream of `reply`: one beat for READ, one beat per list page for LIST
    o_counts : stream of `beat`, at least one beat; clusters 0 to `clusters` - 1
    o_write : stream of `write`: `bytes` bytes of `data` at `address`
    cfg_cluster_records_base, cfg_token_lists_base, cfg_list_links_base, cfg_mean_keys_base, cfg_cluster_counts_base :
        byte addresses of the memory regions
    clusters : clusters in the table
    stat_* : see `Stat` ; stat_faults : sticky, one bit per `Fault`

    Raises
    ------
    ValueError
        If a size is outside its range.

    Source: V-Rex (arXiv 2512.12284), section V-B, Fig. 8 and 11.
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
                "address": address_bits,  # READ: of the mean key; LIST: of the list page
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
                    for name in ("cluster_records", "token_lists", "list_links", "mean_keys", "cluster_counts")
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
        """Latency and cycle formulas, as written into the JSON of the generated unit."""
        return {
            "latency": self.latency,
            "cycles_update": "5, or 6 when a list continues on a new page",
            "cycles_read": 2,
            "cycles_list": "2 * pages + 2",
            "cycles_counts": f"ceil(clusters / {self.lanes}) + 2",
        }

    @property
    def entry(self) -> data.StructLayout:
        """A row of the table without its token count: `first` and `newest` are the first and the last list page."""
        pages = range(self.max_list_pages)
        return data.StructLayout(
            {"hash": self.hash_bits, "first_token": self.token_bits, "first": pages, "newest": pages}
        )

    @property
    def memory_bits(self) -> dict[str, int]:
        """Size of each memory in bits."""
        return {
            "entries": self.max_clusters * self.entry.size,
            "counts": self.max_clusters * self.count_bits,
            "links": self.max_list_pages * (self.max_list_pages - 1).bit_length(),
        }

    @property
    def _lane_bits(self) -> int:
        return self.lanes.bit_length() - 1

    @property
    def _list_page_bytes(self) -> int:
        return self.list_page_tokens * INDEX_BYTES

    def elaborate(self, platform: object) -> Module:
        m = Module()
        link_bits = (self.max_list_pages - 1).bit_length()
        memories = Memories(
            entries=Ram(depth=self.max_clusters, width=self.entry.size),
            counts=Ram(depth=self.max_clusters // self.lanes, width=self.count_bits, words=self.lanes),
            links=Ram(depth=self.max_list_pages, width=link_bits),
        )
        m.submodules.entries, m.submodules.counts = memories.entries, memories.counts
        m.submodules.links = memories.links
        update = self._update(m, memories)
        m.d.comb += [
            self.o.payload.op.eq(update.command.op),
            self.o.payload.hash.eq(update.stored.hash),
            self.o.payload.count.eq(update.count),
            self.o.payload.first_token.eq(update.stored.first_token),
            self.o.payload.first.eq(update.stored.first),
            self.o.payload.newest.eq(update.stored.newest),
            self.o.payload.address.eq(
                (self.cfg_mean_keys_base + update.command.cluster * (self.key_dim * 2))[: self.address_bits]
            ),
            self.o.payload.last.eq(1),
        ]
        send = Send(
            page=Signal(range(self.max_list_pages), name="sent_page"),
            tokens_left=Signal(self.count_bits, name="tokens_left"),
            row=Signal(range(self.max_clusters // self.lanes + 1), name="row"),
            row_valid=Signal(name="row_valid"),
            clusters_left=Signal(range(self.max_clusters + 1), name="clusters_left"),
        )
        with m.FSM(init="IDLE") as fsm:
            self._idle(m, memories, update)
            with m.State("EXECUTE"):
                m.next = "IDLE"
                self._check(m, update)
                with m.If(update.fault == Fault.NONE):
                    self._execute(m, memories, update, send)
                answers = (update.command.op == Op.READ) | (
                    (update.command.op == Op.LIST) & (update.fault != Fault.NONE)
                )
                with m.If(answers):
                    m.d.comb += [self.o.valid.eq(1), self.o.payload.fault.eq(update.fault)]
                    with m.If(~self.o.ready):
                        m.next = "EXECUTE"
            self._write_update(m, update)
            self._send_list(m, memories, send)
            self._send_counts(m, memories, send)
            executing, idle = fsm.ongoing("EXECUTE"), fsm.ongoing("IDLE")
        self._count_events(m, update, send, executing, idle)
        return m

    def _update(self, m: Module, memories: Memories) -> Update:
        """The values that an UPDATE computes from its command and the entry read."""
        pages = range(self.max_list_pages)
        update = Update(
            command=Signal(self.command, name="command"),
            fault=Signal(Fault, name="fault"),
            stored=data.View(self.entry, memories.entries.r_data[0]),
            exists=Signal(name="exists"),
            count=Signal(self.count_bits, name="count"),
            new_page_due=Signal(name="new_page_due"),
            slot=Signal(self.list_page_tokens.bit_length() - 1, name="slot"),
            page=Signal(pages, name="page"),
            changed=Signal(self.entry, name="changed"),
            next_page=Signal(range(self.max_list_pages + 1), name="next_page"),
            record=Signal(self.entry, name="record"),
            list_slot=Signal(range(self.max_list_pages * self.list_page_tokens), name="list_slot"),
            previous_page=Signal(pages, name="previous_page"),
            relink=Signal(name="relink"),
        )
        command, stored = update.command, update.stored
        m.d.comb += [
            update.exists.eq(command.cluster < self.clusters),
            update.count.eq(Mux(command.opened, 0, memories.counts.r_data[command.cluster[: self._lane_bits]])),
            update.slot.eq(update.count[: len(update.slot)]),
            update.new_page_due.eq(update.slot == 0),
            update.page.eq(Mux(update.new_page_due, update.next_page[: len(update.page)], stored.newest)),
            update.changed.eq(stored),
            update.changed.newest.eq(update.page),
        ]
        with m.If(command.opened):
            m.d.comb += [
                update.changed.hash.eq(command.hash),
                update.changed.first_token.eq(command.token),
                update.changed.first.eq(update.page),
            ]
        return update

    def _idle(self, m: Module, memories: Memories, update: Update) -> None:
        """Accept a command and read the entry and the token count of its cluster."""
        entries, counts, command = memories.entries, memories.counts, self.i.payload
        with m.State("IDLE"):
            m.d.comb += [
                self.i.ready.eq(1),
                entries.r_addr.eq(command.cluster[: len(entries.r_addr)]),
                entries.r_en.eq(1),
                counts.r_addr.eq((command.cluster >> self._lane_bits)[: len(counts.r_addr)]),
                counts.r_en.eq(1),
            ]
            m.d.sync += update.command.eq(command)
            with m.If(self.i.valid):
                m.next = "EXECUTE"

    def _check(self, m: Module, update: Update) -> None:
        """Find the cause of a refusal."""
        command, fault, full = update.command, update.fault, self.clusters == self.max_clusters
        with m.Switch(command.op):
            with m.Case(Op.UPDATE):
                not_next = (command.cluster != self.clusters) | full
                with m.If(Mux(command.opened, not_next, ~update.exists)):
                    m.d.comb += fault.eq(Fault.CLUSTER)
                with m.Elif(command.count != update.count + 1):
                    m.d.comb += fault.eq(Fault.COUNT)
                with m.Elif(update.new_page_due & (update.next_page == self.max_list_pages)):
                    m.d.comb += fault.eq(Fault.NO_PAGE)
            with m.Case(Op.LOAD), m.If(full):
                m.d.comb += fault.eq(Fault.CLUSTER)
            with m.Case(Op.READ, Op.LIST), m.If(~update.exists):
                m.d.comb += fault.eq(Fault.CLUSTER)
            with m.Case(Op.BEGIN, Op.LINK, Op.COUNTS):
                pass
            with m.Default():
                m.d.comb += fault.eq(Fault.OP)
        regions = (
            (self.cfg_cluster_records_base, self.max_clusters * RECORD_BYTES),
            (self.cfg_token_lists_base, self.max_list_pages * self._list_page_bytes),
            (self.cfg_list_links_base, self.max_list_pages * INDEX_BYTES),
            (self.cfg_mean_keys_base, self.max_clusters * self.key_dim * 2),
            (self.cfg_cluster_counts_base, self.max_clusters * COUNT_BYTES),
        )
        region_bad = Cat(base + size > 1 << self.address_bits for base, size in regions).any()
        with m.If(region_bad):
            m.d.comb += fault.eq(Fault.REGION)

    def _execute(self, m: Module, memories: Memories, update: Update, send: Send) -> None:
        """Execute a command that is not refused."""
        command, links, changed = update.command, memories.links, update.changed
        with m.Switch(command.op):
            with m.Case(Op.UPDATE):
                continues = update.new_page_due & ~command.opened
                m.d.comb += [
                    *self._write_entry(memories, command.cluster, changed, command.count),
                    links.w_addr.eq(update.stored.newest),
                    links.w_data[0].eq(update.page),
                    links.w_mask.eq(continues),
                ]
                m.d.sync += [
                    self.clusters.eq(self.clusters + command.opened),
                    update.next_page.eq(update.next_page + update.new_page_due),
                    update.record.eq(changed),
                    update.list_slot.eq(Cat(update.slot, update.page)),
                    update.previous_page.eq(update.stored.newest),
                    update.relink.eq(continues),
                ]
                m.next = "WRITE_TOKEN"
            with m.Case(Op.BEGIN):
                m.d.sync += [self.clusters.eq(0), update.next_page.eq(command.first)]
            with m.Case(Op.LOAD):
                m.d.comb += [
                    changed.hash.eq(command.hash),
                    changed.first_token.eq(command.token),
                    changed.first.eq(command.first),
                    changed.newest.eq(command.newest),
                    *self._write_entry(memories, self.clusters, changed, command.count),
                ]
                m.d.sync += self.clusters.eq(self.clusters + 1)
            with m.Case(Op.LINK):
                m.d.comb += [links.w_addr.eq(command.first), links.w_data[0].eq(command.newest), links.w_mask.eq(1)]
            with m.Case(Op.LIST):
                m.d.sync += [send.page.eq(update.stored.first), send.tokens_left.eq(update.count)]
                m.next = "READ_LINK"
            with m.Case(Op.COUNTS):
                m.d.comb += [memories.counts.r_addr.eq(0), memories.counts.r_en.eq(1)]
                m.d.sync += [send.row_valid.eq(1), send.row.eq(1), send.clusters_left.eq(self.clusters)]
                m.next = "SEND_COUNTS"

    def _write_entry(self, memories: Memories, cluster: Value, entry: Value, tokens: Value) -> list:
        """Statements that write an entry and its token count."""
        entries, counts = memories.entries, memories.counts
        return [
            entries.w_addr.eq(cluster[: len(entries.w_addr)]),
            entries.w_mask.eq(1),
            entries.w_data[0].eq(entry),
            counts.w_addr.eq((cluster >> self._lane_bits)[: len(counts.w_addr)]),
            counts.w_mask.eq((Const(1, self.lanes) << cluster[: self._lane_bits])[: self.lanes]),
            *(word.eq(tokens) for word in counts.w_data),
        ]

    def _write_update(self, m: Module, update: Update) -> None:
        """Write the changes of an UPDATE to memory: token index, cluster record, token count, link to a list page."""
        command, record, payload = update.command, update.record, self.o_write.payload

        def write(address: Value, value: Value, size: int) -> None:
            m.d.comb += [
                self.o_write.valid.eq(1),
                payload.address.eq(address[: self.address_bits]),
                payload.data.eq(value),
                payload.bytes.eq(size),
            ]

        with m.State("WRITE_TOKEN"):
            write(self.cfg_token_lists_base + update.list_slot * INDEX_BYTES, command.token, INDEX_BYTES)
            with m.If(self.o_write.ready):
                m.next = "WRITE_RECORD"
        with m.State("WRITE_RECORD"):
            fields = [
                (record.hash, 32),
                (record.first_token, 32),
                (command.count, 16),
                (record.first, 16),
                (record.newest, 16),
            ]
            words = Cat(Cat(value, Const(0, width - len(value))) for value, width in fields)
            write(self.cfg_cluster_records_base + command.cluster * RECORD_BYTES, words, RECORD_BYTES)
            with m.If(self.o_write.ready):
                m.next = "WRITE_COUNT"
        with m.State("WRITE_COUNT"):
            write(self.cfg_cluster_counts_base + command.cluster * COUNT_BYTES, command.count, COUNT_BYTES)
            with m.If(self.o_write.ready):
                m.next = "IDLE"
                with m.If(update.relink):
                    m.next = "WRITE_LINK"
        with m.State("WRITE_LINK"):
            page = update.list_slot >> len(update.slot)
            write(self.cfg_list_links_base + update.previous_page * INDEX_BYTES, page, INDEX_BYTES)
            with m.If(self.o_write.ready):
                m.next = "IDLE"

    def _send_list(self, m: Module, memories: Memories, send: Send) -> None:
        """LIST: send one list page after the other."""
        links, beat = memories.links, self.o.payload
        with m.State("READ_LINK"):
            m.d.comb += [links.r_addr.eq(send.page), links.r_en.eq(1)]
            m.next = "SEND_PAGE"
        with m.State("SEND_PAGE"):
            final = send.tokens_left <= self.list_page_tokens
            address = self.cfg_token_lists_base + send.page * self._list_page_bytes
            m.d.comb += [
                self.o.valid.eq(1),
                beat.address.eq(address[: self.address_bits]),
                beat.count.eq(Mux(final, send.tokens_left, self.list_page_tokens)),
                beat.last.eq(final),
            ]
            with m.If(self.o.ready):
                m.d.sync += [
                    send.page.eq(links.r_data[0]),
                    send.tokens_left.eq((send.tokens_left - self.list_page_tokens)[: len(send.tokens_left)]),
                ]
                m.next = "READ_LINK"
                with m.If(final):
                    m.next = "IDLE"

    def _send_counts(self, m: Module, memories: Memories, send: Send) -> None:
        """COUNTS: send one row of counts per cycle; the next row is read while a row is sent."""
        counts, beat = memories.counts, self.o_counts.payload
        row, clusters_left = send.row, send.clusters_left
        last_row = Signal()
        next_row = Signal()
        m.d.comb += [
            last_row.eq(clusters_left <= self.lanes),
            self.o_counts.valid.eq(send.row_valid),
            beat.used.eq(Mux(last_row, clusters_left, self.lanes)),
            beat.last.eq(last_row),
            next_row.eq(self.o_counts.ready & ~last_row),
        ]
        for w in range(self.lanes):
            m.d.comb += beat.counts[w].eq(Mux(w < clusters_left, counts.r_data[w], 0))
        with m.State("SEND_COUNTS"):
            m.d.comb += [counts.r_addr.eq(row[: len(counts.r_addr)]), counts.r_en.eq(next_row)]
            with m.If(next_row):
                m.d.sync += [row.eq(row + 1), clusters_left.eq((clusters_left - self.lanes)[: len(clusters_left)])]
            with m.If(self.o_counts.ready & last_row):
                m.d.sync += send.row_valid.eq(0)
                m.next = "IDLE"

    def _count_events(self, m: Module, update: Update, send: Send, executing: Value, idle: Value) -> None:
        """Drive the counters and the sticky fault bits."""
        fault = update.fault
        blocked_reply = (self.o.valid & ~self.o.ready) | (send.row_valid & ~self.o_counts.ready)
        done = executing & ~blocked_reply
        added = done & (update.command.op == Op.UPDATE) & (fault == Fault.NONE)
        events = {
            Stat.BLOCKED_WRITE: self.o_write.valid & ~self.o_write.ready,
            Stat.BLOCKED_REPLY: blocked_reply,
            Stat.TOKENS: added,
            Stat.OPENED: added & update.command.opened,
            Stat.REFUSED: done & (fault != Fault.NONE),
            Stat.WRITES: self.o_write.valid & self.o_write.ready,
            Stat.BUSY: ~idle,
        }
        count(m, self, events)
        with m.If(fault != Fault.NONE):
            m.d.sync += self.stat_faults.eq(self.stat_faults | (Const(1, len(Fault)) << fault.as_value())[: len(Fault)])
        with m.If(self.stat_clear):
            m.d.sync += self.stat_faults.eq(0)
