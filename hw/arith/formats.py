"""BF16 and FP32 as layouts, and functions that all floating-point units use.

All units follow the same rules: results are rounded to nearest even; subnormal operands and results are zero; there is
one canonical NaN; infinities and signed zeros are as in IEEE 754.
"""

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data

BIAS = 127
EXPONENT_BITS = 8


def float_layout(fraction_bits: int) -> data.StructLayout:
    """Layout of a format with 8 exponent bits and `fraction_bits` fraction bits, lowest field first."""
    return data.StructLayout({"fraction": fraction_bits, "exponent": EXPONENT_BITS, "sign": 1})


BF16 = float_layout(7)
FP32 = float_layout(23)


def fraction_bits(layout: data.StructLayout) -> int:
    """Fraction bits of a format."""
    return layout.size - 1 - EXPONENT_BITS


def view(layout: data.StructLayout, value: Value) -> data.View:
    """The fields of the code `value` of format `layout`."""
    return data.View(layout, Value.cast(value))


def is_zero(x: data.View) -> Value:
    """Whether x is zero or subnormal. Subnormals are zero."""
    return x.exponent == 0


def is_infinite(x: data.View) -> Value:
    """Whether x is an infinity."""
    return (x.exponent == 255) & (x.fraction == 0)


def is_nan(x: data.View) -> Value:
    """Whether x is a NaN."""
    return (x.exponent == 255) & (x.fraction != 0)


def significand(x: data.View) -> Value:
    """Fraction with its hidden one. The value for zeros is arbitrary."""
    return Cat(x.fraction, Const(1, 1))


def canonical_nan(layout: data.StructLayout) -> Const:
    """Code of the canonical NaN: 0x7FC0 (BF16) or 0x7FC00000 (FP32)."""
    return Const(255 << fraction_bits(layout) | 1 << (fraction_bits(layout) - 1), layout.size)


def infinity(layout: data.StructLayout, sign: Value) -> Value:
    """Code of the infinity of a sign."""
    return Cat(Const(255 << fraction_bits(layout), layout.size - 1), sign)


def zero(layout: data.StructLayout, sign: Value) -> Value:
    """Code of the zero of a sign."""
    return Cat(Const(0, layout.size - 1), sign)


def normalise(m: Module, name: str, value: Value) -> tuple[Value, Value]:
    """`value` shifted left until its top bit is one, and the shift count. A zero remains zero, with an arbitrary count.

    A tree counts the leading zeros of both halves at the same time, so that the count does not depend on the shifts.
    """
    width = len(value)
    levels = (width - 1).bit_length()
    padded = Cat(Const(0, (1 << levels) - width), value)

    def zeros(low: int, level: int) -> tuple[Value, list[Value]]:
        """Whether one of the 2**level bits from `low` on is set, and the number of zeros above it, lowest bit first."""
        if level == 0:
            return padded[low], []
        size = 1 << level - 1
        (high_set, high_count), (low_set, low_count) = zeros(low + size, level - 1), zeros(low, level - 1)
        result = Signal(2 + len(high_count), name=f"{name}_zeros{low}_{level}")
        count = [Mux(high_set, x, y) for x, y in zip(high_count, low_count, strict=True)]
        m.d.comb += result.eq(Cat(high_set | low_set, *count, ~high_set))
        return result[0], list(result[1:])

    _, counts = zeros(0, levels)
    for k, empty in reversed(list(enumerate(counts))):
        step = 1 << k
        shifted = Signal(width, name=f"{name}_by{step}")
        m.d.comb += shifted.eq(Mux(empty, Cat(Const(0, step), value[: width - step]), value))
        value = shifted
    return value, Cat(*counts)


def round_and_pack(m: Module, layout: data.StructLayout, sign: Value, exponent: Value, magnitude: Value) -> Value:
    """Code of a normalised finite number, rounded to nearest even. Underflow gives zero, overflow infinity.

    Parameters
    ----------
    sign : sign bit
    exponent : biased exponent of the top bit before rounding, a signed number
    magnitude : significand, whose top bit is one except for a zero; the lowest bit may be a sticky bit
    """
    precision = fraction_bits(layout) + 1
    if len(magnitude) < precision + 2:
        magnitude = Cat(Const(0, precision + 2 - len(magnitude)), magnitude)
    drop = len(magnitude) - precision
    upper, half, sticky = magnitude[drop:], magnitude[drop - 1], magnitude[: drop - 1].any()
    rounded, up, carry = Signal(precision), Signal(), Signal()
    signed, code = exponent.as_signed(), Signal(layout.size)
    m.d.comb += [
        up.eq(half & (sticky | upper[0])),
        carry.eq(up & upper.all()),  # rounding gives the next power of two, whose fraction is zero
        rounded.eq(upper + up),
    ]
    # both exponents, with and without the carry, are computed in parallel with the rounding
    field = Mux(carry, (signed + 1)[:EXPONENT_BITS], signed[:EXPONENT_BITS])
    with m.If(Mux(carry, signed < 0, signed <= 0) | ~magnitude[-1]):
        m.d.comb += code.eq(zero(layout, sign))
    with m.Elif(Mux(carry, signed >= 254, signed >= 255)):
        m.d.comb += code.eq(infinity(layout, sign))
    with m.Else():
        m.d.comb += code.eq(Cat(rounded[: precision - 1], field, sign))
    return code


def to_bf16(m: Module, name: str, code: Value) -> Value:
    """BF16 code of an FP32 code, rounded to nearest even. Subnormals give zero, a NaN gives the canonical NaN."""
    number, rounded, result = view(FP32, code), Signal(15, name=f"{name}_rounded"), Signal(16, name=name)
    up = code[15] & (code[16] | code[:15].any())
    m.d.comb += rounded.eq(code[16:31] + up)
    with m.If(is_nan(number)):
        m.d.comb += result.eq(canonical_nan(BF16))
    with m.Elif(is_zero(number)):
        m.d.comb += result.eq(zero(BF16, number.sign))
    with m.Else():
        m.d.comb += result.eq(Cat(rounded, number.sign))
    return result
