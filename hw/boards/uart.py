"""Receiver and transmitter of a serial line with 8 data bits, no parity and one stop bit."""

from amaranth import Cat, Module, Signal
from amaranth.lib import cdc, stream, wiring
from amaranth.lib.wiring import In, Out


def check_divisor(divisor: int) -> None:
    """Check the cycles per bit. Raises `ValueError` when a bit is too short."""
    if divisor < 4:
        raise ValueError(f"divisor must be at least 4 cycles per bit, got {divisor}")


class Receiver(wiring.Component):
    """Receives bytes from a serial line, whose idle level is 1.

    Timing: a byte is valid after the middle of its stop bit. It is lost if the previous byte is not accepted by then.

    Parameters
    ----------
    divisor : cycles of one bit, at least 4

    Members
    -------
    rx : serial line, asynchronous
    o : stream of bytes
    lost : 1 from the time on when a byte was lost or had no stop bit
    """

    def __init__(self, *, divisor: int):
        check_divisor(divisor)
        self.divisor = divisor
        super().__init__({"rx": In(1, init=1), "o": Out(stream.Signature(8)), "lost": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        line = Signal(init=1)
        m.submodules.synchroniser = cdc.FFSynchronizer(self.rx, line, init=1)
        wait, bits_remaining, bits = Signal(range(self.divisor * 3 // 2)), Signal(range(10)), Signal(8)
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        with m.If((bits_remaining == 0) & ~line):  # start bit; the middle of the first data bit follows after 1.5 bits
            m.d.sync += [bits_remaining.eq(9), wait.eq(self.divisor * 3 // 2 - 1)]
        with m.Elif((bits_remaining != 0) & (wait != 0)):
            m.d.sync += wait.eq(wait - 1)
        with m.Elif(bits_remaining != 0):
            m.d.sync += [bits_remaining.eq(bits_remaining - 1), wait.eq(self.divisor - 1), bits.eq(Cat(bits[1:], line))]
            with m.If(bits_remaining == 1):
                with m.If(line & (~self.o.valid | self.o.ready)):
                    m.d.sync += [self.o.valid.eq(1), self.o.payload.eq(bits)]
                with m.Else():
                    m.d.sync += self.lost.eq(1)
        return m


class Transmitter(wiring.Component):
    """Sends bytes to a serial line, whose idle level is 1.

    Timing: one byte takes ten bits.

    Parameters
    ----------
    divisor : cycles of one bit, at least 4

    Members
    -------
    i : stream of bytes
    tx : serial line
    """

    def __init__(self, *, divisor: int):
        check_divisor(divisor)
        self.divisor = divisor
        super().__init__({"i": In(stream.Signature(8)), "tx": Out(1, init=1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        wait, bits_remaining, bits = Signal(range(self.divisor)), Signal(range(11)), Signal(9, init=-1)
        m.d.comb += self.i.ready.eq((bits_remaining == 0) & (wait == 0))
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += [
                self.tx.eq(0),
                bits.eq(Cat(self.i.payload, 1)),
                bits_remaining.eq(9),
                wait.eq(self.divisor - 1),
            ]
        with m.Elif(wait != 0):
            m.d.sync += wait.eq(wait - 1)
        with m.Elif(bits_remaining != 0):
            m.d.sync += [
                self.tx.eq(bits[0]),
                bits.eq(Cat(bits[1:], 1)),
                bits_remaining.eq(bits_remaining - 1),
                wait.eq(self.divisor - 1),
            ]
        return m
