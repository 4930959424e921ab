"""The WTU's plain design point: upper and lower bucket sorters that read the row once per bucket (V-Rex, Fig. 12)."""

from amaranth import Module, Signal

from hw.dre.wtu.command import KEY_BITS, WtuSizes
from hw.dre.wtu.decision import WEIGH_CYCLES, offset
from hw.dre.wtu.selector import Flow, Selector


class Sweep(Selector):
    """Reads the row once for the sum, then once for each bucket from the top until the sum passes the threshold.

    Every lane compares its key with the bucket's lower and upper bound. The next bucket's beats follow without a gap;
    those read in vain when a bucket passes the threshold are dropped.
    """

    formula = "(1 + passes) * beats + 3 * levels + 14, or beats + 15 when the row is selected whole"

    @staticmethod
    def cycles(sizes: WtuSizes, beats: int, passes: int, levels: int) -> int:
        return (1 + passes) * beats + 3 * levels + (14 if levels else 15)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        flow = Flow(m, self)
        decision, weights = flow.decision, flow.weights

        buckets = [Signal.like(decision.bucket, name=f"bucket{k}") for k in range(3)]  # as read, loaded, weighted
        upper, lower = Signal(KEY_BITS), Signal(KEY_BITS + 1)
        top = Signal(KEY_BITS)
        sizing, drop = Signal(), Signal()
        m.d.comb += top.eq(decision.high - offset(buckets[0], decision.width))
        m.d.sync += [upper.eq(top), lower.eq(top - decision.width + 1)]
        for w, key in enumerate(self.keys):
            inside = (key <= upper) & (key >= lower.as_signed())
            m.d.comb += [
                weights.use[w].eq(flow.used[w] & (sizing | inside)),
                flow.addends[w].eq(weights.weights[w]),
            ]
        m.d.sync += [
            flow.loaded.eq(self.read_en & ~drop),
            flow.weighted.eq(flow.loaded & ~drop),
            flow.summed.eq(flow.weighted & ~drop),
            flow.loaded_last.eq(flow.last),
            flow.weighted_last.eq(flow.loaded_last),
            flow.summed_last.eq(flow.weighted_last),
            buckets[1].eq(buckets[0]),
            buckets[2].eq(buckets[1]),
            decision.bucket.eq(buckets[2]),
        ]
        m.d.comb += [
            decision.add.eq(flow.summed),
            decision.last.eq(flow.summed_last),
            decision.sizing.eq(sizing),
            self.busy.eq(self.i.valid),
        ]

        with m.FSM():
            with m.State("IDLE"), m.If(self.i.valid):
                m.d.comb += decision.begin.eq(1)
                m.next = "SIZE"
            with m.State("SIZE"):
                m.d.comb += [sizing.eq(1), self.read_en.eq(1)]
                with m.If(flow.last):
                    m.next = "DRAIN"
            with m.State("DRAIN"):
                m.d.comb += sizing.eq(1)
                with m.If(flow.summed & flow.summed_last):
                    m.d.comb += decision.weigh.eq(1)
                    m.next = "WEIGH"
            with m.State("WEIGH"), m.If(decision.weighed):
                m.next = "WALK"
            with m.State("WALK"):
                m.d.comb += [self.read_en.eq(1), drop.eq(decision.whole | decision.found)]
                with m.If(flow.last):
                    m.d.sync += buckets[0].eq(buckets[0] + 1)
                with m.If(drop):
                    m.d.sync += [self.read_beat.eq(0), buckets[0].eq(0)]
                with m.If(decision.whole | (decision.found & ~decision.deeper)):
                    m.next = "FINISH"
            with m.State("FINISH"):
                m.d.comb += flow.finish.eq(1)
                with m.If(flow.finished):
                    m.next = "IDLE"
        assert WEIGH_CYCLES == 9  # part of the 14 cycles
        return m
