"""Number format of the KV codec: a word of BF16 codes as levels from its minimum to its maximum, with one header.

The numbers of a block are fixed-point numbers with a common exponent. A code k stands for level k of 2**bits equal
steps from the minimum to the maximum. All arithmetic is in integers. Every division has a constant divisor.
"""

# mypy: disable-error-code="assignment,arg-type"

from collections.abc import Sequence
from dataclasses import dataclass

from amaranth import Array, Module, Signal, Value
from amaranth.lib import data

from hw.arith.dot import node

GUARD_BITS = 3  # fraction bits of a fixed-point number below those of a BF16 significand
FIXED_BITS = 9 + GUARD_BITS  # of a signed fixed-point number
LARGEST_SPAN = 2 * (255 << GUARD_BITS)  # from the smallest to the largest fixed-point number

# Fields: `exponent` (exponent field of BF16 that the numbers share; 255: NaN), `low` and `high` (signed limits).
HEADER = data.StructLayout({"exponent": 8, "low": FIXED_BITS, "high": FIXED_BITS})


def packed_layout(lanes: int, bits: int) -> data.StructLayout:
    """Layout of an encoded word: `codes` of all elements, `header`."""
    return data.StructLayout({"codes": data.ArrayLayout(bits, lanes), "header": HEADER})


def check_sizes(lanes: int, bits: int) -> None:
    """Check the sizes of a codec. Raises `ValueError` for an invalid size."""
    if lanes < 2 or lanes & (lanes - 1):
        raise ValueError(f"lanes must be a power of two, at least 2, got {lanes}")
    if not 2 <= bits <= 4:
        raise ValueError(f"bits must be 2 to 4, got {bits}")


def choose(m: Module, selected: Sequence[Value], options: Sequence[Value]) -> Value:
    """One bit per lane: the option whose number has the bits `selected`, highest first. An option is a single bit."""
    lanes = len(selected[0]) if selected else 1
    level = [option.replicate(lanes) for option in options]
    for select in reversed(selected):
        pairs = zip(level[::2], level[1::2], strict=True)
        level = [node(m, "choice", select & high | ~select & low) for low, high in pairs]
    return level[0]


@dataclass(frozen=True)
class Division:
    """floor(n / divisor) = n * factor >> shift, exact for n from 0 to `largest`."""

    divisor: int
    largest: int

    @property
    def factor_and_shift(self) -> tuple[int, int]:
        """The smallest exact shift, and its factor."""
        shift = 0
        while True:
            factor = -(-(1 << shift) // self.divisor)
            # the error grows with n and matters most where the remainder is largest
            last = self.largest - (self.largest + 1) % self.divisor
            if (factor * self.divisor - (1 << shift)) * max(last, 0) < 1 << shift:
                return factor, shift
            shift += 1

    def of(self, m: Module, name: str, value: Value) -> tuple[Signal, Signal]:
        """Quotient and remainder of `value`, which is at most `largest`."""
        factor, shift = self.factor_and_shift
        quotient = Signal(range(self.largest // self.divisor + 1), name=f"{name}_quotient")
        remainder = Signal(range(self.divisor), name=f"{name}_remainder")
        m.d.comb += [
            quotient.eq((value * factor)[shift : shift + len(quotient)]),
            remainder.eq((value - quotient * self.divisor)[: len(remainder)]),
        ]
        return quotient, remainder


class Steps:
    """Multiples of a span that are divided by 2 * steps, rounded down: floor((c * span + offset) / (2 * steps)).

    With span = 2 * steps * q + r the result is c * q + floor((c * r + offset) / (2 * steps)). The last term is a table
    of r. Only q and r need a division, one for a block.
    """

    def __init__(self, bits: int):
        self.steps = (1 << bits) - 1
        self.division = Division(2 * self.steps, LARGEST_SPAN)

    def multiple(self, quotient: Value, remainder: Value, factor: int, offset: int = 0) -> Value:
        """The multiple for c = `factor`, `FIXED_BITS` wide."""
        divisor = self.division.divisor
        table = Array([(factor * r + offset) // divisor for r in range(divisor)])
        return (quotient * factor + table[remainder])[:FIXED_BITS]
