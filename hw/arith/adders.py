"""Additions built from full adders that synthesis can map to the library's own cells.

A full adder is yosys's `$fa` cell. In RTLIL it stays one cell per word, so that a synthesis flow maps it to
full-adder and half-adder cells; in Verilog it is the plain XOR and AND-OR logic of whole words, which simulates fast.
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


def carry_save(m: Module, rows: Sequence[Row], width: int) -> tuple[Value, Value]:
    """Two words of `width` bits whose sum is the sum of all `rows`, modulo 2**width (Dadda, 1965).

    The least number of full adders; a half adder (a full adder with a constant 0) only where a column would otherwise
    be one too tall. Adders of one rank in neighbouring columns stand in one word.
    """
    columns: list[list[Value]] = [[] for _ in range(width)]
    for row in rows:
        for k in range(min(len(row.value), width - row.low)):
            columns[row.low + k].append(row.value[k])
    for limit in heights(max(len(column) for column in columns)):
        ranks: list[dict[int, list[Value]]] = []  # by rank: column -> three bits to add
        arriving = 0
        for k, column in enumerate(columns):
            rank = 0
            while (excess := len(column) + rank + arriving - limit) > 0:
                taken, columns[k] = column[: 2 + (excess > 1)], column[2 + (excess > 1) :]
                column = columns[k]
                if rank == len(ranks):
                    ranks.append({})
                ranks[rank][k] = [*taken, Const(0, 1)][:3]
                rank += 1
            arriving = rank
        for adders in ranks:
            totals, carries = full_adders(m, *(Cat(*bits) for bits in zip(*adders.values(), strict=True)))
            for i, k in enumerate(adders):
                columns[k].append(totals[i])
                if k + 1 < width:
                    columns[k + 1].append(carries[i])
    words = [Cat(*((*column, Const(0, 1), Const(0, 1))[word] for column in columns)) for word in (0, 1)]
    return words[0], words[1]


def ripple_add(m: Module, a: Value, b: Value, carry: Value | int = 0) -> Value:
    """a + b + carry with its carry out, equal widths: one full adder per bit, the smallest adder there is."""
    if len(a) != len(b):
        raise ValueError(f"widths {len(a)}, {len(b)}: must be equal")
    bits = []
    carried = Const(carry, 1) if isinstance(carry, int) else carry
    for k in range(len(a)):
        total, carried = full_adders(m, a[k], b[k], carried)
        bits.append(total)
    return Cat(*bits, carried)
