"""BF16 and FP32 as payload layouts, and the steps that every floating-point unit shares.

The rules are those of the whole project: round to nearest even, subnormals are zero going in and coming out, one
canonical NaN, infinities and signed zeros as IEEE 754.
"""

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data

BIAS = 127
EXPONENT_BITS = 8


def float_layout(fraction_bits: int) -> data.StructLayout:
    """Layout of a format with 8 exponent bits, lowest field first."""
    return data.StructLayout({"fraction": fraction_bits, "exponent": EXPONENT_BITS, "sign": 1})


BF16 = float_layout(7)
FP32 = float_layout(23)


def fraction_bits(layout: data.StructLayout) -> int:
    return layout.size - 1 - EXPONENT_BITS


def view(layout: data.StructLayout, value: Value) -> data.View:
    """`value` seen as a number of format `layout`."""
    return data.View(layout, Value.cast(value))


def is_zero(x: data.View) -> Value:
    """Zero or subnormal, which counts as zero."""
    return x.exponent == 0


def is_infinite(x: data.View) -> Value:
    return (x.exponent == 255) & (x.fraction == 0)


def is_nan(x: data.View) -> Value:
    return (x.exponent == 255) & (x.fraction != 0)


def significand(x: data.View) -> Value:
    """Fraction with its hidden one; meaningless for zeros."""
    return Cat(x.fraction, Const(1, 1))


def canonical_nan(layout: data.StructLayout) -> Const:
    return Const(255 << fraction_bits(layout) | 1 << (fraction_bits(layout) - 1), layout.size)


def infinity(layout: data.StructLayout, sign: Value) -> Value:
    return Cat(Const(255 << fraction_bits(layout), layout.size - 1), sign)


def zero(layout: data.StructLayout, sign: Value) -> Value:
    return Cat(Const(0, layout.size - 1), sign)


def normalise(m: Module, name: str, value: Value) -> tuple[Value, Value]:
    """`value` shifted left until its top bit is one, and by how much. A zero stays zero, with any shift count.

    The count does not wait for the shifts: halves of ever larger parts are counted side by side.
    """
    width = len(value)
    levels = (width - 1).bit_length()
    padded = Cat(Const(0, (1 << levels) - width), value)

    def zeros(low: int, level: int) -> tuple[Value, list[Value]]:
        """Of the 2**level bits from `low` on: whether any is one, and the zeros above it, lowest bit first."""
        if level == 0:
            return padded[low], []
        size = 1 << level - 1
        (some, few), (lower, many) = zeros(low + size, level - 1), zeros(low, level - 1)
        found = Signal(2 + len(few), name=f"{name}_zeros{low}_{level}")
        m.d.comb += found.eq(Cat(some | lower, *(Mux(some, x, y) for x, y in zip(few, many, strict=True)), ~some))
        return found[0], list(found[1:])

    _, counts = zeros(0, levels)
    for k, empty in reversed(list(enumerate(counts))):
        step = 1 << k
        moved = Signal(width, name=f"{name}_by{step}")
        m.d.comb += moved.eq(Mux(empty, Cat(Const(0, step), value[: width - step]), value))
        value = moved
    return value, Cat(*counts)


def round_and_pack(m: Module, layout: data.StructLayout, sign: Value, exponent: Value, magnitude: Value) -> Value:
    """Code of a normalised finite number, rounded to nearest even, flushed to zero or infinity.

    Parameters
    ----------
    exponent : signed biased exponent field of the top bit, before rounding
    magnitude : top bit is one, except for a zero; the lowest bit may be sticky
    """
    precision = fraction_bits(layout) + 1
    if len(magnitude) < precision + 2:
        magnitude = Cat(Const(0, precision + 2 - len(magnitude)), magnitude)
    drop = len(magnitude) - precision
    kept, half, rest = magnitude[drop:], magnitude[drop - 1], magnitude[: drop - 1].any()
    rounded, up, carry = Signal(precision), Signal(), Signal()
    signed, code = exponent.as_signed(), Signal(layout.size)
    m.d.comb += [
        up.eq(half & (rest | kept[0])),
        carry.eq(up & kept.all()),  # out of the rounding, which leaves a fraction of zero
        rounded.eq(kept + up),
    ]
    # what the exponent means with a carry and without is worked out beside the rounding
    field = Mux(carry, (signed + 1)[:EXPONENT_BITS], signed[:EXPONENT_BITS])
    with m.If(Mux(carry, signed < 0, signed <= 0) | ~magnitude[-1]):
        m.d.comb += code.eq(zero(layout, sign))
    with m.Elif(Mux(carry, signed >= 254, signed >= 255)):
        m.d.comb += code.eq(infinity(layout, sign))
    with m.Else():
        m.d.comb += code.eq(Cat(rounded[: precision - 1], field, sign))
    return code


def to_bf16(m: Module, name: str, code: Value) -> Value:
    """BF16 code of an FP32 code, rounded to nearest even; subnormals give zero, NaN the canonical one."""
    number, rounded, result = view(FP32, code), Signal(15, name=f"{name}_kept"), Signal(16, name=name)
    up = code[15] & (code[16] | code[:15].any())
    m.d.comb += rounded.eq(code[16:31] + up)
    with m.If(is_nan(number)):
        m.d.comb += result.eq(canonical_nan(BF16))
    with m.Elif(is_zero(number)):
        m.d.comb += result.eq(zero(BF16, number.sign))
    with m.Else():
        m.d.comb += result.eq(Cat(rounded, number.sign))
    return result
