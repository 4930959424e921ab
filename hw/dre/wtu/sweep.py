"""Selector of the WTU that reads the row once per bucket, as in V-Rex, Fig. 12."""

from amaranth import Module, Signal

from hw.dre.wtu.command import KEY_BITS, WtuSizes
from hw.dre.wtu.decision import WEIGH_CYCLES, offset
from hw.dre.wtu.selector import Selector, SumPath


class SweepSelector(Selector):
    """Reads the row once for the sum, then once per bucket from the top until the sum passes the threshold.

    Every lane compares its key with the lower and the upper bound of the bucket ("upper and lower bucket sorter" in
    V-Rex, Fig. 12). The beats of the next bucket follow without a gap. When a bucket passes the threshold, the beats
    that were already read for the next bucket are dropped. A long row waits for the sum of a bucket before it is read
    for the next one, because each of its passes is complete.
    """

    formula = (
        "(1 + passes) * beats + 3 * levels + 14 (long rows: 3 * passes), "
        "or beats + 15 when all clusters of the row are selected"
    )

    @staticmethod
    def cycles(sizes: WtuSizes, beats: int, passes: int, levels: int, is_long: bool = False) -> int:
        return (1 + passes) * beats + 3 * (passes if is_long else levels) + (14 if levels else 15)

    @staticmethod
    def reads(passes: int, levels: int) -> int:
        return 1 + passes

    def _search(self, m: Module, path: SumPath) -> None:
        decision = path.decision
        bucket = Signal.like(decision.bucket)
        sizing = Signal()
        drop = Signal()
        self._sort(m, path, bucket, sizing)
        loaded_bucket = Signal.like(bucket)
        weighted_bucket = Signal.like(bucket)
        m.d.sync += [
            path.loaded.eq(self.read_accepted & ~drop),
            path.weighted.eq(path.loaded & ~drop),
            path.summed.eq(path.weighted & ~drop),
            path.loaded_last.eq(path.last_read),
            path.weighted_last.eq(path.loaded_last),
            path.summed_last.eq(path.weighted_last),
            loaded_bucket.eq(bucket),
            weighted_bucket.eq(loaded_bucket),
            decision.bucket.eq(weighted_bucket),
        ]
        m.d.comb += [
            decision.add.eq(path.summed),
            decision.last.eq(path.summed_last),
            decision.sizing.eq(sizing),
            self.busy.eq(self.i.valid),
        ]
        self._control(m, path, bucket, sizing, drop)

    def _sort(self, m: Module, path: SumPath, bucket: Signal, sizing: Signal) -> None:
        """Weigh the clusters whose keys lie in the bucket, or all clusters while `sizing`."""
        decision, weights = path.decision, path.weights
        upper = Signal(KEY_BITS)
        lower = Signal(KEY_BITS + 1)
        top = Signal(KEY_BITS)
        m.d.comb += top.eq(decision.high - offset(bucket, decision.width))
        m.d.sync += [upper.eq(top), lower.eq(top - decision.width + 1)]
        for w in range(self.sizes.lanes):
            key = self.pairs[w].key
            in_bucket = (key <= upper) & (key >= lower.as_signed())
            m.d.comb += [
                weights.use[w].eq(path.used[w] & (sizing | in_bucket)),
                path.addends[w].eq(weights.weights[w]),
            ]

    def _control(self, m: Module, path: SumPath, bucket: Signal, sizing: Signal, drop: Signal) -> None:
        """State machine: SIZE reads the row for its sum, SEARCH reads it once per bucket."""
        decision = path.decision
        summing = Signal()  # a long row waits for the sum of the bucket
        with m.FSM():
            with m.State("IDLE"), m.If(self.i.valid):
                m.d.comb += decision.begin.eq(1)
                m.next = "SIZE"
            with m.State("SIZE"):
                m.d.comb += [sizing.eq(1), self.read.eq(1)]
                with m.If(path.last_read):
                    m.next = "DRAIN"
            with m.State("DRAIN"):
                m.d.comb += sizing.eq(1)
                with m.If(path.summed & path.summed_last):
                    m.d.comb += decision.weigh.eq(1)
                    m.next = "WEIGH"
            with m.State("WEIGH"), m.If(decision.weighed):
                m.next = "SEARCH"
            with m.State("SEARCH"):
                m.d.comb += [
                    self.read.eq(~self.i.payload.long | ~(summing | decision.select_all)),
                    drop.eq(decision.select_all | decision.crossing),
                ]
                with m.If(path.last_read):
                    m.d.sync += [bucket.eq(bucket + 1), summing.eq(self.i.payload.long)]
                with m.If(path.summed & path.summed_last):
                    m.d.sync += summing.eq(0)
                with m.If(drop):
                    m.d.sync += [path.beat.eq(0), bucket.eq(0)]
                with m.If(decision.select_all | (decision.crossing & ~decision.divide)):
                    m.next = "FINISH"
            with m.State("FINISH"):
                m.d.comb += path.finish.eq(1)
                with m.If(path.finished):
                    m.next = "IDLE"
        assert WEIGH_CYCLES == 9, "the constant 14 of `cycles` contains WEIGH_CYCLES = 9"
