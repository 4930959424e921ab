"""FP32 and BF16 operations of `golden.bf16` on single numbers, for compiled loops that LLVM vectorises.

Arguments and results are FP32 bit patterns, uint32. Sums are computed in float32, because a subnormal sum is exact.
Products are computed in float64, because a subnormal product must be rounded to 24 bits before it is flushed.
"""

from __future__ import annotations

import numpy as np

from util.compiled import unowned

NAN = 0x7FC00000
INFINITY = 0x7F800000
SIGN = 0x80000000
MAGNITUDE = 0x7FFFFFFF
SMALLEST_NORMAL = np.float32(2.0**-126)
LARGEST_FLUSHED = 2.0**-126 - 2.0**-151  # numbers below it round to a number below 2**-126
BF16_DROPPED = 45  # fraction bits of float64 that BF16 does not have
MINUS_ZERO, MINUS_INFINITY = np.uint32(SIGN), np.uint32(SIGN | INFINITY)
ONE, ZERO = np.uint32(0x3F800000), np.uint32(0)


@unowned
def real(code):
    """float32 number of a bit pattern; a subnormal number becomes a zero of the same sign."""
    return np.uint32(code if code & INFINITY else code & SIGN).view(np.float32)


@unowned
def encode(value):
    """Bit pattern of a float32 number; subnormal numbers become zero, all NaN become the same one."""
    code = np.float32(value).view(np.uint32)
    code = code if code & INFINITY else code & SIGN
    return np.uint32(NAN if code & MAGNITUDE > INFINITY else code)


@unowned
def round_fp32(value):
    """Bit pattern of a float64 number, rounded to FP32."""
    return encode(np.float32(np.copysign(0.0, value) if abs(value) < LARGEST_FLUSHED else value))


@unowned
def add(x, y):
    """x + y."""
    return encode(real(x) + real(y))


@unowned
def subtract(x, y):
    """x - y."""
    return encode(real(x) - real(y))


@unowned
def multiply(x, y):
    """x * y."""
    return round_fp32(np.float64(real(x)) * np.float64(real(y)))


@unowned
def is_nan(code):
    """Whether a bit pattern is a NaN."""
    return code & MAGNITUDE > INFINITY


@unowned
def ordered(code):
    """int32 in the order of the numbers, -0 below +0; subnormal numbers count as zero, NaN have no order."""
    flushed = np.uint32(code if code & INFINITY else code & SIGN)
    return np.int32(flushed ^ MAGNITUDE if flushed & SIGN else flushed)


@unowned
def maximum(x, y):
    """The larger number; NaN if one is NaN; -0 < +0."""
    x_flushed = np.uint32(x if x & INFINITY else x & SIGN)
    y_flushed = np.uint32(y if y & INFINITY else y & SIGN)
    larger = x_flushed if ordered(x) > ordered(y) else y_flushed
    return np.uint32(NAN if is_nan(x) or is_nan(y) else larger)


@unowned
def greater(x, y):
    """1.0 if x > y, else 0."""
    return ONE if real(x) > real(y) else ZERO


@unowned
def round_bf16(code):
    """FP32 number rounded to BF16, as FP32 number whose lower half is 0."""
    flushed = np.uint32(code if code & INFINITY else code & SIGN)
    rounded = np.uint32(flushed + 0x7FFF + (flushed >> 16 & 1)) & 0xFFFF0000
    return np.uint32(NAN if is_nan(code) else rounded)


@unowned
def divide_bf16(x, y):
    """x / y rounded once to BF16, as FP32 number whose lower half is 0."""
    quotient = np.float64(real(x)) / np.float64(real(y))
    bits = np.float64(quotient).view(np.int64)
    bits = bits + (1 << BF16_DROPPED - 1) - 1 + (bits >> BF16_DROPPED & 1) >> BF16_DROPPED << BF16_DROPPED
    rounded = np.int64(bits).view(np.float64)  # NaN: see below
    return np.uint32(NAN if np.isnan(quotient) else encode(np.float32(rounded)))
