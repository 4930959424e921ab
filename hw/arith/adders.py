"""Carry-save addition of many rows with full adders that synthesis can map to the library's own cells.

A full adder is yosys's `$fa` cell. In RTLIL it stays one cell per word, so that a synthesis flow maps it to
full-adder and half-adder cells; in Verilog it is the plain XOR and majority logic of whole words, which simulates fast.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from amaranth import Cat, Const, Instance, Module, Signal, Value


@dataclass(frozen=True)
class Row:
    """An addend whose lowest bit has weight 2**low."""

    value: Value
    low: int = 0

    @property
    def high(self) -> int:
        """Weight exponent just above the top bit."""
        return self.low + len(self.value)

    def bit(self, column: int) -> Value | None:
        """The bit in `column`, None where the row has none."""
        return self.value[column - self.low] if self.low <= column < self.high else None


def full_adders(m: Module, a: Value, b: Value, c: Value) -> tuple[Value, Value]:
    """Sum and carry words of independent full adders, one per bit of `a`, `b`, `c` (equal widths)."""
    if not len(a) == len(b) == len(c):
        raise ValueError(f"widths {len(a)}, {len(b)}, {len(c)}: must be equal")
    total, carry = Signal(len(a)), Signal(len(a))
    m.submodules += Instance("$fa", p_WIDTH=len(a), i_A=a, i_B=b, i_C=c, o_Y=total, o_X=carry)
    return total, carry


def compress(m: Module, rows: Sequence[Row], width: int) -> list[Row]:
    """Three rows as two of the same sum, modulo 2**width.

    A column with three bits takes a full adder; one with two bits passes both on where no carry comes in, and takes a
    half adder (a full adder with a constant 0) where one does.
    """
    low, high = min(row.low for row in rows), min(width, max(row.high for row in rows))
    columns = [[bit for row in rows if (bit := row.bit(column)) is not None] for column in range(low, high)]
    adds, carry = [], False
    for bits in columns:
        carry = len(bits) == 3 or (len(bits) == 2 and carry)
        adds.append(carry)
    zero = Const(0, 1)
    operands = [[*bits, zero][:3] for bits, add in zip(columns, adds, strict=True) if add]
    if not operands:
        totals, carries = Const(0, 0), Const(0, 0)
    else:
        totals, carries = full_adders(m, *(Cat(*column) for column in zip(*operands, strict=True)))
    first, second, used = [], [], 0
    arriving: Value | None = None
    for bits, add in zip(columns, adds, strict=True):
        leaving = None
        if add:
            first.append(totals[used])
            leaving = carries[used]
            used += 1
            second.append(zero if arriving is None else arriving)
        else:
            waiting = [bit for bit in (*bits, arriving) if bit is not None]
            first.append(waiting[0] if waiting else zero)
            second.append(waiting[1] if len(waiting) > 1 else zero)
        arriving = leaving
    if arriving is not None and high < width:
        second.append(arriving)
    return [Row(Cat(*first), low), Row(Cat(*second), low)]


def carry_save(m: Module, rows: Sequence[Row], width: int) -> tuple[Value, Value]:
    """Two words of `width` bits whose sum is the sum of all `rows`, modulo 2**width."""
    queue = deque(rows)
    while len(queue) > 2:
        queue.extend(compress(m, [queue.popleft() for _ in range(3)], width))
    words = [Cat(Const(0, row.low), row.value)[:width] for row in queue]
    words += [Const(0, width)] * (2 - len(words))
    return words[0], words[1]
