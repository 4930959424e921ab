"""Specification of the HCU; its docstring is the property."""

from amaranth import Module, Mux, Signal
from amaranth.hdl import Assert, Assume
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.dre.hcu import HCU, Op
from sim.formal.specifications.common import constant, kept


class HcuSpec(wiring.Component):
    """Every token joins the nearest candidate below the threshold, or opens the next cluster when there is none.

    For any cluster, the rival, unknown to the unit: while it is in the window and not full,
    - no token joins one that is farther, or as near and numbered higher (in the order of numbers with
      `cfg_first_match`), or opens a cluster or overflows although the rival matches;
    - a token that joins the rival reports its distance and its count;
    - a cluster opens exactly when nothing matches and there is room: the table's oldest place is free, a number left.
    Tokens leave in the order in which they came, each once, with their own codes, and none is left behind a BEGIN.

    Commands are TOKEN and BEGIN with any fields, the reader pauses as it likes, `cfg_*` are constant.
    """

    def __init__(self, unit: HCU):
        self.unit = unit
        self.settings = [name for name in unit.signature.members if name.startswith("cfg_")]
        happens = ("joined", "opened", "overflow", "aged", "full", "first_match")
        super().__init__(
            {
                "offer": In(1),
                "begins": In(1),
                "word": In(unit.hash_bits),
                "index": In(unit.token_bits),
                "cluster": In(unit.cluster_bits),
                "last": In(1),
                "ready": In(1),
                "pick": In(1),
                "rival": In(unit.cluster_bits),
                **{name: unit.signature.members[name] for name in self.settings},
                **{f"cover_{name}": Out(1) for name in happens},
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
            command.op.eq(Mux(self.begins, Op.BEGIN, Op.TOKEN)),
            command.hash.eq(self.word),
            command.index.eq(self.index),
            command.cluster.eq(self.cluster),
            command.last.eq(self.last),
            unit.o.ready.eq(self.ready),
            Assume(kept(m, "command", unit.i)[1]),
            Assume(self.cfg_max_cluster_tokens != 0),
        ]
        taken, waits, new, begin = Signal(), Signal(), Signal(), Signal()
        m.d.sync += waits.eq(unit.o.valid & ~unit.o.ready)
        m.d.comb += [
            taken.eq(unit.i.valid & unit.i.ready),
            new.eq(unit.o.valid & ~waits),
            begin.eq(taken & self.begins),
        ]

        # order of the tokens: the index of the next result and of the next code, and one code of any token
        out, entering = Signal(unit.token_bits), Signal(unit.token_bits)
        followed, place, word, last = Signal(), Signal(unit.token_bits), Signal(unit.hash_bits), Signal()
        m.d.comb += [
            Assert(~new | (beat.token == out)),
            Assert(~begin | ((out + new)[: unit.token_bits] == entering)),
        ]
        m.d.sync += [out.eq(out + new), entering.eq(entering + taken)]
        with m.If(new & followed & (beat.token == place)):
            m.d.comb += Assert((beat.hash == word) & (beat.last == last))
            m.d.sync += followed.eq(0)
        with m.If(taken & ~self.begins & self.pick & ~followed):
            m.d.sync += [followed.eq(1), place.eq(entering), word.eq(self.word), last.eq(self.last)]

        # the rival, as the results make it
        known, leader, first_token = Signal(), Signal(unit.hash_bits), Signal(unit.token_bits)
        count, end = Signal(unit.count_bits), Signal(unit.cluster_bits + 1)
        distance, limit = Signal(range(unit.hash_bits + 1)), Signal(range(unit.hash_bits + 2))
        stands, runs, matches, here, joins = Signal(), Signal(), Signal(), Signal(), Signal()
        oldest, ahead = Signal(), Signal()
        m.d.comb += [
            distance.eq(sum(leader ^ beat.hash)),
            limit.eq(self.cfg_hamming_threshold + self.cfg_hamming_inclusive),
            stands.eq(
                known
                & (
                    (self.cfg_window_tokens == 0)
                    | ((beat.token - first_token)[: unit.token_bits] <= self.cfg_window_tokens)
                )
            ),
            runs.eq(stands & (count < self.cfg_max_cluster_tokens)),
            matches.eq(runs & (distance < limit)),
            here.eq(beat.cluster == self.rival),
            joins.eq(~beat.opened & ~beat.overflow),
            oldest.eq(self.rival + unit.max_candidates == end),
            ahead.eq((distance < beat.distance) | ((distance == beat.distance) & (self.rival < beat.cluster))),
        ]
        with m.If(new & beat.opened):
            m.d.comb += [
                Assert(~beat.overflow & ~matches),
                Assert((beat.cluster == end) & (beat.count == 1) & (beat.distance == 0)),
                Assert(~oldest | ~stands),
            ]
        with m.If(new & joins):
            m.d.comb += [
                Assert(beat.cluster < end),
                Assert(~here | (matches & (beat.distance == distance) & (beat.count == count + 1))),
                Assert(Mux(self.cfg_first_match, ~matches | (self.rival >= beat.cluster), ~runs | ~ahead)),
            ]
        with m.If(new & beat.overflow):
            m.d.comb += [
                Assert(~matches & (beat.cluster < end)),
                Assert(~oldest | stands | (end == 1 << unit.cluster_bits)),
                Assert(~runs | ~ahead | (beat.distance == 0)),
                Assert(~(here & runs) | ((beat.distance == distance) & (beat.count == count + 1))),
                Assert(~(here & ~runs) | (beat.cluster == end - 1)),
            ]
        m.d.comb += [
            self.cover_joined.eq(new & joins & here & (count == 2)),
            self.cover_opened.eq(new & beat.opened & (end == 2)),
            self.cover_overflow.eq(new & beat.overflow & ~here & runs),
            self.cover_aged.eq(new & known & ~stands),
            self.cover_full.eq(new & stands & ~runs & (distance == 0)),
            self.cover_first_match.eq(new & joins & runs & ahead),
        ]
        with m.If(new):
            m.d.sync += [end.eq(end + beat.opened), known.eq(stands)]
            with m.If(beat.opened & here):
                m.d.sync += [known.eq(1), leader.eq(beat.hash), first_token.eq(beat.token), count.eq(1)]
            with m.Elif(here):
                m.d.sync += count.eq(beat.count)
        with m.If(begin):
            m.d.sync += [out.eq(self.index), entering.eq(self.index), end.eq(self.cluster), known.eq(0)]
        return m


def small() -> HcuSpec:
    """Two clusters on chip, codes of three bits in two slices."""
    widths = {"token_bits": 3, "cluster_bits": 2, "count_bits": 2}
    return HcuSpec(
        HCU(hash_bits=3, lanes=2, accumulators=1, max_candidates=2, max_step_tokens=1, max_window_tokens=2, **widths)
    )
