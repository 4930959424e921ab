"""BF16 and FP32 arithmetic with the rules of the LXE: bit patterns in, bit patterns out.

Round to nearest, ties to even, once per operation. Subnormals count as zero of their sign, going in and coming out
(a result is flushed after rounding to the format's precision, as if the exponent had no lower end). Every NaN
result is the one positive quiet NaN. Infinities and signed zeros follow IEEE 754.

Every exact sum or product of two values has, in float64, either all its bits or (a sum of very different
magnitudes) enough that rounding twice gives what rounding once would: 53 >= 2 * 24 + 2.
"""

from dataclasses import dataclass

import numpy as np

from util import checks

EXPONENT_MAX = 255  # exponent field of infinities and NaN; both formats have 8 exponent bits
BIAS = 127


@dataclass(frozen=True)
class Format:
    """A binary floating-point format with 1 sign, 8 exponent and `fraction_bits` fraction bits."""

    name: str
    fraction_bits: int
    dtype: type[np.unsignedinteger]

    @property
    def width(self) -> int:
        """Bits of a code."""
        return 9 + self.fraction_bits

    @property
    def infinity(self) -> int:
        """Code of +infinity."""
        return EXPONENT_MAX << self.fraction_bits

    @property
    def nan(self) -> int:
        """Code of the canonical NaN."""
        return self.infinity | 1 << (self.fraction_bits - 1)


BF16 = Format("BF16", 7, np.uint16)
FP32 = Format("FP32", 23, np.uint32)


def codes(name: str, value: object, fmt: Format = BF16) -> np.ndarray:
    """`value` as an array of bit patterns of `fmt`; TypeError unless its dtype is the format's unsigned integer."""
    array = np.asarray(value)
    if array.dtype != fmt.dtype:
        raise checks.ArgumentTypeError(
            f"{name} must hold {fmt.name} bit patterns ({np.dtype(fmt.dtype).name}), got dtype {array.dtype}"
        )
    return array


def encode(value: np.ndarray | float, fmt: Format = BF16) -> np.ndarray:
    """Nearest codes of real numbers; float64 or anything that converts to it exactly. NaN and infinities are kept."""
    bits = np.atleast_1d(np.asarray(value, np.float64)).view(np.uint64)
    drop = np.uint64(52 - fmt.fraction_bits)
    item = np.uint64(1)
    rounded = (bits + ((item << (drop - item)) - item) + ((bits >> drop) & item)) >> drop
    magnitude = (rounded & ((item << np.uint64(11 + fmt.fraction_bits)) - item)).astype(np.int64)
    magnitude -= (1023 - BIAS) << fmt.fraction_bits
    magnitude = np.where(magnitude < 1 << fmt.fraction_bits, 0, np.minimum(magnitude, fmt.infinity))
    code = magnitude | (bits >> np.uint64(63)).astype(np.int64) << (fmt.width - 1)
    is_nan = (bits & np.uint64((1 << 63) - 1)) > np.uint64(0x7FF << 52)
    return np.where(is_nan, fmt.nan, code).astype(fmt.dtype).reshape(np.shape(value))


def decode(code: np.ndarray, fmt: Format = BF16) -> np.ndarray:
    """The real numbers of codes, float64, exact; subnormals give zero of their sign."""
    code = codes("code", code, fmt).astype(np.uint32)
    code = np.where(code >> fmt.fraction_bits & 0xFF, code, code >> (fmt.width - 1) << (fmt.width - 1))
    with np.errstate(invalid="ignore"):  # signalling NaN
        return (code << (32 - fmt.width)).astype(np.uint32).view(np.float32).astype(np.float64)


def convert(code: np.ndarray, source: Format, target: Format) -> np.ndarray:
    """Codes of one format as codes of the other: exact from BF16 to FP32, rounded the other way."""
    return encode(decode(code, source), target)


def add(a: np.ndarray, b: np.ndarray, fmt: Format = BF16) -> np.ndarray:
    """a + b; an exact zero sum is +0 unless both operands are negative zeros."""
    with np.errstate(invalid="ignore"):
        return encode(decode(a, fmt) + decode(b, fmt), fmt)


def subtract(a: np.ndarray, b: np.ndarray, fmt: Format = BF16) -> np.ndarray:
    """a - b."""
    with np.errstate(invalid="ignore"):
        return encode(decode(a, fmt) - decode(b, fmt), fmt)


def multiply(a: np.ndarray, b: np.ndarray, fmt: Format = BF16) -> np.ndarray:
    """a * b."""
    with np.errstate(invalid="ignore"):
        return encode(decode(a, fmt) * decode(b, fmt), fmt)


def divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """BF16 codes of a / b for FP32 codes, rounded once: no quotient of two FP32 numbers is close to a middle of two
    BF16 numbers without being one."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        return encode(decode(a, FP32) / decode(b, FP32))
