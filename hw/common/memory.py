"""On-chip memories: registers or block memory in the RTL, SRAM macros in a chip.

| class | ports of the macro | reads and writes in one cycle |
|---|---|---|
| `Ram` | two | yes |
| `LatchRam` | two | yes, without a bypass |
| `SinglePortRam` | one | no |
| `BufferedRam` | one | yes, with a cycle without a read between two writes |

A macro with one port has about half the area of one with a read and a write port.
"""

from amaranth import Module, Mux, Signal, Value
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
        super().__init__(
            {
                "w_addr": In(range(depth)),
                "w_mask": In(words),
                "w_data": In(self.row),
                "r_addr": In(range(depth)),
                "r_en": In(1),
                "r_data": Out(self.row),
            }
        )

    @property
    def row(self) -> data.ArrayLayout:
        """Layout of a row."""
        return data.ArrayLayout(self.width, self.words)

    @property
    def bits(self) -> int:
        """Size of the memory in bits."""
        return self.depth * self.width * self.words

    def elaborate(self, platform: object) -> Module:
        m = Module()
        write, read = self._array(m)
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
        new_mask, new_row = Signal(self.words), Signal(self.row)  # write to the row that is read
        with m.If(self.r_en):
            m.d.sync += [
                new_mask.eq(Mux(self.w_addr == self.r_addr, self.w_mask, 0)),
                new_row.eq(self.w_data),
            ]
        self._show(m, new_mask, new_row, read.data)
        return m

    def _array(self, m: Module) -> tuple[wiring.PureInterface, wiring.PureInterface]:
        """The array with a write port and a read port."""
        m.submodules.array = array = memory.Memory(shape=self.row, depth=self.depth, init=[])
        return array.write_port(granularity=1), array.read_port()

    def _show(self, m: Module, new_mask: Value, new_row: data.View, row: data.View) -> None:
        """Drive `r_data`: the words in `new_mask` from `new_row`, the others from `row`."""
        for word in range(self.words):
            m.d.comb += self.r_data[word].eq(Mux(new_mask[word], new_row[word], row[word]))


class LatchRam(Ram):
    """Memory of few rows, for an array of latches with a registered read address.

    Such an array shows the new words when a row is read and written in the same cycle; it needs no bypass. A flow
    without such an array builds the memory from flip-flops.

    Timing, parameters and members: see `Ram`. `r_data` is valid for one cycle.

    Raises
    ------
    ValueError
        When a parameter is below 1, or `depth` is above `MAX_DEPTH`.
    """

    MAX_DEPTH = 16

    def __init__(self, *, depth: int, width: int, words: int = 1):
        if depth > self.MAX_DEPTH:
            raise ValueError(f"depth must be at most {self.MAX_DEPTH}, got {depth}")
        super().__init__(depth=depth, width=width, words=words, bypass=False)

    def _array(self, m: Module) -> tuple[wiring.PureInterface, wiring.PureInterface]:
        m.submodules.array = array = memory.Memory(shape=self.row, depth=self.depth, init=[])
        write = array.write_port(granularity=1)
        return write, array.read_port(transparent_for=(write,))


class SinglePortRam(Ram):
    """Memory with one port for reads and writes. In a cycle with a write, `r_en` has no effect.

    Timing, parameters and members: see `Ram`. A write does not change `r_data`.
    """

    def __init__(self, *, depth: int, width: int, words: int = 1):
        super().__init__(depth=depth, width=width, words=words, bypass=False)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        write, read = self._array(m)
        address = Signal.like(self.r_addr)
        m.d.comb += [
            address.eq(Mux(self.w_mask.any(), self.w_addr, self.r_addr)),
            write.addr.eq(address),
            write.data.eq(self.w_data),
            write.en.eq(self.w_mask),
            read.addr.eq(address),
            read.en.eq(self.r_en & ~self.w_mask.any()),
            self.r_data.eq(read.data),
        ]
        return m


class BufferedRam(Ram):
    """Memory with one port for reads and writes, and a register for a write that waits for a cycle without a read.

    A write enters the register and leaves it in the next cycle without a read. The user must leave such a cycle between
    two writes; it can be the cycle of the second write. A read returns the words of all earlier writes and of the write
    in the same cycle.

    Timing: `r_data` has the row `r_addr` one cycle after `r_en`, and keeps it until the cycle after the next read or
    write. Parameters and members: see `Ram`.
    """

    def __init__(self, *, depth: int, width: int, words: int = 1):
        super().__init__(depth=depth, width=width, words=words)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        write, read = self._array(m)
        address, arrives = Signal.like(self.r_addr), Signal()
        addr, mask, row = Signal.like(self.w_addr), Signal(self.words), Signal(self.row)  # the write in the register
        new_mask = Signal(self.words)  # words of the row that was read that are in the register
        hit = Mux(self.w_addr == self.r_addr, self.w_mask, 0)
        waiting_hit = Mux(addr == self.r_addr, mask, 0)
        m.d.comb += [
            arrives.eq(self.w_mask.any()),
            address.eq(Mux(self.r_en, self.r_addr, addr)),
            write.addr.eq(address),
            write.data.eq(row),
            write.en.eq(Mux(self.r_en, 0, mask)),
            read.addr.eq(address),
            read.en.eq(self.r_en),
        ]
        with m.If(arrives):
            m.d.sync += [addr.eq(self.w_addr), mask.eq(self.w_mask), row.eq(self.w_data)]
        with m.Elif(~self.r_en):
            m.d.sync += mask.eq(0)
        with m.If(self.r_en):
            m.d.sync += new_mask.eq(Mux(arrives, hit, waiting_hit))
        self._show(m, new_mask, row, read.data)
        return m
