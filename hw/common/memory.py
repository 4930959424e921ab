"""The one wrapper of on-chip memory: register file in the RTL, replaced by an SRAM macro in a chip."""

from amaranth import Module, Mux, Signal
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out


class Ram(wiring.Component):
    """Memory with one write and one read port; each row holds `words` words that are written one by one.

    A read that meets a write of the same row in the same cycle returns the new words: the bypass stands outside
    the array, so a macro whose read-during-write is undefined can take the array's place.

    Timing: `r_data` belongs to the `r_addr` of the last cycle in which `r_en` was high; it holds until the next.

    Parameters
    ----------
    depth : rows
    width : bits of one word
    words : words of one row

    Members
    -------
    w_addr, w_mask, w_data : row, one bit per word, words to write
    r_addr, r_en, r_data : row to read, enable, words read (one cycle later)
    """

    latency = 1

    def __init__(self, *, depth: int, width: int, words: int = 1):
        for name, value in (("depth", depth), ("width", width), ("words", words)):
            if value < 1:
                raise ValueError(f"{name} = {value}: must be at least 1")
        self.depth, self.width, self.words = depth, width, words
        row = data.ArrayLayout(width, words)
        super().__init__(
            {
                "w_addr": In(range(depth)),
                "w_mask": In(words),
                "w_data": In(row),
                "r_addr": In(range(depth)),
                "r_en": In(1),
                "r_data": Out(row),
            }
        )

    @property
    def bits(self) -> int:
        """Storage in bits."""
        return self.depth * self.width * self.words

    def elaborate(self, platform: object) -> Module:
        m = Module()
        row = data.ArrayLayout(self.width, self.words)
        m.submodules.array = array = memory.Memory(shape=row, depth=self.depth, init=[])
        write = array.write_port(granularity=1)
        read = array.read_port()
        m.d.comb += [
            write.addr.eq(self.w_addr),
            write.data.eq(self.w_data),
            write.en.eq(self.w_mask),
            read.addr.eq(self.r_addr),
            read.en.eq(self.r_en),
        ]
        fresh_mask = Signal(self.words)
        fresh = Signal(row)
        with m.If(self.r_en):
            m.d.sync += [
                fresh_mask.eq(Mux(self.w_addr == self.r_addr, self.w_mask, 0)),
                fresh.eq(self.w_data),
            ]
        for word in range(self.words):
            m.d.comb += self.r_data[word].eq(Mux(fresh_mask[word], fresh[word], read.data[word]))
        return m
