"""Free list of the KVMU: allocates the numbers 0 to size - 1."""

from amaranth import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.common.memory import Ram


class FreeList(wiring.Component):
    """Allocates numbers below `size`: released numbers first, oldest first, then numbers that were never used.

    A counter gives the numbers that were never used, so the memory needs no initialisation. `allocate` is ignored
    while no number is available. Only allocated numbers may be released, each of them once.

    Timing: `number` and `available` can change in every cycle. A released number can be allocated in the next cycle.

    Parameters
    ----------
    size : numbers, a power of two, at least 2

    Members
    -------
    available, number : a number is available, and the number that `allocate` allocates
    allocate : `number` is now in use
    release, release_number : this number is free again
    clear : all numbers are free
    never_used : this number and all larger ones were never allocated since `clear`

    Raises
    ------
    ValueError
        If `size` is not a power of two of at least 2.
    """

    def __init__(self, *, size: int):
        if size < 2 or size & (size - 1):
            raise ValueError(f"size must be a power of two, at least 2, got {size}")
        self.size = size
        super().__init__(
            {
                "available": Out(1),
                "number": Out(range(size)),
                "allocate": In(1),
                "release": In(1),
                "release_number": In(range(size)),
                "clear": In(1),
                "never_used": Out(range(size + 1)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.ring = ring = Ram(depth=self.size, width=len(self.number))
        head, tail = Signal(range(self.size)), Signal(range(self.size))
        waiting = Signal(range(self.size + 1))
        allocated, reused, next_head = Signal(), Signal(), Signal(range(self.size))
        m.d.comb += [
            self.available.eq((waiting != 0) | (self.never_used != self.size)),
            self.number.eq(Mux(waiting != 0, ring.r_data[0], self.never_used[: len(self.number)])),
            allocated.eq(self.allocate & self.available),
            reused.eq(allocated & (waiting != 0)),
            next_head.eq(head + reused),
            ring.r_addr.eq(next_head),
            ring.r_en.eq(1),
            ring.w_addr.eq(tail),
            ring.w_mask.eq(self.release),
            ring.w_data[0].eq(self.release_number),
        ]
        m.d.sync += [
            head.eq(next_head),
            tail.eq(tail + self.release),
            waiting.eq(waiting + self.release - reused),
            self.never_used.eq(self.never_used + (allocated & (waiting == 0))),
        ]
        with m.If(self.clear):
            m.d.sync += [head.eq(0), tail.eq(0), waiting.eq(0), self.never_used.eq(0)]
        return m
