"""HCU: hash clustering unit (V-Rex, section V-B, Fig. 11)."""

import enum as python_enum
from dataclasses import dataclass

from amaranth import Cat, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hw.arith.adders import count_ones
from hw.common.counters import count
from hw.common.memory import Ram
from hw.common.tree import reduce_tree
from hw.config import Config


class Op(enum.Enum, shape=unsigned(2)):
    """Operation of one input beat."""

    TOKEN = 0  # assign the token with the hash code `hash` to a cluster
    BEGIN = 1  # start an empty table: the next token is number `index`, the next cluster is number `cluster`
    LOAD = 2  # append a cluster that was saved earlier: leader `hash`, `count` tokens, first token `index`


class Stat(python_enum.StrEnum):
    """Counters of 32 bits, cleared by `stat_clear`."""

    TOKENS = "tokens"  # tokens assigned
    OPENED = "opened"  # clusters opened
    COMPARED = "compared"  # (token, candidate) pairs compared
    BUSY = "busy"  # cycles in which a scan advanced
    BLOCKED = "blocked"  # cycles in which a scan waited for `o`
    STARVED = "starved"  # cycles without a token


@dataclass(frozen=True)
class Table:
    """Registers of the cluster table. The candidates are clusters `first` to `end` - 1.

    oldest_token : first token of cluster `first`, low bits
    last_count : tokens of cluster `end` - 1
    next_token : number of the next token
    """

    first: Signal
    end: Signal
    oldest_token: Signal
    last_count: Signal
    next_token: Signal


@dataclass(frozen=True)
class Scan:
    """State of the search of one token: one row of clusters and one slice of the hash code per cycle.

    code, token : hash code and `last` bit of the token, and its number
    best_before, best : nearest candidate of the earlier rows, and with the present row
    last_slice : the distances of the present row are complete in this cycle
    stalled : the search has ended, but the previous result has not left `o`
    done : the search ends in this cycle
    """

    active: Signal
    row: Signal
    slice: Signal
    code: data.View
    token: Signal
    best_before: data.View
    best: data.View
    last_slice: Signal
    stalled: Signal
    done: Signal


@dataclass(frozen=True)
class Result:
    """Result of a search: the cluster `target` of the token and the cluster's token count.

    full : no cluster can be opened: the table is full or all cluster numbers are used
    opened : the token opens a cluster ; overflow : nothing matches and the table is full
    """

    full: Signal
    opened: Signal
    overflow: Signal
    target: Signal
    new_count: Signal


@dataclass(frozen=True)
class Entry:
    """Events at the input of the search.

    accept : a token enters the search ; left_window : cluster `first` leaves the window
    next_first : `first` after this cycle
    begin, load, load_fault : a BEGIN, a LOAD, or a LOAD into a full table is executed
    """

    accept: Signal
    left_window: Signal
    next_first: Signal
    begin: Signal
    load: Signal
    load_fault: Signal


class HCU(wiring.Component):
    """Assigns the hash code of each token to the nearest cluster leader, or opens a new cluster.

    Clusters are numbered in the order in which they open. The hash code of the token that opens a cluster is the
    leader of the cluster; it never changes. Candidates are the clusters whose first token lies inside the recent
    window and whose token count is below `cfg_max_cluster_tokens`, including the clusters that earlier tokens of the
    same step opened. The candidate with the smallest Hamming distance D wins; on ties the lowest number wins. The
    token joins this cluster if D < `cfg_hamming_threshold` (D <= if `cfg_hamming_inclusive`). Otherwise the token
    opens the next cluster.

    The table on chip is a ring of the last `max_candidates` clusters. It is full when all of them are inside the
    window or all cluster numbers are used. A token that matches nothing then joins its nearest candidate, or the
    last cluster if there is no candidate; its beat carries `overflow`, and `stat_overflow` stays set.

    Every output beat is also the update of the cluster table in memory: with `opened` it appends the entry
    {hash, count, token}; without, cluster `cluster` now has `count` tokens, and `token` is the last of them.

    Timing
    ------
    `slices` = ceil(hash_bits / lanes). A token whose candidates lie in `rows` rows of `accumulators` clusters takes
    exactly slices * max(1, rows) cycles, and the next token follows without a gap. A cluster with the maximum token
    count takes the same time as a candidate. The result appears on `o` one cycle after the end of the search.
    `latency` is None: it depends on the data. BEGIN and LOAD take one cycle each and wait until all earlier tokens
    are assigned. If `o` is not ready, the search stops only when a second result is due. `i.ready` depends on
    `i.payload.op`; there is no combinational path from `o` to `i`.

    Numerics: integers only. The result does not depend on `lanes` and `accumulators`.

    Parameters
    ----------
    hash_bits : bits of a hash code
    lanes : bits that one accumulator compares per cycle, 1 to `hash_bits`
    accumulators : clusters that are compared in parallel, a power of two
    max_candidates : clusters on chip, a power of two, at least 2 * `accumulators`
    max_step_tokens : hash codes that wait on chip
    max_window_tokens : largest value of `cfg_window_tokens`
    token_bits, cluster_bits, count_bits : widths of token numbers, cluster numbers and token counts

    Members
    -------
    i : stream of `command` ; o : stream of `assignment`
    cfg_hamming_threshold, cfg_hamming_inclusive : Hamming distance of a match: below the threshold, or at most
    cfg_first_match : 1: the match with the lowest number wins; 0: the nearest candidate wins
    cfg_window_tokens : largest age in tokens of a candidate's first token; 0 means no limit
    cfg_max_cluster_tokens : a cluster with this many tokens takes no more tokens
    stat_* : see `Stat` ; stat_overflow : sticky; a token was forced into a full table
    stat_fault : sticky; a LOAD into a full table was dropped

    Raises
    ------
    ValueError
        If a size is outside its range.

    Source: V-Rex (arXiv 2512.12284), section V-B, Fig. 11.
    """

    latency = None

    def __init__(
        self,
        *,
        hash_bits: int,
        lanes: int,
        accumulators: int,
        max_candidates: int,
        max_step_tokens: int,
        max_window_tokens: int,
        token_bits: int = 32,
        cluster_bits: int = 16,
        count_bits: int = 16,
    ):
        if not 1 <= lanes <= hash_bits:
            raise ValueError(f"lanes must be 1 to hash_bits = {hash_bits}, got {lanes}")
        for name, value in (("accumulators", accumulators), ("max_candidates", max_candidates)):
            if value < 1 or value & (value - 1):
                raise ValueError(f"{name} must be a power of two, got {value}")
        if not 2 * accumulators <= max_candidates <= 1 << cluster_bits:
            limits = f"2 * accumulators = {2 * accumulators} to 2**cluster_bits = {1 << cluster_bits}"
            raise ValueError(f"max_candidates must be {limits}, got {max_candidates}")
        if max_step_tokens < 1:
            raise ValueError(f"max_step_tokens must be at least 1, got {max_step_tokens}")
        if not 1 <= max_window_tokens < 1 << (token_bits - 1):
            valid = f"1 to 2**(token_bits - 1) - 1 = {(1 << (token_bits - 1)) - 1}"
            raise ValueError(f"max_window_tokens must be {valid}, got {max_window_tokens}")
        self.hash_bits, self.lanes, self.accumulators = hash_bits, lanes, accumulators
        self.max_candidates, self.max_step_tokens, self.max_window_tokens = (
            max_candidates,
            max_step_tokens,
            max_window_tokens,
        )
        self.token_bits, self.cluster_bits, self.count_bits = token_bits, cluster_bits, count_bits
        self.command = data.StructLayout(
            {
                "op": Op,
                "hash": hash_bits,
                "count": count_bits,
                "index": token_bits,
                "cluster": cluster_bits,
                "last": 1,
            }
        )
        self.assignment = data.StructLayout(
            {
                "token": token_bits,
                "cluster": cluster_bits,
                "hash": hash_bits,
                "count": count_bits,
                "distance": range(hash_bits + 1),
                "opened": 1,
                "overflow": 1,
                "last": 1,
            }
        )
        super().__init__(
            {
                "i": In(stream.Signature(self.command)),
                "o": Out(stream.Signature(self.assignment)),
                "cfg_hamming_threshold": In(range(hash_bits + 2)),
                "cfg_hamming_inclusive": In(1),
                "cfg_first_match": In(1),
                "cfg_window_tokens": In(range(max_window_tokens + 1)),
                "cfg_max_cluster_tokens": In(count_bits),
                "stat_clear": In(1),
                "stat_overflow": Out(1),
                "stat_fault": Out(1),
                **{f"stat_{name}": Out(32) for name in Stat},
            }
        )

    @classmethod
    def from_config(cls, config: Config) -> "HCU":
        """The HCU of one core."""
        return cls(
            hash_bits=config.hash_bits,
            lanes=config.hcu_lanes,
            accumulators=config.hcu_accumulators,
            max_candidates=config.max_candidates,
            max_step_tokens=config.max_step_tokens,
            max_window_tokens=config.max_window_tokens,
            token_bits=config.token_bits,
            cluster_bits=config.cluster_bits,
            count_bits=config.count_bits,
        )

    @property
    def slices(self) -> int:
        """Cycles in which one accumulator compares one hash code."""
        return -(-self.hash_bits // self.lanes)

    def token_cycles(self, first: int, end: int) -> int:
        """Cycles of one token whose candidates are clusters `first` to `end` - 1."""
        rows = (end - 1) // self.accumulators - first // self.accumulators + 1 if end > first else 0
        return self.slices * max(1, rows)

    @property
    def timing(self) -> dict[str, object]:
        """Latency and cycle formula, as written into the JSON of the generated unit."""
        return {
            "latency": self.latency,
            "cycles_per_token": "slices * max(1, rows)",
            "slices": self.slices,
            "candidates_per_row": self.accumulators,
        }

    @property
    def _bank_bits(self) -> int:
        """Low bits of a cluster number that select the accumulator."""
        return self.accumulators.bit_length() - 1

    @property
    def _row_bits(self) -> int:
        """Width of a row number of the on-chip memories."""
        return (self.max_candidates // self.accumulators - 1).bit_length()

    @property
    def _id_bits(self) -> int:
        """Width of a cluster number that can also be one beyond the last."""
        return self.cluster_bits + 1

    @property
    def _age_bits(self) -> int:
        """Stored bits of a first token. The age of a candidate exceeds the window by at most one."""
        return min(self.token_bits, (2 * self.max_window_tokens + 2).bit_length())

    @property
    def _code(self) -> data.StructLayout:
        """A token that waits for its search."""
        return data.StructLayout({"hash": self.hash_bits, "last": 1})

    @property
    def _candidate(self) -> data.StructLayout:
        """A cluster in the search; the smallest `key` wins."""
        return data.StructLayout(
            {
                "valid": 1,
                "match": 1,
                "key": range(self.hash_bits + 1),
                "distance": range(self.hash_bits + 1),
                "cluster": self._id_bits,
                "count": self.count_bits,
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        rows, banks = self.max_candidates // self.accumulators, self.accumulators
        m.submodules.codes = codes = SyncFIFOBuffered(width=self._code.size, depth=self.max_step_tokens)
        m.submodules.hashes = hashes = Ram(depth=rows, width=self.hash_bits, words=banks)
        m.submodules.counts = counts = Ram(depth=rows, width=self.count_bits, words=banks)
        m.submodules.first_tokens = first_tokens = Ram(depth=self.max_candidates, width=self._age_bits)
        table = Table(
            first=Signal(self._id_bits, name="first"),
            end=Signal(self._id_bits, name="end"),
            oldest_token=Signal(self._age_bits, name="oldest_token"),
            last_count=Signal(self.count_bits, name="last_count"),
            next_token=Signal(self.token_bits, name="next_token"),
        )
        scan = Scan(
            active=Signal(name="active"),
            row=Signal(self._id_bits - self._bank_bits, name="row"),
            slice=Signal(range(self.slices), name="slice"),
            code=Signal(self._code, name="code"),
            token=Signal(self.token_bits, name="scanned_token"),
            best_before=Signal(self._candidate, name="best_before"),
            best=Signal(self._candidate, name="best"),
            last_slice=Signal(name="last_slice"),
            stalled=Signal(name="stalled"),
            done=Signal(name="done"),
        )
        self._compare(m, table, scan, hashes, counts)
        result = self._decide(m, table, scan)
        entry = self._accept(m, table, scan, result, codes)
        self._write_memories(m, table, scan, result, entry, hashes, counts, first_tokens)
        self._update_table(m, table, scan, result, entry, first_tokens)
        self._scan_rows(m, scan, entry, codes, hashes, counts)
        self._send(m, scan, result)
        self._count_events(m, table, scan, result, entry)
        return m

    def _compare(self, m: Module, table: Table, scan: Scan, hashes: Ram, counts: Ram) -> None:
        """Compare the token with one row of clusters, one slice per cycle, and keep the nearest candidate."""
        limit = Signal(range(self.hash_bits + 2))  # a candidate matches if its distance is below `limit`
        threshold = self.cfg_hamming_threshold
        m.d.comb += limit.eq(Mux(self.cfg_hamming_inclusive, threshold + 1, threshold))
        code_slice = Signal(self.lanes)
        m.d.comb += [
            scan.last_slice.eq(scan.slice == self.slices - 1),
            code_slice.eq(self._slice(scan.code.hash, scan.slice)),
        ]
        candidates = []
        for w in range(self.accumulators):
            candidate = Signal(self._candidate, name=f"candidate{w}")
            leader = Signal(self.lanes, name=f"leader{w}")
            partial = Signal(range(self.hash_bits + 1), name=f"partial{w}")  # distance of the earlier slices
            distance = Signal(range(self.hash_bits + 1), name=f"distance{w}")
            cluster = Signal(self._id_bits, name=f"cluster{w}")
            in_table = (cluster >= table.first) & (cluster < table.end)
            m.d.comb += [
                leader.eq(self._slice(hashes.r_data[w], scan.slice)),
                distance.eq(Mux(scan.slice == 0, 0, partial) + count_ones(m, leader ^ code_slice)),
                cluster.eq((scan.row << self._bank_bits) | w),
                candidate.cluster.eq(cluster),
                candidate.count.eq(counts.r_data[w]),
                candidate.valid.eq(in_table & (candidate.count < self.cfg_max_cluster_tokens)),
                candidate.match.eq(candidate.valid & (distance < limit)),
                candidate.distance.eq(distance),
                candidate.key.eq(Mux(self.cfg_first_match & candidate.match, 0, distance)),
            ]
            with m.If(~scan.stalled):
                m.d.sync += partial.eq(distance)
            candidates.append(candidate)

        def nearer(a: data.View, b: data.View) -> data.View:
            """The candidate with the smaller key; `a`, which has the lower number, on ties."""
            b_wins = b.valid & (~a.valid | (b.key < a.key))
            return data.View(self._candidate, Mux(b_wins, b.as_value(), a.as_value()))

        m.d.comb += scan.best.eq(nearer(scan.best_before, reduce_tree(nearer, candidates)))

    def _decide(self, m: Module, table: Table, scan: Scan) -> Result:
        """The result of the search, valid in the last slice of the last row."""
        result = Result(
            full=Signal(name="full"),
            opened=Signal(name="opened"),
            overflow=Signal(name="overflow"),
            target=Signal(self._id_bits, name="target"),
            new_count=Signal(self.count_bits, name="new_count"),
        )
        best, end = scan.best, table.end
        last_row = (table.first == end) | (scan.row == ((end - 1)[: self._id_bits] >> self._bank_bits))
        decide = Signal()
        m.d.comb += [
            decide.eq(scan.active & scan.last_slice & last_row),
            scan.stalled.eq(decide & self.o.valid & ~self.o.ready),
            scan.done.eq(decide & ~scan.stalled),
            result.full.eq(
                ((end - table.first)[: self._id_bits] == self.max_candidates) | (end == 1 << self.cluster_bits)
            ),
            result.opened.eq(~best.match & ~result.full),
            result.overflow.eq(~best.match & result.full),
        ]
        with m.If(result.opened):
            m.d.comb += [result.target.eq(end), result.new_count.eq(1)]
        with m.Elif(best.valid):
            m.d.comb += [result.target.eq(best.cluster), result.new_count.eq(best.count + 1)]
        with m.Else():
            saturated = table.last_count == self.cfg_max_cluster_tokens
            m.d.comb += [
                result.target.eq(end - 1),
                result.new_count.eq(Mux(saturated, table.last_count, table.last_count + 1)),
            ]
        return result

    def _accept(self, m: Module, table: Table, scan: Scan, result: Result, codes: SyncFIFOBuffered) -> Entry:
        """Accept input beats. A token enters the search when the previous token leaves it.

        At most one cluster leaves the window per token. BEGIN and LOAD wait until no token is in the unit.
        """
        entry = Entry(
            accept=Signal(name="accept"),
            left_window=Signal(name="left_window"),
            next_first=Signal(self._id_bits, name="next_first"),
            begin=Signal(name="begin"),
            load=Signal(name="load"),
            load_fault=Signal(name="load_fault"),
        )
        command = self.i.payload
        age = Signal(self._age_bits)
        idle = Signal()
        limited, occupied = self.cfg_window_tokens != 0, table.first != table.end
        m.d.comb += [
            entry.accept.eq(codes.r_rdy & (~scan.active | scan.done)),
            codes.r_en.eq(entry.accept),
            age.eq(table.next_token - table.oldest_token),
            entry.left_window.eq(entry.accept & occupied & limited & (age > self.cfg_window_tokens)),
            entry.next_first.eq(table.first + entry.left_window),
            codes.w_data.eq(Cat(command.hash, command.last)),
            codes.w_en.eq(self.i.valid & (command.op == Op.TOKEN)),
            idle.eq(~scan.active & ~codes.r_rdy & (codes.level == 0)),
            self.i.ready.eq(Mux(command.op == Op.TOKEN, codes.w_rdy, idle)),
            entry.begin.eq(self.i.valid & idle & (command.op == Op.BEGIN)),
            entry.load_fault.eq(self.i.valid & idle & (command.op == Op.LOAD) & result.full),
            entry.load.eq(self.i.valid & idle & (command.op == Op.LOAD) & ~result.full),
        ]
        return entry

    def _write_memories(
        self,
        m: Module,
        table: Table,
        scan: Scan,
        result: Result,
        entry: Entry,
        hashes: Ram,
        counts: Ram,
        first_tokens: Ram,
    ) -> None:
        """Write the cluster that a result or a LOAD changes."""
        command, bank_bits, row_bits = self.i.payload, self._bank_bits, self._row_bits
        appended = Signal()
        first_token = Signal(self.token_bits)
        write_id = Signal(self._id_bits)
        m.d.comb += [
            appended.eq(entry.load | (scan.done & result.opened)),
            first_token.eq(Mux(entry.load, command.index, scan.token)),
            write_id.eq(Mux(entry.load, table.end, result.target)),
        ]
        for memory, enable in ((hashes, appended), (counts, entry.load | scan.done)):
            m.d.comb += [
                memory.w_addr.eq(write_id[bank_bits : bank_bits + row_bits]),
                memory.w_mask.eq(enable << write_id[:bank_bits]),
            ]
        for w in range(self.accumulators):
            m.d.comb += [
                hashes.w_data[w].eq(Mux(entry.load, command.hash, scan.code.hash)),
                counts.w_data[w].eq(Mux(entry.load, command.count, result.new_count)),
            ]
        m.d.comb += [
            first_tokens.w_addr.eq(table.end[: len(first_tokens.w_addr)]),
            first_tokens.w_mask.eq(appended),
            first_tokens.w_data[0].eq(first_token[: self._age_bits]),
        ]
        with m.If(appended):
            m.d.sync += table.end.eq(table.end + 1)
        with m.If(appended & (entry.next_first == table.end)):
            m.d.sync += table.oldest_token.eq(first_token[: self._age_bits])
        with m.Elif(entry.left_window):
            m.d.sync += table.oldest_token.eq(first_tokens.r_data[0])

    def _update_table(
        self, m: Module, table: Table, scan: Scan, result: Result, entry: Entry, first_tokens: Ram
    ) -> None:
        """Update the registers of the table; `first_tokens` shows the cluster after `first`."""
        command = self.i.payload
        m.d.comb += [
            first_tokens.r_addr.eq((entry.next_first + 1)[: len(first_tokens.r_addr)]),
            first_tokens.r_en.eq(1),
        ]
        m.d.sync += table.first.eq(entry.next_first)
        with m.If(entry.load):
            m.d.sync += table.last_count.eq(command.count)
        with m.Elif(scan.done & (result.opened | (result.target == table.end - 1))):
            m.d.sync += table.last_count.eq(result.new_count)
        with m.If(entry.accept):
            m.d.sync += [table.next_token.eq(table.next_token + 1), scan.token.eq(table.next_token)]
        with m.If(entry.begin):
            m.d.sync += [
                table.next_token.eq(command.index),
                table.first.eq(command.cluster),
                table.end.eq(command.cluster),
            ]

    def _scan_rows(
        self, m: Module, scan: Scan, entry: Entry, codes: SyncFIFOBuffered, hashes: Ram, counts: Ram
    ) -> None:
        """Advance the search. The memories are addressed with the row of the next cycle."""
        waiting = data.View(self._code, codes.r_data)
        fetch = Signal()
        next_row = Signal.like(scan.row)
        m.d.comb += next_row.eq(scan.row)
        with m.If(entry.accept):
            m.d.comb += [next_row.eq(entry.next_first >> self._bank_bits), fetch.eq(1)]
            m.d.sync += [
                scan.active.eq(1),
                scan.slice.eq(0),
                scan.code.hash.eq(waiting.hash),
                scan.code.last.eq(waiting.last),
                scan.best_before.eq(0),
            ]
        with m.Elif(scan.done):
            m.d.sync += scan.active.eq(0)
        with m.Elif(scan.active & ~scan.stalled):
            with m.If(scan.last_slice):
                m.d.comb += [next_row.eq(scan.row + 1), fetch.eq(1)]
                m.d.sync += [scan.slice.eq(0), scan.best_before.eq(scan.best)]
            with m.Else():
                m.d.sync += scan.slice.eq(scan.slice + 1)
        m.d.sync += scan.row.eq(next_row)
        for memory in (hashes, counts):
            m.d.comb += [memory.r_addr.eq(next_row[: self._row_bits]), memory.r_en.eq(fetch)]

    def _send(self, m: Module, scan: Scan, result: Result) -> None:
        """Write the result into the output register."""
        best, beat = scan.best, self.o.payload
        with m.If(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        with m.If(scan.done):
            m.d.sync += [
                self.o.valid.eq(1),
                beat.token.eq(scan.token),
                beat.cluster.eq(result.target[: self.cluster_bits]),
                beat.hash.eq(scan.code.hash),
                beat.count.eq(result.new_count),
                beat.distance.eq(Mux(result.opened | ~best.valid, 0, best.distance)),
                beat.opened.eq(result.opened),
                beat.overflow.eq(result.overflow),
                beat.last.eq(scan.code.last),
            ]

    def _count_events(self, m: Module, table: Table, scan: Scan, result: Result, entry: Entry) -> None:
        """Drive the counters and the sticky bits."""
        events = {
            Stat.TOKENS: scan.done,
            Stat.OPENED: scan.done & result.opened,
            Stat.BUSY: scan.active & ~scan.stalled,
            Stat.BLOCKED: scan.stalled,
            Stat.STARVED: ~scan.active,
            Stat.COMPARED: Mux(scan.done, (table.end - table.first)[: self._id_bits], 0),
        }
        count(m, self, events)
        with m.If(scan.done & result.overflow):
            m.d.sync += self.stat_overflow.eq(1)
        with m.If(entry.load_fault):
            m.d.sync += self.stat_fault.eq(1)
        with m.If(self.stat_clear):
            m.d.sync += [self.stat_overflow.eq(0), self.stat_fault.eq(0)]

    def _slice(self, word: Value, index: Value) -> Value:
        """Slice number `index` of `word`: `lanes` bits, zero beyond the top."""
        value = Value.cast(word)
        slices = [value[s * self.lanes : (s + 1) * self.lanes] for s in range(self.slices)]
        result = slices[-1]
        for s in reversed(range(self.slices - 1)):
            result = Mux(index == s, slices[s], result)
        return result
