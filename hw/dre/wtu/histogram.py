"""The WTU's fast design point: one read of the row fills all buckets of a level."""

import operator

from amaranth import Module, Mux, Signal

from hw.common.memory import Ram
from hw.common.tree import reduce_tree
from hw.dre.wtu.command import KEY_BITS, WtuSizes
from hw.dre.wtu.decision import WEIGH_CYCLES
from hw.dre.wtu.selector import Flow, Selector


class Histogram(Selector):
    """Reads the row once per level; the sum comes with the first.

    Every lane has a small memory with a sum for each bucket and adds to the one that its key falls into. Then the
    buckets are examined from the top, one per cycle, the lanes' parts added by the same tree that added the
    weights; each is cleared behind. All buckets are walked through, so that all are clear for the next level.

    Numerics: the buckets and sums are those of the sweep, so everything that leaves the unit is the same.
    """

    formula = "max(1, levels) * (beats + buckets + 4) + 12"

    @staticmethod
    def cycles(sizes: WtuSizes, beats: int, passes: int, levels: int) -> int:
        return max(1, levels) * (beats + sizes.buckets + 4) + 12

    @staticmethod
    def reset_cycles(sizes: WtuSizes) -> int:
        return sizes.buckets + 1

    @staticmethod
    def memory_bits(sizes: WtuSizes) -> dict[str, int]:
        return {"buckets": sizes.lanes * sizes.buckets * bucket_width(sizes)}

    def elaborate(self, platform: object) -> Module:
        m = Module()
        flow, sizes = Flow(m, self), self.sizes
        decision, weights = flow.decision, flow.weights
        sizing = Signal()  # this level's read also gives the sum
        walking, shown, added = Signal(), Signal(), Signal()  # a bucket is read, there, in the tree's register
        passed, again = Signal(), Signal()  # the threshold lies in a bucket seen; that is to be divided
        bucket, shown_bucket = Signal(range(sizes.buckets)), Signal(range(sizes.buckets))
        clearing = Signal()

        outside = Signal.like(decision.width)  # bits of a distance, counted in buckets, that no bucket number has
        m.d.comb += outside.eq(~(decision.width - 1))
        for w, key in enumerate(self.keys):
            m.submodules[f"buckets{w}"] = buckets = Ram(depth=sizes.buckets, width=bucket_width(sizes))
            distance = Signal(KEY_BITS + 1, name=f"distance{w}")  # from the top of the range; negative above it
            number, filled = Signal(sizes.bucket_bits, name=f"number{w}"), Signal.like(bucket, name=f"filled{w}")
            inside = Signal(name=f"inside{w}")
            numbers = [Mux(one, distance[k : k + sizes.bucket_bits], 0) for k, one in enumerate(decision.width)]
            m.d.comb += [
                distance.eq(decision.high - key),
                number.eq(reduce_tree(operator.or_, numbers)),
                inside.eq(~(distance[sizes.bucket_bits :] & outside).any()),
                weights.use[w].eq(flow.used[w] & inside),
                flow.addends[w].eq(Mux(shown, buckets.r_data[0], weights.weights[w])),
                buckets.r_en.eq(flow.loaded | walking),
                buckets.r_addr.eq(Mux(walking, bucket, number)),
                buckets.w_mask.eq(flow.weighted | shown | clearing),
                buckets.w_addr.eq(Mux(flow.weighted, filled, shown_bucket)),
                buckets.w_data[0].eq(Mux(flow.weighted, buckets.r_data[0] + weights.weights[w], 0)),
            ]
            m.d.sync += filled.eq(number)

        m.d.sync += [
            flow.loaded.eq(self.read_en),
            flow.weighted.eq(flow.loaded),
            flow.summed.eq(flow.weighted & sizing),
            flow.loaded_last.eq(flow.last),
            flow.weighted_last.eq(flow.loaded_last),
            flow.summed_last.eq(flow.weighted_last),
            shown.eq(walking),
            added.eq(shown),
            shown_bucket.eq(bucket),
            decision.bucket.eq(shown_bucket),
        ]
        m.d.comb += [
            decision.sizing.eq(sizing),
            decision.add.eq(flow.summed | (added & ~passed & ~decision.whole)),
            decision.last.eq(1),
        ]
        with m.If(walking | clearing):
            m.d.sync += bucket.eq(bucket + 1)
        with m.If(decision.found):
            m.d.sync += [passed.eq(1), again.eq(decision.deeper)]

        with m.FSM() as fsm:
            with m.State("CLEAR"):  # what a reset has left
                m.d.comb += clearing.eq(1)
                with m.If(shown_bucket == sizes.buckets - 1):
                    m.d.sync += bucket.eq(0)
                    m.next = "IDLE"
            with m.State("IDLE"), m.If(self.i.valid):
                m.d.comb += decision.begin.eq(1)
                m.d.sync += sizing.eq(1)
                m.next = "READ"
            with m.State("READ"):
                m.d.comb += self.read_en.eq(1)
                m.d.sync += [passed.eq(0), again.eq(0)]
                with m.If(flow.last):
                    m.next = "DRAIN"
            with m.State("DRAIN"):
                with m.If(flow.summed & flow.summed_last):
                    m.d.comb += decision.weigh.eq(1)
                    m.next = "WEIGH"
                with m.If(flow.weighted & flow.weighted_last & ~sizing):
                    m.next = "WALK"
            with m.State("WEIGH"), m.If(decision.weighed):
                m.d.sync += sizing.eq(0)
                m.next = "WALK"
            with m.State("WALK"):
                m.d.comb += walking.eq(1)
                with m.If(bucket == sizes.buckets - 1):
                    m.next = "SETTLE"
            with m.State("SETTLE"), m.If(~shown):
                with m.If(Mux(decision.found, decision.deeper, again)):
                    m.next = "READ"
                with m.Else():
                    m.next = "FINISH"
            with m.State("FINISH"):
                m.d.comb += flow.finish.eq(1)
                with m.If(flow.finished):
                    m.next = "IDLE"
        m.d.comb += self.busy.eq(self.i.valid & ~fsm.ongoing("CLEAR"))
        assert WEIGH_CYCLES == 9  # of the 12 cycles
        return m


def bucket_width(sizes: WtuSizes) -> int:
    """Bits of one lane's sum over a row."""
    return sizes.weight_bits + sizes.beats.bit_length() - 1
