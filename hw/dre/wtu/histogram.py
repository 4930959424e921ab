"""Selector of the WTU that computes the sums of all buckets of a level in one read of the row."""

import operator
from dataclasses import dataclass

from amaranth import Module, Mux, Signal

from hw.common.memory import LatchRam, Ram
from hw.common.tree import reduce_tree
from hw.dre.wtu.command import KEY_BITS, WtuSizes
from hw.dre.wtu.decision import WEIGH_CYCLES
from hw.dre.wtu.selector import Selector, SumPath


@dataclass(frozen=True)
class Walk:
    """Signals of the examination of the buckets, one bucket per cycle from the top.

    A bucket is read (`reading`), is at the output of the memories one cycle later (`shown`), and is in the register of
    the adder tree after one more cycle (`added`).

    sizing : the read of this level also gives the sum of the row
    clearing : the memories are cleared after a reset
    crossed : a bucket of this level has passed the threshold
    divide : this bucket is divided again
    bucket, shown_bucket : number of the bucket that is read and of the bucket that is shown
    """

    sizing: Signal
    reading: Signal
    shown: Signal
    added: Signal
    clearing: Signal
    crossed: Signal
    divide: Signal
    bucket: Signal
    shown_bucket: Signal

    @classmethod
    def create(cls, sizes: WtuSizes) -> "Walk":
        """Unconnected signals for a selector of the given sizes."""
        flags = ("sizing", "reading", "shown", "added", "clearing", "crossed", "divide")
        numbers = ("bucket", "shown_bucket")
        return cls(
            **{name: Signal(name=name) for name in flags},
            **{name: Signal(range(sizes.buckets), name=name) for name in numbers},
        )


class HistogramSelector(Selector):
    """Reads the row once per level; the first read also gives the sum of the row.

    Every lane has a small memory with one sum per bucket and adds the weight of its cluster to the bucket of its key.
    Then the buckets are examined from the top, one per cycle. The adder tree adds the sums of the lanes, and each
    bucket is cleared one cycle after its read. All buckets are read in every level, so all are zero at the start of
    the next level.

    Numerics: buckets and sums are those of `SweepSelector`; the results are equal.
    """

    formula = "max(1, levels) * (beats + buckets + 4) + 12"

    @staticmethod
    def cycles(sizes: WtuSizes, beats: int, passes: int, levels: int, is_long: bool = False) -> int:
        return max(1, levels) * (beats + sizes.buckets + 4) + 12

    @staticmethod
    def reads(passes: int, levels: int) -> int:
        return max(1, levels)

    @staticmethod
    def reset_cycles(sizes: WtuSizes) -> int:
        return sizes.buckets + 1

    @staticmethod
    def memory_bits(sizes: WtuSizes) -> dict[str, int]:
        return {"buckets": sizes.lanes * sizes.buckets * bucket_width(sizes)}

    def _search(self, m: Module, path: SumPath) -> None:
        walk, decision = Walk.create(self.sizes), path.decision
        self._fill_buckets(m, path, walk)
        m.d.sync += [
            path.loaded.eq(self.read_accepted),
            path.weighted.eq(path.loaded),
            path.summed.eq(path.weighted & walk.sizing),
            path.loaded_last.eq(path.last_read),
            path.weighted_last.eq(path.loaded_last),
            path.summed_last.eq(path.weighted_last),
            walk.shown.eq(walk.reading),
            walk.added.eq(walk.shown),
            walk.shown_bucket.eq(walk.bucket),
            decision.bucket.eq(walk.shown_bucket),
        ]
        m.d.comb += [
            decision.sizing.eq(walk.sizing),
            decision.add.eq(path.summed | (walk.added & ~walk.crossed & ~decision.select_all)),
            decision.last.eq(1),
        ]
        with m.If(walk.reading | walk.clearing):
            m.d.sync += walk.bucket.eq(walk.bucket + 1)
        with m.If(decision.crossing):
            m.d.sync += [walk.crossed.eq(1), walk.divide.eq(decision.divide)]
        self._control(m, path, walk)

    def _fill_buckets(self, m: Module, path: SumPath, walk: Walk) -> None:
        """The bucket memories: add the weighted beat, show the bucket that is examined, clear it.

        A lane without a cluster in the range is not accessed, and no bucket is read after the threshold is passed.
        Consecutive beats can have the same bucket, which is then read and written in the same cycle.
        """
        kind = LatchRam if self.sizes.buckets <= LatchRam.MAX_DEPTH else Ram
        decision, weights, sizes = path.decision, path.weights, self.sizes
        beyond = Signal.like(decision.width)  # bits of a distance, counted in buckets, that are 0 inside the range
        m.d.comb += beyond.eq(~(decision.width - 1))
        for w in range(sizes.lanes):
            m.submodules[f"buckets{w}"] = buckets = kind(depth=sizes.buckets, width=bucket_width(sizes))
            distance = Signal(KEY_BITS + 1, name=f"distance{w}")  # from the top of the range; negative above it
            number = Signal(sizes.bucket_bits, name=f"number{w}")
            weighted_number = Signal.like(walk.bucket, name=f"weighted_number{w}")
            in_range = Signal(name=f"in_range{w}")
            weighted_use = Signal(name=f"weighted_use{w}")
            shifted = [Mux(bit, distance[k : k + sizes.bucket_bits], 0) for k, bit in enumerate(decision.width)]
            m.d.comb += [
                distance.eq(decision.high - self.pairs[w].key),
                number.eq(reduce_tree(operator.or_, shifted)),
                in_range.eq(~(distance[sizes.bucket_bits :] & beyond).any()),
                weights.use[w].eq(path.used[w] & in_range),
                path.addends[w].eq(Mux(walk.shown, buckets.r_data[0], weights.weights[w])),
                buckets.r_en.eq(Mux(walk.reading, ~walk.crossed, path.loaded & weights.use[w])),
                buckets.r_addr.eq(Mux(walk.reading, walk.bucket, number)),
                buckets.w_mask.eq((path.weighted & weighted_use) | walk.shown | walk.clearing),
                buckets.w_addr.eq(Mux(path.weighted, weighted_number, walk.shown_bucket)),
                buckets.w_data[0].eq(Mux(path.weighted, buckets.r_data[0] + weights.weights[w], 0)),
            ]
            with m.If(path.loaded):
                m.d.sync += [weighted_number.eq(number), weighted_use.eq(weights.use[w])]

    def _control(self, m: Module, path: SumPath, walk: Walk) -> None:
        """State machine: READ fills the buckets of a level, SEARCH examines them, SETTLE waits for the last sum."""
        decision = path.decision
        with m.FSM() as fsm:
            with m.State("CLEAR"):  # clear the bucket memories after a reset
                m.d.comb += walk.clearing.eq(1)
                with m.If(walk.shown_bucket == self.sizes.buckets - 1):
                    m.d.sync += walk.bucket.eq(0)
                    m.next = "IDLE"
            with m.State("IDLE"), m.If(self.i.valid):
                m.d.comb += decision.begin.eq(1)
                m.d.sync += walk.sizing.eq(1)
                m.next = "READ"
            with m.State("READ"):
                m.d.comb += self.read.eq(1)
                m.d.sync += [walk.crossed.eq(0), walk.divide.eq(0)]
                with m.If(path.last_read):
                    m.next = "DRAIN"
            with m.State("DRAIN"):
                with m.If(path.summed & path.summed_last):
                    m.d.comb += decision.weigh.eq(1)
                    m.next = "WEIGH"
                with m.If(path.weighted & path.weighted_last & ~walk.sizing):
                    m.next = "SEARCH"
            with m.State("WEIGH"), m.If(decision.weighed):
                m.d.sync += walk.sizing.eq(0)
                m.next = "SEARCH"
            with m.State("SEARCH"):
                m.d.comb += walk.reading.eq(1)
                with m.If(walk.bucket == self.sizes.buckets - 1):
                    m.next = "SETTLE"
            with m.State("SETTLE"), m.If(~walk.shown):
                with m.If(Mux(decision.crossing, decision.divide, walk.divide)):
                    m.next = "READ"
                with m.Else():
                    m.next = "FINISH"
            with m.State("FINISH"):
                m.d.comb += path.finish.eq(1)
                with m.If(path.finished):
                    m.next = "IDLE"
        m.d.comb += self.busy.eq(self.i.valid & ~fsm.ongoing("CLEAR"))
        assert WEIGH_CYCLES == 9, "the constant 12 of `cycles` contains WEIGH_CYCLES = 9"


def bucket_width(sizes: WtuSizes) -> int:
    """Width of the sum of one lane over a row."""
    return sizes.weight_bits + sizes.beats.bit_length() - 1
