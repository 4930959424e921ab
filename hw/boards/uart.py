"""Serial port, 8 data bits, no parity, one stop bit: bytes in, bytes out."""

from amaranth import Cat, Module, Signal
from amaranth.lib import cdc, stream, wiring
from amaranth.lib.wiring import In, Out


def check_divisor(divisor: int) -> None:
    """Raise `ValueError` unless a bit can last that many cycles."""
    if divisor < 4:
        raise ValueError(f"divisor = {divisor}: must be at least 4 cycles per bit")


class Receiver(wiring.Component):
    """Bytes from a line that rests at 1.

    Timing: a byte is valid after the middle of its stop bit, and lost when the one before it was not taken by then.

    Parameters
    ----------
    divisor : cycles of one bit

    Members
    -------
    rx : the line, asynchronous ; o : stream of bytes ; lost : a byte was lost, or had no stop bit; stays
    """

    def __init__(self, *, divisor: int):
        check_divisor(divisor)
        self.divisor = divisor
        super().__init__({"rx": In(1, init=1), "o": Out(stream.Signature(8)), "lost": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        line = Signal(init=1)
        m.submodules.synchroniser = cdc.FFSynchronizer(self.rx, line, init=1)
        wait, left, bits = Signal(range(self.divisor * 3 // 2)), Signal(range(10)), Signal(8)
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        with m.If((left == 0) & ~line):  # the start bit; the middle of the first data bit is one and a half bits away
            m.d.sync += [left.eq(9), wait.eq(self.divisor * 3 // 2 - 1)]
        with m.Elif((left != 0) & (wait != 0)):
            m.d.sync += wait.eq(wait - 1)
        with m.Elif(left != 0):
            m.d.sync += [left.eq(left - 1), wait.eq(self.divisor - 1), bits.eq(Cat(bits[1:], line))]
            with m.If(left == 1):
                with m.If(line & (~self.o.valid | self.o.ready)):
                    m.d.sync += [self.o.valid.eq(1), self.o.payload.eq(bits)]
                with m.Else():
                    m.d.sync += self.lost.eq(1)
        return m


class Transmitter(wiring.Component):
    """Bytes onto a line that rests at 1.

    Timing: one byte in ten bits.

    Parameters
    ----------
    divisor : cycles of one bit

    Members
    -------
    i : stream of bytes ; tx : the line
    """

    def __init__(self, *, divisor: int):
        check_divisor(divisor)
        self.divisor = divisor
        super().__init__({"i": In(stream.Signature(8)), "tx": Out(1, init=1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        wait, left, bits = Signal(range(self.divisor)), Signal(range(11)), Signal(9, init=-1)
        m.d.comb += self.i.ready.eq((left == 0) & (wait == 0))
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += [self.tx.eq(0), bits.eq(Cat(self.i.payload, 1)), left.eq(9), wait.eq(self.divisor - 1)]
        with m.Elif(wait != 0):
            m.d.sync += wait.eq(wait - 1)
        with m.Elif(left != 0):
            m.d.sync += [self.tx.eq(bits[0]), bits.eq(Cat(bits[1:], 1)), left.eq(left - 1), wait.eq(self.divisor - 1)]
        return m
