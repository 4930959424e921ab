"""Where a row's selection stops: the threshold, the running sum, and the range that the buckets divide."""

from amaranth import Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.common.tree import reduce_tree
from hw.dre.wtu.command import KEY_BITS, RATIO_BITS, TARGET_BITS, SelectionMode, WtuSizes

STEPS = RATIO_BITS // 2  # the ratio is multiplied in digits of two bits
WEIGH_CYCLES = STEPS + 1


class Decision(wiring.Component):
    """Adds up buckets in descending order until the threshold is passed, and narrows the range to that bucket.

    A level divides the range [low, high] into at most `buckets` buckets of `width` keys, a power of two, counted from
    `high` down. Sums come in parts, one per cycle. Parts that come while `sizing` make up the row's sum; then
    `weigh` derives the threshold from it. Later parts belong to the bucket `bucket`; with its last part the sum
    either passes the threshold (`found`) or the next bucket follows.

    Timing: `weighed` comes WEIGH_CYCLES cycles after `weigh`. `found` and `deeper` come in the cycle of the last part,
    the new range one cycle later.

    Members
    -------
    begin, row_low, row_high : start of a row
    mode, refine, target : as the unit's `cfg_*`
    add, sizing, last, bucket, amount : a part of a sum
    weigh, weighed, whole : the sum is complete; the threshold is known; it is not below the sum: all is selected
    found, deeper : the bucket passes the threshold; it is to be divided again
    high, width : of the present level
    cutoff, passes, limited, room : the result, as in `WtuSizes.choice`
    """

    latency = None

    def __init__(self, sizes: WtuSizes):
        self.sizes = sizes
        super().__init__(
            {
                "begin": In(1),
                "row_low": In(KEY_BITS),
                "row_high": In(KEY_BITS),
                "mode": In(SelectionMode),
                "refine": In(range(sizes.levels)),
                "target": In(TARGET_BITS),
                "add": In(1),
                "sizing": In(1),
                "last": In(1),
                "bucket": In(range(2 * sizes.buckets)),
                "amount": In(sizes.sum_bits),
                "weigh": In(1),
                "weighed": Out(1),
                "whole": Out(1),
                "found": Out(1),
                "deeper": Out(1),
                "high": Out(KEY_BITS),
                "width": Out(KEY_BITS - sizes.bucket_bits + 1),
                "cutoff": Out(KEY_BITS),
                "passes": Out(sizes.passes),
                "limited": Out(1),
                "room": Out(range(sizes.max_row_clusters + 1)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        sizes = self.sizes

        # the width of a bucket, a single one at the place of its logarithm
        low, span = Signal(KEY_BITS), Signal(KEY_BITS)
        m.d.comb += [span.eq(self.high - low), self.width[0].eq(span < sizes.buckets)]
        for k in range(1, len(self.width)):
            m.d.comb += self.width[k].eq(span >> (sizes.bucket_bits + k - 1) == 1)

        # the sum with what is being examined, and without it
        running, taken, after = Signal(sizes.sum_bits), Signal(sizes.sum_bits), Signal(sizes.sum_bits)
        threshold = Signal(max(sizes.sum_bits, TARGET_BITS))
        level = Signal(range(sizes.levels))
        upper, lower = Signal(KEY_BITS), Signal(KEY_BITS + 1)
        m.d.comb += [
            after.eq(running + self.amount),
            self.found.eq(self.add & self.last & ~self.sizing & (after > threshold)),
            self.deeper.eq(~self.width[0] & ((self.mode == SelectionMode.COUNT) | (level != self.refine))),
            upper.eq(self.high - offset(self.bucket, self.width)),
            lower.eq(upper - self.width + 1),
        ]
        with m.If(self.add):
            m.d.sync += running.eq(after)
            with m.If(self.last & ~self.sizing):
                m.d.sync += taken.eq(after)
        with m.If(self.found):
            m.d.sync += [
                running.eq(taken),
                taken.eq(taken),
                self.high.eq(upper),
                low.eq(Mux(lower.as_signed() < low, low, lower)),
                level.eq(level + 1),
                self.passes.eq(self.passes + self.bucket + 1),
            ]

        # ratio x sum, lowest digits first, so that what is shifted out is final
        step, weighing, partial = Signal(range(STEPS + 1)), Signal(), Signal(sizes.sum_bits + 2)
        whole = Signal()
        m.d.comb += [
            partial.eq(threshold + running * self.target.word_select(step[: (STEPS - 1).bit_length()], 2)),
            self.weighed.eq(weighing & (step == STEPS)),
            whole.eq(running <= threshold),
        ]
        with m.If(self.weigh):
            m.d.sync += [weighing.eq(1), step.eq(0), threshold.eq(0)]
        with m.If(weighing):
            m.d.sync += [step.eq(step + 1), threshold.eq(partial >> 2)]
            with m.If(step == STEPS - 1):
                with m.If(self.mode != SelectionMode.RATIO):
                    m.d.sync += threshold.eq(self.target - (self.target != 0))
                with m.Elif(self.target[RATIO_BITS]):
                    m.d.sync += threshold.eq(running)
            with m.Elif(step == STEPS):
                m.d.sync += [weighing.eq(0), threshold.eq(threshold), self.whole.eq(whole), running.eq(0)]

        with m.If(self.begin):
            m.d.sync += [
                low.eq(self.row_low),
                self.high.eq(self.row_high),
                running.eq(0),
                taken.eq(0),
                level.eq(0),
                self.passes.eq(0),
            ]
        m.d.comb += [
            self.cutoff.eq(low),
            self.limited.eq((self.mode == SelectionMode.COUNT) & ~self.whole),
            self.room.eq((self.target - taken)[: len(self.room)]),
        ]
        return m


def offset(bucket: Value, width: Value) -> Value:
    """Distance of a bucket's largest key from the top of the range: `bucket * width`, the low 16 bits."""
    parts = [Mux(width[k], bucket << k, 0) for k in range(len(width))]
    return reduce_tree(lambda a, b: a | b, parts)[:KEY_BITS]
