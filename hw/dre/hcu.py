"""HCU: hash clustering unit (V-Rex, section V-B, Fig. 11)."""

import enum as python_enum
from dataclasses import dataclass

from amaranth import Cat, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hw.arith.adders import count_ones
from hw.common.counters import count
from hw.common.memory import BufferedRam, Ram
from hw.common.tree import reduce_tree
from hw.config import Config


class Op(enum.Enum, shape=unsigned(2)):
    """Operation of one input beat."""

    TOKEN = 0  # assign the token with the hash code `hash` to a cluster
    BEGIN = 1  # start an empty table: next token `index`, next cluster `cluster`; the cluster before has `count` tokens
    LOAD = 2  # append a saved cluster: leader `hash`, `count` tokens, first token `index`


class Stat(python_enum.StrEnum):
    """Counters of 32 bits, cleared by `stat_clear`."""

    TOKENS = "tokens"  # tokens that the unit assigned
    OPENED = "opened"  # clusters that tokens opened
    COMPARED = "compared"  # compared pairs of a token and a cluster of the table
    BUSY = "busy"  # cycles in which a search advances
    BLOCKED = "blocked"  # cycles in which a complete search waits because `o` is not ready
    STARVED = "starved"  # cycles without a search, including those of BEGIN and LOAD


@dataclass(frozen=True)
class Table:
    """Registers of the cluster table, which contains clusters `first` to `end` - 1.

    oldest_token : low bits of the number of the first token of cluster `first`
    last_count : token count of cluster `end` - 1
    next_token : number of the next token
    """

    first: Signal
    end: Signal
    oldest_token: Signal
    last_count: Signal
    next_token: Signal


@dataclass(frozen=True)
class Search:
    """State of the search for the cluster of one token.

    Each cycle compares one slice of the hash code with one row of the table. A row has `accumulators` clusters with
    consecutive numbers.

    code : hash code and `last` bit of the token ; token : number of the token
    best_before : nearest candidate of the rows before this one ; best : nearest candidate including this row
    last_slice : the distances of this row are complete in this cycle
    stalled : the search is complete, but the previous result still waits at `o`
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

    full : no cluster can be opened: the table has `max_candidates` clusters, or all cluster numbers are used
    opened : the token opens a cluster ; overflow : no candidate matches and `full` is 1
    """

    full: Signal
    opened: Signal
    overflow: Signal
    target: Signal
    new_count: Signal


@dataclass(frozen=True)
class InputEvents:
    """Events of this cycle at the input of the search.

    accept : the search of a token starts ; left_window : cluster `first` leaves the window
    next_first : `first` after this cycle
    begin, load : a BEGIN or a LOAD is executed ; load_fault : a LOAD is dropped because the table is full
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
    same step opened. The candidate with the smallest Hamming distance D wins. If several candidates have this
    distance, the lowest number wins. The token joins this cluster if D < `cfg_hamming_threshold`, or
    D <= `cfg_hamming_threshold` if `cfg_hamming_inclusive` is 1. Otherwise the token opens the next cluster.

    The table on chip is a ring for `max_candidates` clusters. No cluster can be opened if the window contains
    `max_candidates` clusters or all cluster numbers are used. A token without a match then joins the nearest
    candidate. If there is no candidate, the token joins the last cluster, whose token count does not exceed
    `cfg_max_cluster_tokens`. The output beat of such a token has `overflow` = 1, and `stat_overflow` is 1 until
    `stat_clear`.

    An output beat contains everything that changes in the records of the clusters. If `opened` is 1, a new cluster has
    the leader `hash`, `count` tokens and the first token `token`. If `opened` is 0, the token count of `cluster`
    changes to `count`, and `token` is its newest token.

    The table on chip belongs to one context, which is one layer of one stream. BEGIN and LOAD replace it by that of
    another context: BEGIN has the number of the next token and of the oldest candidate. One LOAD per candidate follows,
    in the order of the cluster numbers, with values of the cluster records in memory. The clusters that have left the
    window are not loaded. The next tokens then get the same results as without the interruption. If no candidate is
    left, `count` of BEGIN is the token count of the last cluster; the unit uses it only if no cluster number remains.
    `cfg_window_tokens` may change only before a BEGIN.

    The memory for the first tokens stores a number modulo a power of two above `max_window_tokens` + 1: a candidate
    is at most `max_window_tokens` + 1 tokens old when it leaves the window. Without a limit (`cfg_window_tokens` is 0)
    the unit does not read first tokens.

    Timing
    ------
    `slices` = ceil(hash_bits / lanes). The table is divided into rows of `accumulators` clusters. A token takes
    slices * max(1, rows) cycles, where `rows` is the number of rows with clusters of the window. The next token follows
    without a gap. Clusters with the maximum token count are compared too, but they are not candidates. The result
    appears on `o` one cycle after the end of the search. `latency` is None: it depends on the data. BEGIN and LOAD take
    one cycle each and wait until all earlier tokens are assigned. A search waits only if its result is ready before the
    previous result has left `o`. `i.ready` depends on `i.payload.op`; there is no combinational path from `o` to `i`.

    Numerics: integers only. The result does not depend on `lanes` and `accumulators`.

    Parameters
    ----------
    hash_bits : bits of a hash code
    lanes : bits that one accumulator compares per cycle, 1 to `hash_bits`
    accumulators : clusters that are compared in parallel, a power of two
    max_candidates : largest number of clusters in the table on chip, a power of two, at least 2 * `accumulators`
    max_step_tokens : depth of the FIFO of tokens that wait for their search
    max_window_tokens : largest value of `cfg_window_tokens`
    token_bits, cluster_bits, count_bits : widths of token numbers, cluster numbers and token counts
    counters : False: the counters `Stat` are always zero

    Members
    -------
    i : stream of `request` ; o : stream of `assignment`. `last` marks the last token of a step; `o` repeats it.
    cfg_hamming_threshold : a candidate matches if its Hamming distance is below this threshold
    cfg_hamming_inclusive : 1: a distance equal to the threshold matches too
    cfg_first_match : 1: the match with the lowest number wins; 0: the nearest candidate wins
    cfg_window_tokens : largest age of a candidate's first token, 0 to `max_window_tokens`; 0 means no limit
    cfg_max_cluster_tokens : a cluster with this many tokens is not a candidate
    stat_* : see `Stat` ; stat_overflow : sticky; a token without a match joined a cluster because none could open
    stat_fault : sticky; a LOAD was dropped because the table was full

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
        counters: bool = True,
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
        self.counters = counters
        self.request = data.StructLayout(
            {
                "op": Op,
                "hash": hash_bits,
                "count": count_bits,
                "index": token_bits,
                "cluster": cluster_bits + 1,  # 2**cluster_bits: no cluster number remains
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
                "i": In(stream.Signature(self.request)),
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
            counters=bool(config.dre_counters),
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
    def memory_bits(self) -> dict[str, int]:
        """Size of each memory in bits."""
        return {
            "codes": self.max_step_tokens * self._code.size,
            "hashes": self.max_candidates * self.hash_bits,
            "counts": self.max_candidates * self.count_bits,
            "first_tokens": self.max_candidates * self._age_bits,
        }

    @property
    def _bank_bits(self) -> int:
        """Number of low bits of a cluster number, which select the memory bank and its accumulator."""
        return self.accumulators.bit_length() - 1

    @property
    def _row_bits(self) -> int:
        """Width of a row number of the on-chip memories."""
        return (self.max_candidates // self.accumulators - 1).bit_length()

    @property
    def _id_bits(self) -> int:
        """Width of a cluster number, with one extra bit so that `Table.end` can be 2**cluster_bits."""
        return self.cluster_bits + 1

    @property
    def _age_bits(self) -> int:
        """Stored low bits of the number of a first token.

        The age of the oldest cluster is at most `max_window_tokens` + 1: first tokens are different, so at most one
        cluster leaves the window per token.
        """
        return (self.max_window_tokens + 1).bit_length()

    @property
    def _code(self) -> data.StructLayout:
        """Layout of a token that waits in the FIFO."""
        return data.StructLayout({"hash": self.hash_bits, "last": 1})

    @property
    def _candidate(self) -> data.StructLayout:
        """Layout of a cluster in the search. `key` is the sort key: the smallest wins."""
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
        # with two slices or more there is a cycle without a read between two results, see `_write_memories`
        memory = BufferedRam if self.slices > 1 else Ram
        m.submodules.hashes = hashes = memory(depth=rows, width=self.hash_bits, words=banks)
        m.submodules.counts = counts = memory(depth=rows, width=self.count_bits, words=banks)
        m.submodules.first_tokens = first_tokens = memory(depth=self.max_candidates, width=self._age_bits)
        table = Table(
            first=Signal(self._id_bits, name="first"),
            end=Signal(self._id_bits, name="end"),
            oldest_token=Signal(self._age_bits, name="oldest_token"),
            last_count=Signal(self.count_bits, name="last_count"),
            next_token=Signal(self.token_bits, name="next_token"),
        )
        search = Search(
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
        self._compare(m, table, search, hashes, counts)
        result = self._decide(m, table, search)
        event = self._accept(m, table, search, result, codes)
        self._write_memories(m, table, search, result, event, hashes, counts, first_tokens)
        self._update_table(m, table, search, result, event, first_tokens)
        self._advance(m, search, event, codes, hashes, counts)
        self._send(m, search, result)
        self._count_events(m, table, search, result, event)
        return m

    def _compare(self, m: Module, table: Table, search: Search, hashes: Ram, counts: Ram) -> None:
        """Compare one slice of the hash code with one row of clusters, and find the nearest candidate."""
        # a candidate matches if its distance is below `limit`, which is at most hash_bits + 2
        limit = Signal(range(self.hash_bits + 3))
        threshold = self.cfg_hamming_threshold
        m.d.comb += limit.eq(Mux(self.cfg_hamming_inclusive, threshold + 1, threshold))
        code_slice = Signal(self.lanes)
        m.d.comb += [
            search.last_slice.eq(search.slice == self.slices - 1),
            code_slice.eq(self._slice(search.code.hash, search.slice)),
        ]
        candidates = []
        for bank in range(self.accumulators):
            candidate = Signal(self._candidate, name=f"candidate{bank}")
            leader = Signal(self.lanes, name=f"leader{bank}")
            partial = Signal(range(self.hash_bits + 1), name=f"partial{bank}")  # distance in the slices before this one
            distance = Signal(range(self.hash_bits + 1), name=f"distance{bank}")
            cluster = Signal(self._id_bits, name=f"cluster{bank}")
            in_table = (cluster >= table.first) & (cluster < table.end)
            m.d.comb += [
                leader.eq(self._slice(hashes.r_data[bank], search.slice)),
                distance.eq(Mux(search.slice == 0, 0, partial) + count_ones(m, leader ^ code_slice)),
                cluster.eq((search.row << self._bank_bits) | bank),
                candidate.cluster.eq(cluster),
                candidate.count.eq(counts.r_data[bank]),
                candidate.valid.eq(in_table & (candidate.count < self.cfg_max_cluster_tokens)),
                candidate.match.eq(candidate.valid & (distance < limit)),
                candidate.distance.eq(distance),
                # with first_match all matches have the same key, so that the lowest number wins
                candidate.key.eq(Mux(self.cfg_first_match & candidate.match, 0, distance)),
            ]
            with m.If(~search.stalled):
                m.d.sync += partial.eq(distance)
            candidates.append(candidate)

        def nearer(a: data.View, b: data.View) -> data.View:
            """Return the candidate with the smaller key. If the keys are equal: `a`, which has the lower number."""
            b_wins = b.valid & (~a.valid | (b.key < a.key))
            return data.View(self._candidate, Mux(b_wins, b.as_value(), a.as_value()))

        m.d.comb += search.best.eq(nearer(search.best_before, reduce_tree(nearer, candidates)))

    def _decide(self, m: Module, table: Table, search: Search) -> Result:
        """Compute the result of the search. It is valid in the last slice of the last row."""
        result = Result(
            full=Signal(name="full"),
            opened=Signal(name="opened"),
            overflow=Signal(name="overflow"),
            target=Signal(self._id_bits, name="target"),
            new_count=Signal(self.count_bits, name="new_count"),
        )
        best, end = search.best, table.end
        last_row = (table.first == end) | (search.row == ((end - 1)[: self._id_bits] >> self._bank_bits))
        decide = Signal()
        m.d.comb += [
            decide.eq(search.active & search.last_slice & last_row),
            search.stalled.eq(decide & self.o.valid & ~self.o.ready),
            search.done.eq(decide & ~search.stalled),
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

    def _accept(self, m: Module, table: Table, search: Search, result: Result, codes: SyncFIFOBuffered) -> InputEvents:
        """Accept input beats. The search of a token starts when the previous search ends.

        At most one cluster leaves the window per token, because each token opens at most one cluster. BEGIN and LOAD
        wait until no token is in the unit.
        """
        event = InputEvents(
            accept=Signal(name="accept"),
            left_window=Signal(name="left_window"),
            next_first=Signal(self._id_bits, name="next_first"),
            begin=Signal(name="begin"),
            load=Signal(name="load"),
            load_fault=Signal(name="load_fault"),
        )
        request = self.i.payload
        age = Signal(self._age_bits)
        idle = Signal()
        has_window, not_empty = self.cfg_window_tokens != 0, table.first != table.end
        m.d.comb += [
            event.accept.eq(codes.r_rdy & (~search.active | search.done)),
            codes.r_en.eq(event.accept),
            age.eq(table.next_token - table.oldest_token),
            event.left_window.eq(event.accept & not_empty & has_window & (age > self.cfg_window_tokens)),
            event.next_first.eq(table.first + event.left_window),
            codes.w_data.eq(Cat(request.hash, request.last)),
            codes.w_en.eq(self.i.valid & (request.op == Op.TOKEN)),
            idle.eq(~search.active & ~codes.r_rdy & (codes.level == 0)),
            self.i.ready.eq(Mux(request.op == Op.TOKEN, codes.w_rdy, idle)),
            event.begin.eq(self.i.valid & idle & (request.op == Op.BEGIN)),
            event.load_fault.eq(self.i.valid & idle & (request.op == Op.LOAD) & result.full),
            event.load.eq(self.i.valid & idle & (request.op == Op.LOAD) & ~result.full),
        ]
        return event

    def _write_memories(
        self,
        m: Module,
        table: Table,
        search: Search,
        result: Result,
        event: InputEvents,
        hashes: Ram,
        counts: Ram,
        first_tokens: Ram,
    ) -> None:
        """Write the cluster that a result or a LOAD changes.

        The search of the next token may read the same row in this cycle: the memory then returns the new words. A
        search begins with a read, and its result is written `slices` cycles later or more. The second cycle of a search
        reads nothing, so that a write can leave the register of a `BufferedRam` before the next result.
        """
        request, bank_bits, row_bits = self.i.payload, self._bank_bits, self._row_bits
        appended = Signal()
        first_token = Signal(self.token_bits)
        write_id = Signal(self._id_bits)
        m.d.comb += [
            appended.eq(event.load | (search.done & result.opened)),
            first_token.eq(Mux(event.load, request.index, search.token)),
            write_id.eq(Mux(event.load, table.end, result.target)),
        ]
        for memory, enable in ((hashes, appended), (counts, event.load | search.done)):
            m.d.comb += [
                memory.w_addr.eq(write_id[bank_bits : bank_bits + row_bits]),
                memory.w_mask.eq(enable << write_id[:bank_bits]),
            ]
        for bank in range(self.accumulators):
            m.d.comb += [
                hashes.w_data[bank].eq(Mux(event.load, request.hash, search.code.hash)),
                counts.w_data[bank].eq(Mux(event.load, request.count, result.new_count)),
            ]
        m.d.comb += [
            first_tokens.w_addr.eq(table.end[: len(first_tokens.w_addr)]),
            first_tokens.w_mask.eq(appended),
            first_tokens.w_data[0].eq(first_token[: self._age_bits]),
        ]
        with m.If(appended):
            m.d.sync += table.end.eq(table.end + 1)
        with m.If(appended & (event.next_first == table.end)):
            m.d.sync += table.oldest_token.eq(first_token[: self._age_bits])
        with m.Elif(event.left_window):
            m.d.sync += table.oldest_token.eq(first_tokens.r_data[0])

    def _update_table(
        self, m: Module, table: Table, search: Search, result: Result, event: InputEvents, first_tokens: Ram
    ) -> None:
        """Update the registers of the table.

        `first_tokens.r_data` is the first token of cluster `first` + 1, which becomes the oldest one when cluster
        `first` leaves the window. It is read when a token is accepted, when a cluster opens, and after LOADs.
        """
        request, loaded = self.i.payload, Signal()  # clusters were loaded and first tokens were not read since then
        m.d.comb += [
            first_tokens.r_addr.eq((event.next_first + 1)[: len(first_tokens.r_addr)]),
            first_tokens.r_en.eq(event.accept | (search.done & result.opened) | (loaded & ~event.load)),
        ]
        m.d.sync += [table.first.eq(event.next_first), loaded.eq(event.load)]
        with m.If(event.load):
            m.d.sync += table.last_count.eq(request.count)
        with m.Elif(search.done & (result.opened | (result.target == table.end - 1))):
            m.d.sync += table.last_count.eq(result.new_count)
        with m.If(event.accept):
            m.d.sync += [table.next_token.eq(table.next_token + 1), search.token.eq(table.next_token)]
        with m.If(event.begin):
            m.d.sync += [
                table.next_token.eq(request.index),
                table.first.eq(request.cluster),
                table.end.eq(request.cluster),
                table.last_count.eq(request.count),
            ]

    def _advance(
        self, m: Module, search: Search, event: InputEvents, codes: SyncFIFOBuffered, hashes: Ram, counts: Ram
    ) -> None:
        """Advance the search. The read address is the row of the next cycle: the memories have one cycle of latency."""
        waiting_token = data.View(self._code, codes.r_data)
        fetch = Signal()
        next_row = Signal.like(search.row)
        m.d.comb += next_row.eq(search.row)
        with m.If(event.accept):
            m.d.comb += [next_row.eq(event.next_first >> self._bank_bits), fetch.eq(1)]
            m.d.sync += [
                search.active.eq(1),
                search.slice.eq(0),
                search.code.hash.eq(waiting_token.hash),
                search.code.last.eq(waiting_token.last),
                search.best_before.eq(0),
            ]
        with m.Elif(search.done):
            m.d.sync += search.active.eq(0)
        with m.Elif(search.active & ~search.stalled):
            with m.If(search.last_slice):
                m.d.comb += [next_row.eq(search.row + 1), fetch.eq(1)]
                m.d.sync += [search.slice.eq(0), search.best_before.eq(search.best)]
            with m.Else():
                m.d.sync += search.slice.eq(search.slice + 1)
        m.d.sync += search.row.eq(next_row)
        for memory in (hashes, counts):
            m.d.comb += [memory.r_addr.eq(next_row[: self._row_bits]), memory.r_en.eq(fetch)]

    def _send(self, m: Module, search: Search, result: Result) -> None:
        """Write the result into the output register."""
        best, beat = search.best, self.o.payload
        with m.If(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        with m.If(search.done):
            m.d.sync += [
                self.o.valid.eq(1),
                beat.token.eq(search.token),
                beat.cluster.eq(result.target[: self.cluster_bits]),
                beat.hash.eq(search.code.hash),
                beat.count.eq(result.new_count),
                beat.distance.eq(Mux(result.opened | ~best.valid, 0, best.distance)),
                beat.opened.eq(result.opened),
                beat.overflow.eq(result.overflow),
                beat.last.eq(search.code.last),
            ]

    def _count_events(self, m: Module, table: Table, search: Search, result: Result, event: InputEvents) -> None:
        """Drive the counters and the sticky bits."""
        events = {
            Stat.TOKENS: search.done,
            Stat.OPENED: search.done & result.opened,
            Stat.BUSY: search.active & ~search.stalled,
            Stat.BLOCKED: search.stalled,
            Stat.STARVED: ~search.active,
            Stat.COMPARED: Mux(search.done, (table.end - table.first)[: self._id_bits], 0),
        }
        count(m, self, events, enable=self.counters)
        with m.If(search.done & result.overflow):
            m.d.sync += self.stat_overflow.eq(1)
        with m.If(event.load_fault):
            m.d.sync += self.stat_fault.eq(1)
        with m.If(self.stat_clear):
            m.d.sync += [self.stat_overflow.eq(0), self.stat_fault.eq(0)]

    def _slice(self, word: Value, index: Value) -> Value:
        """Slice number `index` of `word`: `lanes` bits. The missing bits of the last slice are zero."""
        value = Value.cast(word)
        slices = [value[s * self.lanes : (s + 1) * self.lanes] for s in range(self.slices)]
        result = slices[-1]
        for s in reversed(range(self.slices - 1)):
            result = Mux(index == s, slices[s], result)
        return result
