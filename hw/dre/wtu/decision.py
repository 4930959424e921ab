"""Running sum and bucket decision of the WTU."""

from amaranth import Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.common.tree import reduce_tree
from hw.dre.wtu.command import KEY_BITS, RATIO_BITS, TARGET_BITS, SelectionMode, WtuSizes

STEPS = RATIO_BITS // 2  # the ratio is multiplied in digits of two bits
WEIGH_CYCLES = STEPS + 1


class Decision(wiring.Component):
    """Adds buckets in descending order until the sum passes the threshold, and narrows the range to that bucket.

    A level divides the range [low, high] of keys into at most `buckets` buckets of `width` keys each, counted from
    `high` down; `width` is a power of two. Sums arrive as partial sums, one per cycle. Partial sums with `sizing`
    make up the sum of the row; `weigh` then computes the threshold from it. Later partial sums belong to the bucket
    `bucket`. With the last partial sum of a bucket, the running sum either passes the threshold (`crossing`) or the
    next bucket follows.

    Timing
    ------
    `weighed` follows `weigh` by WEIGH_CYCLES cycles. `crossing` and `divide` are valid in the cycle of the last
    partial sum; the new range is valid one cycle later.

    Parameters
    ----------
    sizes : sizes of the WTU

    Members
    -------
    begin, row_low, row_high : start of a row, its smallest and its largest key
    mode, refine, target : values of the ports `cfg_*` of the WTU
    add, sizing, last, bucket, amount : one partial sum
    weigh : the sum of the row is complete
    weighed : the threshold is valid
    select_all : the sum of the row does not pass the threshold, so all clusters are selected
    crossing : the bucket passes the threshold
    divide : the bucket is divided again
    high, width : top of the range and keys per bucket in the present level
    cutoff, passes, limited, tie_count : the result, see `WtuSizes.choice`
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
                "select_all": Out(1),
                "crossing": Out(1),
                "divide": Out(1),
                "high": Out(KEY_BITS),
                "width": Out(KEY_BITS - sizes.bucket_bits + 1),
                "cutoff": Out(KEY_BITS),
                "passes": Out(sizes.passes),
                "limited": Out(1),
                "tie_count": Out(range(sizes.max_row_clusters + 1)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        sizes = self.sizes
        running = Signal(sizes.sum_bits)  # sum of the buckets above and of the partial sums of the present bucket
        sum_above = Signal(sizes.sum_bits)  # sum of the buckets above the present one
        threshold = Signal(max(sizes.sum_bits, TARGET_BITS))
        low = Signal(KEY_BITS)
        level = Signal(range(sizes.levels))
        self._add(m, running, sum_above, threshold)
        self._narrow(m, low, level)
        self._weigh(m, running, threshold)
        with m.If(self.begin):
            m.d.sync += [
                low.eq(self.row_low),
                self.high.eq(self.row_high),
                running.eq(0),
                sum_above.eq(0),
                level.eq(0),
                self.passes.eq(0),
            ]
        m.d.comb += [
            self.cutoff.eq(low),
            self.limited.eq((self.mode == SelectionMode.COUNT) & ~self.select_all),
            self.tie_count.eq((self.target - sum_above)[: len(self.tie_count)]),
        ]
        return m

    def _add(self, m: Module, running: Signal, sum_above: Signal, threshold: Signal) -> None:
        """Add a partial sum; at the crossing bucket, return to the sum of the buckets above it."""
        new_sum = Signal(self.sizes.sum_bits)
        m.d.comb += [
            new_sum.eq(running + self.amount),
            self.crossing.eq(self.add & self.last & ~self.sizing & (new_sum > threshold)),
        ]
        with m.If(self.add):
            m.d.sync += running.eq(new_sum)
            with m.If(self.last & ~self.sizing):
                m.d.sync += sum_above.eq(new_sum)
        with m.If(self.crossing):
            m.d.sync += [running.eq(sum_above), sum_above.eq(sum_above)]

    def _narrow(self, m: Module, low: Signal, level: Signal) -> None:
        """Compute the bucket width; at the crossing bucket, the bucket becomes the range of the next level."""
        span = Signal(KEY_BITS)
        upper = Signal(KEY_BITS)
        lower = Signal(KEY_BITS + 1)
        # exactly one bit of the width is set
        m.d.comb += [span.eq(self.high - low), self.width[0].eq(span < self.sizes.buckets)]
        for k in range(1, len(self.width)):
            m.d.comb += self.width[k].eq(span >> (self.sizes.bucket_bits + k - 1) == 1)
        m.d.comb += [
            self.divide.eq(~self.width[0] & ((self.mode == SelectionMode.COUNT) | (level != self.refine))),
            upper.eq(self.high - offset(self.bucket, self.width)),
            lower.eq(upper - self.width + 1),
        ]
        with m.If(self.crossing):
            m.d.sync += [
                self.high.eq(upper),
                low.eq(Mux(lower.as_signed() < low, low, lower)),
                level.eq(level + 1),
                self.passes.eq(self.passes + self.bucket + 1),
            ]

    def _weigh(self, m: Module, running: Signal, threshold: Signal) -> None:
        """Compute the threshold: ratio x sum, or the target.

        The lowest digit of the ratio comes first, so the bits that are shifted out are final.
        """
        step = Signal(range(STEPS + 1))
        weighing = Signal()
        partial = Signal(self.sizes.sum_bits + 2)
        select_all = Signal()
        digit = self.target.word_select(step[: (STEPS - 1).bit_length()], 2)
        m.d.comb += [
            partial.eq(threshold + running * digit),
            self.weighed.eq(weighing & (step == STEPS)),
            select_all.eq(running <= threshold),
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
                m.d.sync += [
                    weighing.eq(0),
                    threshold.eq(threshold),
                    self.select_all.eq(select_all),
                    running.eq(0),
                ]


def offset(bucket: Value, width: Value) -> Value:
    """Distance of the largest key of a bucket from the top of the range: `bucket * width`, the low 16 bits."""
    shifted = [Mux(width[k], bucket << k, 0) for k in range(len(width))]
    return reduce_tree(lambda a, b: a | b, shifted)[:KEY_BITS]
