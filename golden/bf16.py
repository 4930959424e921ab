"""BF16 and FP32 arithmetic with the rules of the LXE. All functions take and return bit patterns.

Every operation rounds once, to nearest, ties to even. Subnormal operands and results are zeros of the same sign. (A
result is flushed after it is rounded to the precision of the format, as if the exponent had no lower limit.) All NaN
results are the same positive quiet NaN. Infinities and signed zeros follow IEEE 754.

The functions compute in float64 and round twice. The result equals that of one rounding, because float64 holds 53 bits
and 53 >= 2 * 24 + 2.
"""

from dataclasses import dataclass

import numpy as np

from util import checks

EXPONENT_MAX = 255  # exponent field of infinities and NaN; both formats have 8 exponent bits
BIAS = 127


@dataclass(frozen=True)
class Format:
    """Binary floating-point format with 1 sign bit, 8 exponent bits and `fraction_bits` fraction bits."""

    name: str
    fraction_bits: int
    dtype: type[np.unsignedinteger]

    @property
    def width(self) -> int:
        """Bits of a number."""
        return 9 + self.fraction_bits

    @property
    def infinity(self) -> int:
        """Bit pattern of +infinity."""
        return EXPONENT_MAX << self.fraction_bits

    @property
    def nan(self) -> int:
        """Bit pattern of the NaN that all operations return."""
        return self.infinity | 1 << (self.fraction_bits - 1)


BF16 = Format("BF16", 7, np.uint16)
FP32 = Format("FP32", 23, np.uint32)
BF16_ONE = 0x3F80  # bit pattern of 1.0


def codes(name: str, value: object, fmt: Format = BF16) -> np.ndarray:
    """Check that `value` is an array of bit patterns and return it.

    Raises ArgumentTypeError unless its dtype is the unsigned integer type of `fmt` (uint16 or uint32).
    """
    array = np.asarray(value)
    if array.dtype != fmt.dtype:
        raise checks.ArgumentTypeError(
            f"{name} must hold {fmt.name} bit patterns ({np.dtype(fmt.dtype).name}), got dtype {array.dtype}"
        )
    return array


def encode(value: np.ndarray | float, fmt: Format = BF16) -> np.ndarray:
    """Bit patterns of real numbers, rounded to nearest even. Takes float64 or anything that converts to it exactly."""
    array = np.asarray(value, np.float64)
    bits = np.atleast_1d(array).view(np.int64)
    drop = 52 - fmt.fraction_bits
    magnitude = bits & ((1 << 63) - 1)
    is_nan = magnitude > 0x7FF << 52
    magnitude += (magnitude >> drop & 1) + ((1 << (drop - 1)) - 1)  # can wrap for NaN
    magnitude >>= drop
    magnitude -= (1023 - BIAS) << fmt.fraction_bits
    np.minimum(magnitude, fmt.infinity, out=magnitude)
    magnitude[magnitude < 1 << fmt.fraction_bits] = 0
    magnitude |= bits >> 63 & 1 << (fmt.width - 1)
    magnitude[is_nan] = fmt.nan
    return magnitude.astype(fmt.dtype).reshape(array.shape)


def decode(code: np.ndarray, fmt: Format = BF16) -> np.ndarray:
    """Real numbers of bit patterns, float64, exact. Subnormals give zeros of the same sign."""
    code = codes("code", code, fmt)
    return _BF16_VALUES[code] if fmt is BF16 else _decode(code, fmt)


def _decode(code: np.ndarray, fmt: Format) -> np.ndarray:
    """As `decode`, computed from the fields of the numbers."""
    code = code.astype(np.uint32)
    code = np.where(code >> fmt.fraction_bits & 0xFF, code, code >> (fmt.width - 1) << (fmt.width - 1))
    with np.errstate(invalid="ignore"):  # signalling NaN
        return (code << (32 - fmt.width)).astype(np.uint32).view(np.float32).astype(np.float64)


_BF16_VALUES = _decode(np.arange(1 << BF16.width), BF16)  # of all codes


def convert(code: np.ndarray, source: Format, target: Format) -> np.ndarray:
    """Bit patterns of one format converted to another: exact from BF16 to FP32, rounded from FP32 to BF16."""
    return encode(decode(code, source), target)


def _operands(a: np.ndarray, b: np.ndarray, fmt: Format) -> tuple[np.ndarray, np.ndarray]:
    """Real numbers of two operands whose shapes broadcast."""
    try:
        np.broadcast_shapes(np.shape(a), np.shape(b))
    except ValueError:
        raise ValueError(f"a and b must have shapes that broadcast, got {np.shape(a)} and {np.shape(b)}") from None
    return decode(a, fmt), decode(b, fmt)


def add(a: np.ndarray, b: np.ndarray, fmt: Format = BF16) -> np.ndarray:
    """a + b. An exact zero sum is +0 unless both operands are negative zeros."""
    x, y = _operands(a, b, fmt)
    with np.errstate(invalid="ignore"):
        return encode(x + y, fmt)


def subtract(a: np.ndarray, b: np.ndarray, fmt: Format = BF16) -> np.ndarray:
    """a - b."""
    x, y = _operands(a, b, fmt)
    with np.errstate(invalid="ignore"):
        return encode(x - y, fmt)


def multiply(a: np.ndarray, b: np.ndarray, fmt: Format = BF16) -> np.ndarray:
    """a * b."""
    x, y = _operands(a, b, fmt)
    with np.errstate(invalid="ignore"):
        return encode(x * y, fmt)


def divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """BF16 bit patterns of a / b for FP32 operands, rounded once.

    No quotient of two FP32 numbers lies so close to the middle of two BF16 numbers that rounding twice would differ.
    """
    x, y = _operands(a, b, FP32)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        return encode(x / y)
