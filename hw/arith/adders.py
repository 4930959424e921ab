"""Additions built from full adders that synthesis can map to the library's own cells.

A full adder is yosys's `$fa` cell. In RTLIL it stays one cell per word, so that a synthesis flow maps it to
full-adder and half-adder cells; in Verilog it is the plain XOR and AND-OR logic of whole words, which simulates fast.

Many equal additions side by side are written as planes: word k holds bit k of every lane, one bit per lane.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from amaranth import Cat, Const, Instance, Module, Signal, Value


@dataclass(frozen=True)
class Row:
    """An addend whose lowest bit has weight 2**low."""

    value: Value
    low: int = 0


def full_adders(m: Module, a: Value, b: Value, c: Value) -> tuple[Value, Value]:
    """Sum and carry words of independent full adders, one per bit of `a`, `b`, `c` (equal widths)."""
    if not len(a) == len(b) == len(c):
        raise ValueError(f"widths {len(a)}, {len(b)}, {len(c)}: must be equal")
    total, carry = Signal(len(a)), Signal(len(a))
    m.submodules += Instance("$fa", p_WIDTH=len(a), i_A=a, i_B=b, i_C=c, o_Y=total, o_X=carry)
    return total, carry


def heights(tallest: int) -> list[int]:
    """Dadda's column heights below `tallest`, tallest first: 2, 3, 4, 6, 9, 13, ..."""
    found = [2]
    while found[-1] * 3 // 2 < tallest:
        found.append(found[-1] * 3 // 2)
    return found[::-1] if tallest > 2 else []


def carry_save(m: Module, columns: Sequence[Value], lanes: int = 1) -> tuple[list[Value], list[Value]]:
    """Two addends, as planes, whose sum is that of all bits of `columns`, modulo 2**len(columns) (Dadda, 1965).

    The least number of full adders; a half adder (a full adder with a constant 0) only where a column would otherwise
    be one too tall.

    Parameters
    ----------
    columns : the bits of weight 2**k at index k, plane after plane: every `lanes` bits, one of each lane
    lanes : sums side by side
    """
    words = [Value.cast(column) for column in columns]
    for limit in heights(max(len(word) for word in words) // lanes):
        carries: Value = Cat()
        for k, word in enumerate(words):
            excess = max(0, (len(word) + len(carries)) // lanes - limit)
            made: list[tuple[Value, Value]] = []
            for width in [excess // 2] if lanes == 1 else [lanes] * (excess // 2):
                made.append(full_adders(m, *(word[i * width : (i + 1) * width] for i in range(3))))
                word = word[3 * width :]
            if excess % 2:
                made.append(full_adders(m, word[:lanes], word[lanes : 2 * lanes], Const(0, lanes)))
                word = word[2 * lanes :]
            words[k] = Cat(word, *(total for total, _ in made), carries)
            carries = Cat(*(carry for _, carry in made))
    nothing = Const(0, lanes)
    first, second = ([word[at : at + lanes] if len(word) > at else nothing for word in words] for at in (0, lanes))
    return first, second


def ripple_add(m: Module, a: Sequence[Value], b: Sequence[Value]) -> list[Value]:
    """Planes of a + b with the carry out as the last: one full adder per bit, the smallest adder there is.

    Constant zeros take no adder.
    """
    if len(a) != len(b):
        raise ValueError(f"widths {len(a)}, {len(b)}: must be equal")
    planes: list[Value] = []
    carry: Value = Const(0, len(a[0]))
    for x, y in zip(a, b, strict=True):
        given = [value for value in (x, y, carry) if not (isinstance(value, Const) and value.value == 0)]
        nothing = Const(0, len(x))
        if len(given) < 2:
            total, carry = given[0] if given else nothing, nothing
        else:
            total, carry = full_adders(m, *[*given, nothing][:3])
        planes.append(total)
    return [*planes, carry]


def add_rows(m: Module, rows: Sequence[Row], width: int) -> Value:
    """The sum of all `rows` modulo 2**width: a carry-save tree, then an adder of synthesis's choice."""
    columns: list[list[Value]] = [[] for _ in range(width)]
    for row in rows:
        for k in range(min(len(row.value), width - row.low)):
            columns[row.low + k].append(row.value[k])
    first, second = carry_save(m, [Cat(*column) for column in columns])
    return (Cat(*first) + Cat(*second))[:width]


def count_ones(m: Module, word: Value) -> Value:
    """Number of ones in `word`, `len(word).bit_length()` bits wide."""
    width = len(word).bit_length()
    return Cat(*ripple_add(m, *carry_save(m, [word, *[Cat()] * (width - 1)])))[:width]
