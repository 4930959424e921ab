"""Kept tokens of a step: which ones STORE copies to the KV cache."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hw.dre.wtu.command import WtuSizes


class KeptTokens(wiring.Component):
    """Buffers the bitmap of a selection of tokens and sends it token by token.

    Timing: one beat of the bitmap per cycle in, one token per cycle out. The bits that remain after `clear` take one
    cycle per beat.

    Parameters
    ----------
    sizes : sizes of the WTU
    max_tokens : tokens of the longest bitmap, unless the longest row of the WTU is shorter

    Members
    -------
    start : a selection begins, only while `empty`
    bitmap : stream of `WtuSizes.bitmap`
    complete : the whole bitmap is received
    active : some tokens of the step are dropped, from `start` to `clear`
    o : whether the next token of the step is kept
    clear : the step ends
    empty : nothing is buffered
    """

    def __init__(self, sizes: WtuSizes, max_tokens: int):
        self.sizes, self.depth = sizes, -(-min(max_tokens, sizes.max_row_clusters) // sizes.lanes)
        super().__init__(
            {
                "start": In(1),
                "bitmap": In(stream.Signature(sizes.bitmap, always_ready=True)),
                "complete": Out(1),
                "active": Out(1),
                "o": Out(stream.Signature(1)),
                "clear": In(1),
                "empty": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        lanes = self.sizes.lanes
        m.submodules.masks = masks = SyncFIFOBuffered(width=lanes, depth=self.depth)
        lane = Signal(range(max(2, lanes)))
        m.d.comb += [
            masks.w_data.eq(self.bitmap.payload.mask),
            masks.w_en.eq(self.bitmap.valid),
            self.o.valid.eq(self.active & masks.r_rdy),
            self.o.payload.eq(masks.r_data.bit_select(lane, 1)),
            self.empty.eq(~self.active & ~masks.r_rdy & (masks.level == 0)),
        ]
        with m.If(self.start):
            m.d.sync += [self.active.eq(1), self.complete.eq(0), lane.eq(0)]
        with m.Elif(self.clear):
            m.d.sync += self.active.eq(0)
        with m.If(self.bitmap.valid & self.bitmap.payload.last):
            m.d.sync += self.complete.eq(1)
        with m.If(~self.active):
            m.d.comb += masks.r_en.eq(1)
        with m.Elif(self.o.valid & self.o.ready):
            m.d.sync += lane.eq(lane + 1)
            m.d.comb += masks.r_en.eq(lane == lanes - 1)
            with m.If(lane == lanes - 1):
                m.d.sync += lane.eq(0)
        return m
