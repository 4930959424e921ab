"""Specification of the HCU; the docstring of the class is the property."""

from amaranth import Module, Mux, Signal
from amaranth.hdl import Assert, Assume
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.dre.hcu import HCU, Op
from sim.formal.specifications.common import constant, stability


class HcuSpec(wiring.Component):
    """Every token joins the nearest candidate below the threshold, or opens the next cluster when none matches.

    The specification holds for an arbitrary cluster, the rival, while it is in the window and not full:
    - When the rival matches, no token joins a cluster at a larger distance, or one at the same distance with a higher
      number, opens a cluster, or overflows. With `cfg_first_match`, no token joins a cluster with a higher number.
    - A token that joins the rival reports the distance and the count of the rival.
    - A cluster opens exactly when nothing matches, the oldest table entry is free and a cluster number remains.
    - A token without a candidate that overflows joins the last cluster and reports its count.
    The rival is a cluster that a token opened or that a LOAD restored.
    Every token leaves once, in order, with its own code. All tokens before a BEGIN leave before tokens after it.

    Commands are TOKEN, BEGIN and LOAD, the reader pauses at arbitrary times, `cfg_*` are constant. Fields are
    arbitrary, except those of LOAD: a LOAD follows a BEGIN or a LOAD, the loaded first tokens ascend and are inside the
    window, and loaded counts, that of BEGIN included, are at most `cfg_max_cluster_tokens`.
    """

    def __init__(self, unit: HCU):
        self.unit = unit
        self.settings = [name for name in unit.signature.members if name.startswith("cfg_")]
        cover_names = (
            "joined",
            "opened",
            "overflow",
            "aged",
            "full",
            "first_match",
            "loaded",
            "loaded_aged",
            "restored",
        )
        super().__init__(
            {
                "offer": In(1),
                "begins": In(1),
                "loads": In(1),
                "word": In(unit.hash_bits),
                "index": In(unit.token_bits),
                "cluster": In(unit.cluster_bits + 1),
                "count": In(unit.count_bits),
                "last": In(1),
                "ready": In(1),
                "pick": In(1),
                "rival": In(unit.cluster_bits),
                **{name: unit.signature.members[name] for name in self.settings},
                **{f"cover_{name}": Out(1) for name in cover_names},
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.unit = unit = self.unit
        command, beat = unit.i.payload, unit.o.payload
        constant(m, self.rival, *(getattr(self, name) for name in self.settings))
        m.d.comb += [
            *(getattr(unit, name).eq(getattr(self, name)) for name in self.settings),
            unit.i.valid.eq(self.offer),
            command.op.eq(Mux(self.begins, Op.BEGIN, Mux(self.loads, Op.LOAD, Op.TOKEN))),
            command.hash.eq(self.word),
            command.index.eq(self.index),
            command.cluster.eq(self.cluster),
            command.count.eq(self.count),
            command.last.eq(self.last),
            unit.o.ready.eq(self.ready),
            Assume(stability(m, "command", unit.i)[1]),
            Assume(self.cfg_max_cluster_tokens != 0),
            Assume(self.cfg_window_tokens <= unit.max_window_tokens),
        ]
        accepted, waits, new, begin, load = Signal(), Signal(), Signal(), Signal(), Signal()
        m.d.sync += waits.eq(unit.o.valid & ~unit.o.ready)
        m.d.comb += [
            accepted.eq(unit.i.valid & unit.i.ready),
            new.eq(unit.o.valid & ~waits),
            begin.eq(accepted & self.begins),
            load.eq(accepted & ~self.begins & self.loads),
        ]

        # order of the tokens: index of the next result and of the next input, and the code of one arbitrary token
        next_result, next_input = Signal(unit.token_bits), Signal(unit.token_bits)
        tracked, tracked_token, word, last = Signal(), Signal(unit.token_bits), Signal(unit.hash_bits), Signal()
        m.d.comb += [
            Assert(~new | (beat.token == next_result)),
            Assert(~(begin | load) | ((next_result + new)[: unit.token_bits] == next_input)),
        ]
        m.d.sync += [next_result.eq(next_result + new), next_input.eq(next_input + (accepted & ~load))]
        with m.If(new & tracked & (beat.token == tracked_token)):
            m.d.comb += Assert((beat.hash == word) & (beat.last == last))
            m.d.sync += tracked.eq(0)
        with m.If(accepted & ~self.begins & ~self.loads & self.pick & ~tracked):
            m.d.sync += [tracked.eq(1), tracked_token.eq(next_input), word.eq(self.word), last.eq(self.last)]

        # state of the rival, derived from the results
        known, leader, first_token = Signal(), Signal(unit.hash_bits), Signal(unit.token_bits)
        count, end = Signal(unit.count_bits), Signal(unit.cluster_bits + 1)
        distance, limit = Signal(range(unit.hash_bits + 1)), Signal(range(unit.hash_bits + 2))
        in_window, joinable, matches, is_rival, joins = Signal(), Signal(), Signal(), Signal(), Signal()
        oldest, is_better, joins_last = Signal(), Signal(), Signal()
        restored = Signal()  # the rival was loaded
        m.d.comb += [
            distance.eq(sum(leader ^ beat.hash)),
            limit.eq(self.cfg_hamming_threshold + self.cfg_hamming_inclusive),
            in_window.eq(
                known
                & (
                    (self.cfg_window_tokens == 0)
                    | ((beat.token - first_token)[: unit.token_bits] <= self.cfg_window_tokens)
                )
            ),
            joinable.eq(in_window & (count < self.cfg_max_cluster_tokens)),
            matches.eq(joinable & (distance < limit)),
            is_rival.eq(beat.cluster == self.rival),
            joins.eq(~beat.opened & ~beat.overflow),
            oldest.eq(self.rival + unit.max_candidates == end),
            joins_last.eq(beat.overflow & is_rival & ~joinable),
            is_better.eq((distance < beat.distance) | ((distance == beat.distance) & (self.rival < beat.cluster))),
        ]
        with m.If(new & beat.opened):
            m.d.comb += [
                Assert(~beat.overflow & ~matches),
                Assert((beat.cluster == end) & (beat.count == 1) & (beat.distance == 0)),
                Assert(~oldest | ~in_window),
            ]
        with m.If(new & joins):
            m.d.comb += [
                Assert(beat.cluster < end),
                Assert(~is_rival | (matches & (beat.distance == distance) & (beat.count == count + 1))),
                Assert(Mux(self.cfg_first_match, ~matches | (self.rival >= beat.cluster), ~joinable | ~is_better)),
            ]
        with m.If(new & beat.overflow):
            m.d.comb += [
                Assert(~matches & (beat.cluster < end)),
                Assert(~oldest | in_window | (end == 1 << unit.cluster_bits)),
                Assert(~joinable | ~is_better | (beat.distance == 0)),
                Assert(~(is_rival & joinable) | ((beat.distance == distance) & (beat.count == count + 1))),
                Assert(~joins_last | (beat.cluster == end - 1)),
                Assert(~joins_last | (beat.count == Mux(count == self.cfg_max_cluster_tokens, count, count + 1))),
            ]
        m.d.comb += [
            self.cover_joined.eq(new & joins & is_rival & (count == 2)),
            self.cover_opened.eq(new & beat.opened & (end == 2)),
            self.cover_overflow.eq(new & beat.overflow & ~is_rival & joinable),
            self.cover_aged.eq(new & known & ~in_window),
            self.cover_full.eq(new & in_window & ~joinable & (distance == 0)),
            self.cover_first_match.eq(new & joins & joinable & is_better),
            self.cover_loaded.eq(new & joins & is_rival & restored),
            self.cover_loaded_aged.eq(new & known & restored & ~in_window),
            self.cover_restored.eq(new & joins_last & ~known),
        ]
        with m.If(new):
            m.d.sync += [end.eq(end + beat.opened), known.eq(in_window)]
            with m.If(beat.opened & is_rival):
                m.d.sync += [known.eq(1), leader.eq(beat.hash), first_token.eq(beat.token), count.eq(1)]
                m.d.sync += restored.eq(0)
            with m.Elif(is_rival):
                m.d.sync += count.eq(beat.count)
        with m.If(begin):
            m.d.sync += [next_result.eq(self.index), next_input.eq(self.index), end.eq(self.cluster), known.eq(0)]
            with m.If(self.rival + 1 == self.cluster):
                m.d.sync += count.eq(self.count)
        with m.If(self._load(m, begin, load, accepted, next_input, end)):
            m.d.sync += end.eq(end + 1)
            with m.If(self.rival == end):
                m.d.sync += [known.eq(1), leader.eq(self.word), first_token.eq(self.index), count.eq(self.count)]
                m.d.sync += restored.eq(1)
        return m

    def _load(
        self, m: Module, begin: Signal, load: Signal, accepted: Signal, next_input: Signal, end: Signal
    ) -> Signal:
        """Return a signal: a LOAD appends a cluster. Assume the fields of BEGIN and LOAD, and assert the fault."""
        unit = self.unit
        appended, dropped, fault, allowed = Signal(), Signal(), Signal(), Signal()
        start, age, limit = Signal.like(self.cluster), Signal(unit.token_bits), Signal(unit.token_bits + 1)
        offered = self.offer & ~self.begins & self.loads
        m.d.comb += [
            age.eq(next_input - self.index),
            dropped.eq(load & ((end - start == unit.max_candidates) | (end == 1 << unit.cluster_bits))),
            appended.eq(load & ~dropped),
            Assume(~(self.offer & self.begins) | (self.cluster <= 1 << unit.cluster_bits)),
            Assume(self.count <= self.cfg_max_cluster_tokens),
            Assume(~offered | (allowed & (age != 0) & (age < limit))),
            Assume(~offered | (self.cfg_window_tokens == 0) | (age <= self.cfg_window_tokens)),
            Assert(unit.stat_fault == fault),
        ]
        with m.If(accepted):
            m.d.sync += [allowed.eq(begin | load), limit.eq(Mux(begin, 1 << unit.token_bits, age))]
        with m.If(begin):
            m.d.sync += start.eq(self.cluster)
        m.d.sync += fault.eq(fault | dropped)
        return appended


def small() -> HcuSpec:
    """An HCU with two candidates and hash codes of three bits in two slices."""
    return HcuSpec(
        HCU(
            hash_bits=3,
            lanes=2,
            accumulators=1,
            max_candidates=2,
            max_step_tokens=1,
            max_window_tokens=2,
            token_bits=3,
            cluster_bits=2,
            count_bits=2,
        )
    )
