"""Adders made of full adders, which synthesis can map to full-adder cells of a library.

A full adder is the yosys cell `$fa`. RTLIL has one cell per word, and a synthesis flow maps it to full-adder and
half-adder cells. The Verilog has XOR and AND-OR logic on words, which simulates fast.

Many equal additions are written as planes: word k has bit k of all lanes, one bit per lane.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from amaranth import Cat, Const, Instance, Module, Signal, Value


@dataclass(frozen=True)
class Addend:
    """A number with the weight 2**low of its lowest bit."""

    value: Value
    low: int = 0


def full_adders(m: Module, a: Value, b: Value, c: Value) -> tuple[Value, Value]:
    """Sum and carry words of independent full adders, one per bit of `a`, `b` and `c`, which have equal widths."""
    if not len(a) == len(b) == len(c):
        raise ValueError(f"widths of a, b, c must be equal, got {len(a)}, {len(b)}, {len(c)}")
    total, carry = Signal(len(a)), Signal(len(a))
    m.submodules += Instance("$fa", p_WIDTH=len(a), i_A=a, i_B=b, i_C=c, o_Y=total, o_X=carry)
    return total, carry


def heights(tallest: int) -> list[int]:
    """Column heights of Dadda's method below `tallest`, in falling order. The heights are 2, 3, 4, 6, 9, 13, ..."""
    limits = [2]
    while limits[-1] * 3 // 2 < tallest:
        limits.append(limits[-1] * 3 // 2)
    return limits[::-1] if tallest > 2 else []


def carry_save(m: Module, columns: Sequence[Value], lanes: int = 1) -> tuple[list[Value], list[Value]]:
    """Reduce the bits of `columns` to two addends with the same sum modulo 2**len(columns), as planes (Dadda, 1965).

    The number of full adders is minimal. A half adder, which is a full adder with a constant 0, is used where a column
    exceeds its height by one bit.

    Parameters
    ----------
    columns : index k has the bits of weight 2**k; each group of `lanes` bits has one bit per lane
    lanes : number of independent sums
    """
    words = [Value.cast(column) for column in columns]
    for limit in heights(max(len(word) for word in words) // lanes):
        carries: Value = Cat()
        for k, word in enumerate(words):
            excess = max(0, (len(word) + len(carries)) // lanes - limit)
            adders: list[tuple[Value, Value]] = []  # sum and carry
            for width in [excess // 2] if lanes == 1 else [lanes] * (excess // 2):
                adders.append(full_adders(m, *(word[i * width : (i + 1) * width] for i in range(3))))
                word = word[3 * width :]
            if excess % 2:
                adders.append(full_adders(m, word[:lanes], word[lanes : 2 * lanes], Const(0, lanes)))
                word = word[2 * lanes :]
            words[k] = Cat(word, *(total for total, _ in adders), carries)
            carries = Cat(*(carry for _, carry in adders))
    zeros = Const(0, lanes)
    first, second = ([word[at : at + lanes] if len(word) > at else zeros for word in words] for at in (0, lanes))
    return first, second


def ripple_add(m: Module, a: Sequence[Value], b: Sequence[Value]) -> list[Value]:
    """Planes of a + b, followed by the plane of the carry out: a ripple-carry adder with one full adder per bit.

    A bit with two constant zeros needs no adder.
    """
    if len(a) != len(b):
        raise ValueError(f"widths of a, b must be equal, got {len(a)}, {len(b)}")
    planes: list[Value] = []
    carry: Value = Const(0, len(a[0]))
    for x, y in zip(a, b, strict=True):
        operands = [value for value in (x, y, carry) if not (isinstance(value, Const) and value.value == 0)]
        zeros = Const(0, len(x))
        if len(operands) < 2:
            total, carry = operands[0] if operands else zeros, zeros
        else:
            total, carry = full_adders(m, *[*operands, zeros][:3])
        planes.append(total)
    return [*planes, carry]


def add_all(m: Module, addends: Sequence[Addend], width: int) -> Value:
    """Sum of all addends modulo 2**width: a carry-save tree, then an adder that synthesis selects."""
    columns: list[list[Value]] = [[] for _ in range(width)]
    for addend in addends:
        for k in range(min(len(addend.value), width - addend.low)):
            columns[addend.low + k].append(addend.value[k])
    first, second = carry_save(m, [Cat(*column) for column in columns])
    return (Cat(*first) + Cat(*second))[:width]


def count_ones(m: Module, word: Value) -> Value:
    """Number of ones in `word`, with `len(word).bit_length()` bits."""
    width = len(word).bit_length()
    return Cat(*ripple_add(m, *carry_save(m, [word, *[Cat()] * (width - 1)])))[:width]
