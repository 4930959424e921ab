"""The part of the WTU that its two design points share: rows in, choices out, reads and sums in between."""

from abc import ABC, abstractmethod

from amaranth import Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.arith.adders import Row, add_rows
from hw.dre.wtu.command import KEY_BITS, TARGET_BITS, SelectionMode, WtuSizes
from hw.dre.wtu.decision import Decision
from hw.dre.wtu.weights import Weights


class Selector(wiring.Component, ABC):
    """Signature of a design point.

    Timing: `cycles` gives those from taking a row to being ready for the next one, exact while `o` does not stall.

    Members
    -------
    i : stream of `WtuSizes.row` ; o : stream of `WtuSizes.choice`
    read_en, read_at, read_beat : reads a beat of the row: its place in the ring, its number in the row
    keys, counts : that beat, one cycle later
    mode, refine, target : as the unit's `cfg_*`
    busy, blocked : a row is at work; a choice waits for the one before to be taken
    """

    latency = None
    formula = ""  # `cycles` in words

    def __init__(self, sizes: WtuSizes):
        self.sizes = sizes
        super().__init__(
            {
                "i": In(stream.Signature(sizes.row)),
                "o": Out(stream.Signature(sizes.choice)),
                "read_en": Out(1),
                "read_at": Out(range(sizes.beats)),
                "read_beat": Out(range(sizes.beats)),
                "keys": In(data.ArrayLayout(KEY_BITS, sizes.lanes)),
                "counts": In(data.ArrayLayout(sizes.count_bits, sizes.lanes)),
                "mode": In(SelectionMode),
                "refine": In(range(sizes.levels)),
                "target": In(TARGET_BITS),
                "busy": Out(1),
                "blocked": Out(1),
            }
        )

    @staticmethod
    def memory_bits(sizes: WtuSizes) -> dict[str, int]:
        """Storage of the point's own, in bits, by memory."""
        return {}

    @staticmethod
    def reset_cycles(sizes: WtuSizes) -> int:
        """Cycles after a reset before it takes a row."""
        return 0

    @staticmethod
    @abstractmethod
    def cycles(sizes: WtuSizes, beats: int, passes: int, levels: int) -> int:
        """Cycles of a row of `beats` beats in which `passes` buckets are examined in `levels` levels."""


class Flow:
    """Signals that both points use, and the submodules around them.

    A beat that is read in one cycle (`Selector.read_en`) has its keys in the next (`loaded`), weights in the one
    after that (`weighted`), and is added to the sum in the third (`summed`).

    last : the last beat of the row is being read
    loaded, weighted, summed, loaded_last, weighted_last, summed_last : the pipeline
    used : lanes that hold a cluster of the beat loaded
    use : lanes that weigh something; the point drives it
    addends : one per lane, added together in the cycle after; the point drives them
    """

    def __init__(self, m: Module, point: Selector):
        sizes, row = point.sizes, point.i.payload
        self.row = row
        self.decision = decision = Decision(sizes)
        self.weights = weights = Weights(sizes)
        m.submodules.decision, m.submodules.weights = decision, weights

        self.last = Signal()
        self.loaded, self.weighted, self.summed = Signal(), Signal(), Signal()
        self.loaded_last, self.weighted_last, self.summed_last = Signal(), Signal(), Signal()
        m.d.comb += [
            self.last.eq(point.read_beat + 1 == row.beats),
            point.read_at.eq((row.start + point.read_beat)[: len(point.read_at)]),
        ]
        with m.If(point.read_en):
            m.d.sync += point.read_beat.eq(Mux(self.last, 0, point.read_beat + 1))

        self.used = Signal(sizes.lanes)
        m.d.comb += [
            weights.keys.eq(point.keys),
            weights.counts.eq(point.counts),
            weights.high.eq(row.high),
            weights.mode.eq(point.mode),
            *(self.used[w].eq(~self.loaded_last | (w < row.tail)) for w in range(sizes.lanes)),
        ]

        self.addends = [Signal(sizes.sum_bits, name=f"addend{w}") for w in range(sizes.lanes)]
        m.d.sync += decision.amount.eq(add_rows(m, [Row(addend) for addend in self.addends], sizes.sum_bits))
        m.d.comb += [
            decision.row_low.eq(row.low),
            decision.row_high.eq(row.high),
            decision.mode.eq(point.mode),
            decision.refine.eq(point.refine),
            decision.target.eq(point.target),
        ]

        # the choice leaves through a register, so that the next row begins while it is being reported
        choice = point.o.payload
        self.finish, self.finished = Signal(), Signal()
        m.d.comb += [
            self.finished.eq(self.finish & (~point.o.valid | point.o.ready)),
            point.blocked.eq(self.finish & ~self.finished),
            point.i.ready.eq(self.finished),
        ]
        with m.If(point.o.ready):
            m.d.sync += point.o.valid.eq(0)
        with m.If(self.finished):
            m.d.sync += point.o.valid.eq(1)
            for name in ("start", "beats", "tail", "join"):
                m.d.sync += Value.cast(choice[name]).eq(row[name])
            for name in ("cutoff", "passes", "limited", "room"):
                m.d.sync += Value.cast(choice[name]).eq(getattr(decision, name))
