"""HCU: hash clustering unit (V-Rex, section V-B, Fig. 11)."""

import enum as python_enum

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
    """What one input beat asks for."""

    TOKEN = 0  # assign the token whose code is `hash` to a cluster
    BEGIN = 1  # start another table: next token is `index`, next cluster is `cluster`, no candidates
    LOAD = 2  # append a candidate saved earlier: `hash`, `count`, `index` = its first token


class Stat(python_enum.StrEnum):
    """Counters, 32 bits each, cleared by `stat_clear`."""

    TOKENS = "tokens"  # tokens assigned
    OPENED = "opened"  # clusters opened
    COMPARED = "compared"  # (token, candidate) pairs
    BUSY = "busy"  # cycles in which a scan moved on
    BLOCKED = "blocked"  # cycles in which a scan waited for `o`
    STARVED = "starved"  # cycles without a token to scan


class HCU(wiring.Component):
    """Assigns each token's hash code to the nearest cluster leader, or opens a new cluster.

    Clusters are numbered in the order in which they open. Candidates are the clusters whose first token lies inside
    the recent window and whose count is below `cfg_max_cluster_tokens`; a cluster that an earlier token of the same
    step
    opened is one. The candidate with the smallest Hamming distance D wins, the lowest number on ties; it takes the
    token when D < `cfg_hamming_threshold` (<= when `cfg_hamming_inclusive`). Otherwise the token opens the next
    cluster, with its
    own code as the leader's code, which never changes.

    The table on chip is a ring of the last `clusters` clusters. When it is full (that many clusters inside the
    window, or no cluster number left), a token that matches nothing joins its nearest candidate all the same, or the
    newest cluster when there is no candidate; the beat carries `overflow`, and `stat_overflow` stays set.

    Every output beat is also the update of the cluster table in memory: `opened` says append `{hash, count, token}`,
    else entry `cluster` now has `count` tokens, `token` the last.

    Timing
    ------
    `slices = ceil(hash_bits / lanes)`. A token whose candidates lie in `rows` rows of `accumulators` clusters takes
    exactly `slices * max(1, rows)` cycles, and the next one follows without a gap: with one accumulator that is
    ceil(hash_bits / lanes) cycles per (token, candidate). A saturated cluster is passed over at the same cost. The
    result appears on `o` one cycle after its scan ends. `latency` is data dependent. BEGIN and LOAD take one cycle
    each and wait until all tokens before them are done. `o` not ready stops the scan only when a second result is
    due. `i.ready` depends on `i.payload.op`; there is no combinational path from `o` to `i`.

    Numerics: integers only; the result does not depend on the order of the search.

    Parameters
    ----------
    hash_bits, lanes, accumulators : bits per code, bits that one accumulator compares per cycle, accumulators
    clusters, tokens : clusters on chip, codes that wait on chip
    max_window_tokens : largest value of `cfg_window_tokens`
    token_bits, cluster_bits, count_bits : widths of indices and counts

    Members
    -------
    i : stream of `command` ; o : stream of `assignment`
    cfg_hamming_threshold, cfg_hamming_inclusive : Hamming threshold and whether it is reached (<=) or not (<)
    cfg_first_match : the lowest numbered match wins instead of the nearest
    cfg_window_tokens : candidates opened at most that many tokens ago; 0 means no limit
    cfg_max_cluster_tokens : a cluster with this many tokens takes no more
    stat_* : see `Stat`; stat_overflow : sticky; stat_fault : sticky, a LOAD met a full table and was dropped

    Raises
    ------
    ValueError
        For sizes that cannot be built.
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
        """Cycles that one accumulator needs for one code."""
        return -(-self.hash_bits // self.lanes)

    def token_cycles(self, first: int, end: int) -> int:
        """Cycles of one token whose candidates are clusters `first` to `end - 1`."""
        rows = (end - 1) // self.accumulators - first // self.accumulators + 1 if end > first else 0
        return self.slices * max(1, rows)

    @property
    def timing(self) -> dict[str, object]:
        """Latency and cycle formula, as written into the generated unit's JSON."""
        return {
            "latency": self.latency,
            "cycles_per_token": "slices * max(1, rows)",
            "slices": self.slices,
            "candidates_per_row": self.accumulators,
        }

    def elaborate(self, platform: object) -> Module:
        m = Module()
        ways, way_bits = self.accumulators, self.accumulators.bit_length() - 1
        rows = self.max_candidates // ways
        row_bits = (rows - 1).bit_length()
        id_bits = self.cluster_bits + 1

        # the step's codes wait here; BEGIN and LOAD pass only when nothing waits
        code_layout = data.StructLayout({"hash": self.hash_bits, "last": 1})
        m.submodules.codes = codes = SyncFIFOBuffered(width=code_layout.size, depth=self.max_step_tokens)
        command = self.i.payload
        waiting = data.View(code_layout, codes.r_data)
        m.d.comb += codes.w_data.eq(Cat(command.hash, command.last))

        m.submodules.hashes = hashes = Ram(depth=rows, width=self.hash_bits, words=ways)
        m.submodules.counts = counts = Ram(depth=rows, width=self.count_bits, words=ways)
        # a candidate's age never exceeds the window by more than one, so the low bits of its first token suffice
        born_bits = min(self.token_bits, (2 * self.max_window_tokens + 2).bit_length())
        m.submodules.births = births = Ram(depth=self.max_candidates, width=born_bits)

        # table state: candidates are clusters first .. end - 1
        first, end = Signal(id_bits), Signal(id_bits)
        head_born = Signal(born_bits)  # first token of cluster `first`
        newest_count = Signal(self.count_bits)  # tokens of cluster `end - 1`
        next_token = Signal(self.token_bits)

        # scan state: one row and slice per cycle
        scanning = Signal()
        row, slice_ = Signal(id_bits - way_bits), Signal(range(self.slices))
        code = Signal(code_layout)
        partial = [Signal(range(self.hash_bits + 1), name=f"partial{w}") for w in range(ways)]

        # distances of this row's clusters to the token, complete in the last slice
        code_slice = Signal(self.lanes)
        last_slice = Signal()
        m.d.comb += last_slice.eq(slice_ == self.slices - 1)
        limit = Signal(range(self.hash_bits + 2))  # matches have D < limit
        threshold = self.cfg_hamming_threshold
        m.d.comb += limit.eq(Mux(self.cfg_hamming_inclusive, threshold + 1, threshold))

        candidate = data.StructLayout(
            {
                "valid": 1,
                "match": 1,
                "key": range(self.hash_bits + 1),
                "distance": range(self.hash_bits + 1),
                "cluster": id_bits,
                "count": self.count_bits,
            }
        )
        m.d.comb += code_slice.eq(self._slice(code.hash, slice_))
        found = []
        for w in range(ways):
            this = Signal(candidate, name=f"candidate{w}")
            leader = Signal(self.lanes, name=f"leader{w}")
            distance = Signal(range(self.hash_bits + 1), name=f"distance{w}")
            cluster = Signal(id_bits, name=f"cluster{w}")
            m.d.comb += [
                leader.eq(self._slice(hashes.r_data[w], slice_)),
                distance.eq(Mux(slice_ == 0, 0, partial[w]) + count_ones(m, leader ^ code_slice)),
                cluster.eq((row << way_bits) | w),
                this.cluster.eq(cluster),
                this.count.eq(counts.r_data[w]),
                this.valid.eq((cluster >= first) & (cluster < end) & (this.count < self.cfg_max_cluster_tokens)),
                this.match.eq(this.valid & (distance < limit)),
                this.distance.eq(distance),
                this.key.eq(Mux(self.cfg_first_match & this.match, 0, distance)),
            ]
            found.append(this)
        best_so_far, best = Signal(candidate), Signal(candidate)

        def nearer(a: data.View, b: data.View) -> data.View:
            take_b = b.valid & (~a.valid | (b.key < a.key))
            return data.View(candidate, Mux(take_b, b.as_value(), a.as_value()))

        m.d.comb += best.eq(nearer(best_so_far, reduce_tree(nearer, found)))

        # decision in the last slice of the last row
        empty = Signal()
        decide, stalled, opened, overflow, full = Signal(), Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            empty.eq(first == end),
            decide.eq(scanning & last_slice & (empty | (row == ((end - 1)[:id_bits] >> way_bits)))),
            stalled.eq(decide & self.o.valid & ~self.o.ready),
            full.eq(((end - first)[:id_bits] == self.max_candidates) | (end == 1 << self.cluster_bits)),
            opened.eq(~best.match & ~full),
            overflow.eq(~best.match & full),
        ]
        target, new_count = Signal(id_bits), Signal(self.count_bits)
        with m.If(opened):
            m.d.comb += [target.eq(end), new_count.eq(1)]
        with m.Elif(best.valid):
            m.d.comb += [target.eq(best.cluster), new_count.eq(best.count + 1)]
        with m.Else():
            saturated = newest_count == self.cfg_max_cluster_tokens
            m.d.comb += [target.eq(end - 1), new_count.eq(Mux(saturated, newest_count, newest_count + 1))]
        done = Signal()
        m.d.comb += done.eq(decide & ~stalled)

        # the next token enters as the one before leaves; at most one cluster ages out per token
        accept, aged = Signal(), Signal()
        age = Signal(born_bits)
        token = Signal(self.token_bits)  # index of the token that would enter now
        m.d.comb += [
            token.eq(next_token),
            accept.eq(codes.r_rdy & (~scanning | done)),
            codes.r_en.eq(accept),
            age.eq(token - head_born),
            aged.eq(accept & ~empty & (self.cfg_window_tokens != 0) & (age > self.cfg_window_tokens)),
        ]
        first_after = Signal(id_bits)
        m.d.comb += first_after.eq(first + aged)

        # BEGIN and LOAD
        idle, begin, load, fault = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            idle.eq(~scanning & ~codes.r_rdy & (codes.level == 0)),
            codes.w_en.eq(self.i.valid & (command.op == Op.TOKEN)),
            self.i.ready.eq(Mux(command.op == Op.TOKEN, codes.w_rdy, idle)),
            begin.eq(self.i.valid & idle & (command.op == Op.BEGIN)),
            fault.eq(self.i.valid & idle & (command.op == Op.LOAD) & full),
            load.eq(self.i.valid & idle & (command.op == Op.LOAD) & ~full),
        ]

        # one write port serves decisions and loads
        fetch = Signal()
        appended = Signal()
        first_token = Signal(self.token_bits)
        scanned_token = Signal(self.token_bits)
        m.d.comb += [
            appended.eq(load | (done & opened)),
            first_token.eq(Mux(load, command.index, scanned_token)),
        ]
        write_id = Signal(id_bits)
        m.d.comb += write_id.eq(Mux(load, end, target))
        way = write_id[:way_bits]
        for memory, mask in ((hashes, appended), (counts, load | done)):
            m.d.comb += [
                memory.w_addr.eq(write_id[way_bits : way_bits + row_bits]),
                memory.w_mask.eq(mask << way),
                memory.r_en.eq(fetch),
            ]
        for w in range(ways):
            m.d.comb += [
                hashes.w_data[w].eq(Mux(load, command.hash, code.hash)),
                counts.w_data[w].eq(Mux(load, command.count, new_count)),
            ]
        m.d.comb += [
            births.w_addr.eq(end[: len(births.w_addr)]),
            births.w_mask.eq(appended),
            births.w_data[0].eq(first_token[:born_bits]),
            births.r_addr.eq((first_after + 1)[: len(births.r_addr)]),
            births.r_en.eq(1),
        ]

        # table registers
        m.d.sync += first.eq(first_after)
        with m.If(appended):
            m.d.sync += end.eq(end + 1)
        with m.If(load):
            m.d.sync += newest_count.eq(command.count)
        with m.Elif(done & (opened | (target == end - 1))):
            m.d.sync += newest_count.eq(new_count)
        with m.If(appended & (first_after == end)):
            m.d.sync += head_born.eq(first_token[:born_bits])
        with m.Elif(aged):
            m.d.sync += head_born.eq(births.r_data[0])
        with m.If(accept):
            m.d.sync += [next_token.eq(next_token + 1), scanned_token.eq(next_token)]
        with m.If(begin):
            m.d.sync += [next_token.eq(command.index), first.eq(command.cluster), end.eq(command.cluster)]

        # scan registers; the memories are addressed with the row of the next cycle
        next_row = Signal(id_bits - way_bits)
        m.d.comb += next_row.eq(row)
        with m.If(accept):
            m.d.comb += [next_row.eq(first_after >> way_bits), fetch.eq(1)]
            m.d.sync += [
                scanning.eq(1),
                slice_.eq(0),
                code.hash.eq(waiting.hash),
                code.last.eq(waiting.last),
                best_so_far.eq(0),
            ]
        with m.Elif(done):
            m.d.sync += scanning.eq(0)
        with m.Elif(scanning & ~stalled):
            with m.If(last_slice):
                m.d.comb += [next_row.eq(row + 1), fetch.eq(1)]
                m.d.sync += [slice_.eq(0), best_so_far.eq(best)]
            with m.Else():
                m.d.sync += slice_.eq(slice_ + 1)
        with m.If(~stalled):
            for w in range(ways):
                m.d.sync += partial[w].eq(found[w].distance)
        m.d.sync += row.eq(next_row)
        for memory in (hashes, counts):
            m.d.comb += memory.r_addr.eq(next_row[:row_bits])

        # output register
        with m.If(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        with m.If(done):
            m.d.sync += [
                self.o.valid.eq(1),
                self.o.payload.token.eq(scanned_token),
                self.o.payload.cluster.eq(target[: self.cluster_bits]),
                self.o.payload.hash.eq(code.hash),
                self.o.payload.count.eq(new_count),
                self.o.payload.distance.eq(Mux(opened | ~best.valid, 0, best.distance)),
                self.o.payload.opened.eq(opened),
                self.o.payload.overflow.eq(overflow),
                self.o.payload.last.eq(code.last),
            ]

        # counters
        events = {
            Stat.TOKENS: done,
            Stat.OPENED: done & opened,
            Stat.BUSY: scanning & ~stalled,
            Stat.BLOCKED: stalled,
            Stat.STARVED: ~scanning,
            Stat.COMPARED: Mux(done, (end - first)[:id_bits], 0),
        }
        count(m, self, events)
        with m.If(done & overflow):
            m.d.sync += self.stat_overflow.eq(1)
        with m.If(fault):
            m.d.sync += self.stat_fault.eq(1)
        with m.If(self.stat_clear):
            m.d.sync += [self.stat_overflow.eq(0), self.stat_fault.eq(0)]
        return m

    def _slice(self, word: Value, index: Value) -> Value:
        """Slice number `index` of `word`, `lanes` bits, zero beyond the top."""
        value = Value.cast(word)
        parts = [value[s * self.lanes : (s + 1) * self.lanes] for s in range(self.slices)]
        chosen = parts[-1]
        for s in reversed(range(self.slices - 1)):
            chosen = Mux(index == s, parts[s], chosen)
        return chosen
