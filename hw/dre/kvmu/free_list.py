"""Free list: hands out the numbers 0 .. size-1, each to one owner at a time."""

from amaranth import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.common.memory import Ram


class FreeList(wiring.Component):
    """Allocates numbers below `size`: those given back first, in the order in which they came, then fresh ones.

    Fresh numbers come from a counter, so nothing has to be written at reset. `take` is ignored while nothing is
    available; the owner of the list gives back only what was taken (each number once).

    Timing: `number` and `available` are registers away; both may change every cycle. A number given back can be
    taken in the next cycle.

    Parameters
    ----------
    size : how many numbers there are

    Members
    -------
    available, number : whether there is a number, and which one `take` takes
    take : the number is now in use
    give, give_number : a number that is free again
    clear : everything is free and fresh
    fresh : numbers from here on were never taken since `clear`
    """

    def __init__(self, *, size: int):
        if size < 2 or size & (size - 1):
            raise ValueError(f"size must be a power of two, at least 2, got {size}")
        self.size = size
        super().__init__(
            {
                "available": Out(1),
                "number": Out(range(size)),
                "take": In(1),
                "give": In(1),
                "give_number": In(range(size)),
                "clear": In(1),
                "fresh": Out(range(size + 1)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.ring = ring = Ram(depth=self.size, width=len(self.number))
        head, tail = Signal(range(self.size)), Signal(range(self.size))
        waiting = Signal(range(self.size + 1))
        taken, reused, next_head = Signal(), Signal(), Signal(range(self.size))
        m.d.comb += [
            self.available.eq((waiting != 0) | (self.fresh != self.size)),
            self.number.eq(Mux(waiting != 0, ring.r_data[0], self.fresh[: len(self.number)])),
            taken.eq(self.take & self.available),
            reused.eq(taken & (waiting != 0)),
            next_head.eq(head + reused),
            ring.r_addr.eq(next_head),
            ring.r_en.eq(1),
            ring.w_addr.eq(tail),
            ring.w_mask.eq(self.give),
            ring.w_data[0].eq(self.give_number),
        ]
        m.d.sync += [
            head.eq(next_head),
            tail.eq(tail + self.give),
            waiting.eq(waiting + self.give - reused),
            self.fresh.eq(self.fresh + (taken & (waiting == 0))),
        ]
        with m.If(self.clear):
            m.d.sync += [head.eq(0), tail.eq(0), waiting.eq(0), self.fresh.eq(0)]
        return m
