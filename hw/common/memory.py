"""On-chip memory: registers or block memory in the RTL, an SRAM macro in a chip."""

from amaranth import Module, Mux, Signal
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out


class Ram(wiring.Component):
    """Memory with one write port and one read port. A row has `words` words with a write enable each.

    A read and a write of the same row in the same cycle return the new words. The bypass is outside the array, so a
    macro with undefined read-during-write behaviour can replace the array. Without the bypass, the user must not read
    and write the same row in the same cycle.

    Timing: `r_data` has the row `r_addr` one cycle after `r_en`, and keeps it until the cycle after the next `r_en`.

    Parameters
    ----------
    depth : rows
    width : bits of one word
    words : words of one row
    bypass : True: a row can be read and written in the same cycle

    Members
    -------
    w_addr, w_mask, w_data : row to write, write enable of each word, words
    r_addr, r_en, r_data : row to read, read enable, words of the row one cycle later

    Raises
    ------
    ValueError
        When a parameter is below 1.
    """

    latency = 1

    def __init__(self, *, depth: int, width: int, words: int = 1, bypass: bool = True):
        for name, value in (("depth", depth), ("width", width), ("words", words)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self.depth, self.width, self.words, self.bypass = depth, width, words, bypass
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
        """Size of the memory in bits."""
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
        if not self.bypass:
            m.d.comb += self.r_data.eq(read.data)
            return m
        new_mask, new_row = Signal(self.words), Signal(row)  # write to the row that is read
        with m.If(self.r_en):
            m.d.sync += [
                new_mask.eq(Mux(self.w_addr == self.r_addr, self.w_mask, 0)),
                new_row.eq(self.w_data),
            ]
        for word in range(self.words):
            m.d.comb += self.r_data[word].eq(Mux(new_mask[word], new_row[word], read.data[word]))
        return m
