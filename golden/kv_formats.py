"""Number formats of a KV cache: 2, 4 and 8 bits per element, with one header for each block of BF16 codes.

All decisions compare integers: a BF16 number is a significand of 8 bits times a power of two, and the numbers of a
block are shifted to a common exponent. `decode` rounds once to BF16, to nearest even.

Rules of all formats:

- Subnormal BF16 inputs are zeros, and decoded numbers below the smallest normal one are zeros, as in the LXE.
- A block that holds an infinity or a NaN decodes to the canonical NaN in every element, so that no fault stays hidden.
- A block of finite numbers decodes to finite numbers, also near the largest BF16 number.

========  ==========================================  =====  ==========================  ==============
format    elements                                    block  header                      bits / element
========  ==========================================  =====  ==========================  ==============
mxfp4     E2M1                                           32  E8M0 scale                  4.25
mxfp8     E4M3                                           32  E8M0 scale                  8.25
fp4       E2M1                                           16  E4M3 scale                  4.5
int4      sign, 3 bits of magnitude                      32  BF16 maximum                4.5
int8      sign, 7 bits of magnitude                      32  BF16 maximum                8.5
bfp8      two's complement, 6 fraction bits              16  exponent                    8.5
affine4   4 bits from minimum to maximum                 64  exponent, minimum, maximum  4.5
affine4s  the same                                       32  the same                    5
kivi4     the same, keys along tokens                    32  the same                    5
kivi2     2 bits from minimum to maximum, likewise       32  the same                    3
========  ==========================================  =====  ==========================  ==============

Sources: MX: OCP Microscaling Formats 1.0. KIVI: arXiv 2402.02750. `fp4` has no scale of the tensor. `bfp8` is MXINT8 of
the MX specification with blocks of 16 instead of 32; the exponent field of BF16 is the E8M0 code of its scale.
Assumed: the headers of `affine` and KIVI (the papers store two 16-bit numbers), and the maximum as header of `int`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np

from golden import bf16, oaken
from util import checks

GUARD_BITS = 3  # fraction bits of a fixed-point number of `Affine` below those of a BF16 significand
FIXED_BITS = 9 + GUARD_BITS  # of a signed fixed-point number
_SHIFT = 40  # by which a significand is shifted left before it is compared; what this loses is below every boundary
_NORMAL = 134  # exponent field of BF16 whose unit in the last place is 1


@dataclass(frozen=True)
class Packed:
    """Blocks in a format: `codes` uint8 (..., block), and `headers` uint32 (...), one header for each block."""

    codes: np.ndarray
    headers: np.ndarray


@dataclass(frozen=True)
class BlockFormat(ABC):
    """Format of blocks of `block` elements with `bits` bits each and a header. Raises ValueError for invalid sizes."""

    bits: int
    block: int

    def __post_init__(self) -> None:
        checks.integer("bits", self.bits, 1, 8)
        checks.integer("block", self.block, 1)

    @property
    @abstractmethod
    def header_bits(self) -> int:
        """Bits of a header."""

    @property
    def element_bits(self) -> float:
        """Bits of one element with its share of the header."""
        return self.bits + self.header_bits / self.block

    def resized(self, block: int) -> Self:
        """The same format with blocks of `block` elements."""
        return replace(self, block=block)

    def encode(self, x: np.ndarray) -> Packed:
        """The blocks of BF16 bit patterns `x`, uint16 (..., block). Raises ValueError or TypeError otherwise."""
        x = bf16.codes("x", x)
        if x.ndim < 1 or x.shape[-1] != self.block:
            raise ValueError(f"x must have blocks of {self.block} elements, got shape {x.shape}")
        field = (x >> 7 & 0xFF).astype(np.int64)
        magnitude = np.where(field > 0, x & 0x7F | 0x80, 0).astype(np.int64)
        return Packed(*self._encode((x >> 15).astype(np.int64), field, magnitude))

    def decode(self, packed: Packed) -> np.ndarray:
        """BF16 bit patterns of the blocks, uint16 (..., block)."""
        if packed.codes.shape != (*packed.headers.shape, self.block):
            raise ValueError(f"codes must have shape {(*packed.headers.shape, self.block)}, got {packed.codes.shape}")
        return self._decode(packed.codes.astype(np.int64), packed.headers.astype(np.int64))

    @abstractmethod
    def _encode(self, sign: np.ndarray, field: np.ndarray, magnitude: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Codes and headers of numbers with an exponent field and an 8-bit significand, 0 for zeros; all int64."""

    @abstractmethod
    def _decode(self, codes: np.ndarray, headers: np.ndarray) -> np.ndarray:
        """BF16 bit patterns of codes and headers, both int64."""


@dataclass(frozen=True)
class Minifloat:
    """Signed floating-point format without infinities: `exponent_bits`, `fraction_bits`, code of the largest number."""

    exponent_bits: int
    fraction_bits: int
    largest: int

    @property
    def bias(self) -> int:
        """Bias of the exponent."""
        return (1 << self.exponent_bits - 1) - 1

    @property
    def unit(self) -> int:
        """Exponent of the smallest positive number, which is 2**unit."""
        return 1 - self.bias - self.fraction_bits

    @cached_property
    def numbers(self) -> np.ndarray:
        """All numbers that are not negative, in units of 2**unit, by code: int64."""
        code = np.arange(self.largest + 1)
        exponent, fraction = code >> self.fraction_bits, code & (1 << self.fraction_bits) - 1
        return np.where(exponent, fraction + (1 << self.fraction_bits) << np.maximum(exponent - 1, 0), fraction)

    @property
    def top(self) -> int:
        """Exponent of the largest number."""
        return (self.largest >> self.fraction_bits) - self.bias

    def nearest(self, value: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """Codes of the numbers nearest to value / scale, in units of 2**unit; even codes win ties. Saturates.

        `value` and `scale` are integers that are not negative and broadcast; a `scale` of 0 gives code 0.
        """
        code = np.zeros(np.broadcast_shapes(value.shape, scale.shape), np.int64)
        for low, (x, y) in enumerate(zip(self.numbers[:-1], self.numbers[1:], strict=True)):
            middle = (x + y) * scale
            code += (2 * value > middle) | ((2 * value == middle) & bool(low & 1))
        return np.where(scale > 0, code, 0)


E2M1 = Minifloat(2, 1, 7)  # 0, 0.5, 1, 1.5, 2, 3, 4, 6
E4M3 = Minifloat(4, 3, 126)  # up to 448; code 127 is NaN


@dataclass(frozen=True)
class Microscaling(BlockFormat):
    """MX: a power of two for each block, stored as E8M0, in which 255 is NaN.

    The scale is 2**(floor(log2(maximum)) - exponent of the largest element), at least 2**-127. Elements are rounded to
    nearest even and saturate.
    """

    element: Minifloat = E2M1

    @property
    def header_bits(self) -> int:
        return 8

    def _encode(self, sign: np.ndarray, field: np.ndarray, magnitude: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        largest = field.max(axis=-1)
        header = np.where(largest == bf16.EXPONENT_MAX, 255, np.maximum(largest - self.element.top, 0))
        # in units of 2**(unit + scale - _SHIFT); what is shifted out is far below half a unit
        shift = field - header[..., None] - 7 - self.element.unit + _SHIFT
        value = (magnitude << np.clip(shift, 0, 55)) >> np.clip(-shift, 0, 62)
        code = self.element.nearest(value, np.array(1 << _SHIFT))
        return _signed(sign, code, self.bits, header == 255), header.astype(np.uint32)

    def _decode(self, codes: np.ndarray, headers: np.ndarray) -> np.ndarray:
        sign, number = codes >> self.bits - 1, self.element.numbers[codes & (1 << self.bits - 1) - 1]
        headers = headers[..., None]
        return _bf16(sign, number, headers - bf16.BIAS + self.element.unit, headers == 255)


@dataclass(frozen=True)
class ScaledFloat(BlockFormat):
    """E2M1 elements with an E4M3 scale: the maximum divided by 6, rounded to nearest even, at most 448.

    An element is the number nearest to the element divided by the rounded scale; even codes win ties; it saturates. A
    maximum whose scale rounds to zero gives a block of zeros. A scale of 127 is NaN.
    """

    @property
    def header_bits(self) -> int:
        return 8

    def _encode(self, sign: np.ndarray, field: np.ndarray, magnitude: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        # in units of 2**(E4M3.unit - 20); numbers outside the clipped range are above or below every boundary
        value = magnitude << np.clip(field, 105, 150) - _NORMAL - E4M3.unit + 20
        unit = np.array(1 << 20)
        scale = E4M3.nearest(value.max(axis=-1), 6 * unit)
        code = E2M1.nearest(2 * value, E4M3.numbers[scale][..., None] * unit)
        nan = field.max(axis=-1) == bf16.EXPONENT_MAX
        return _signed(sign, code, self.bits, nan), np.where(nan, 127, scale).astype(np.uint32)

    def _decode(self, codes: np.ndarray, headers: np.ndarray) -> np.ndarray:
        nan = headers > E4M3.largest
        scale = E4M3.numbers[np.where(nan, 0, headers)][..., None]
        number = E2M1.numbers[codes & (1 << self.bits - 1) - 1] * scale
        return _bf16(codes >> self.bits - 1, number, E2M1.unit + E4M3.unit, nan[..., None])


@dataclass(frozen=True)
class Symmetric(BlockFormat):
    """Sign and magnitude k of 0 to n = 2**(bits - 1) - 1, in steps of the maximum divided by n.

    The header is the BF16 code of the largest magnitude, so that this element has no error. k is the nearest one; the
    smaller one wins ties.
    """

    @property
    def header_bits(self) -> int:
        return 16

    def _encode(self, sign: np.ndarray, field: np.ndarray, magnitude: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        steps, top = (1 << self.bits - 1) - 1, field.max(axis=-1, keepdims=True)
        value = (magnitude << _SHIFT) >> np.minimum(top - field, 62)
        largest = value.max(axis=-1, keepdims=True)
        # k steps with (2 k - 1) * largest < 2 * steps * value
        code = np.where(largest > 0, -(-(2 * steps * value + largest) // np.maximum(2 * largest, 1)) - 1, 0)
        nan = top[..., 0] == bf16.EXPONENT_MAX
        header = np.where(top > 0, top << 7 | largest >> _SHIFT & 0x7F, 0)[..., 0]
        return _signed(sign, code, self.bits, nan), np.where(nan, bf16.BF16.nan, header).astype(np.uint32)

    def _decode(self, codes: np.ndarray, headers: np.ndarray) -> np.ndarray:
        steps, headers = (1 << self.bits - 1) - 1, headers[..., None]
        field = headers >> 7
        product = (codes & steps) * np.where(field > 0, headers & 0x7F | 0x80, 0) << 20
        number = product // steps << 1 | (product % steps > 0)  # the lowest bit is sticky
        return _bf16(codes >> self.bits - 1, number, field - _NORMAL - 21, field == bf16.EXPONENT_MAX)


@dataclass(frozen=True)
class Affine(BlockFormat):
    """n + 1 = 2**bits levels from the minimum to the maximum of the block, in fixed point.

    The largest exponent field of the block is the exponent of the header. The numbers are shifted to it with
    `GUARD_BITS` more bits than a significand; magnitudes are rounded to nearest, ties away from zero. The results are
    signed numbers of `FIXED_BITS` bits. The header holds exponent (8 bits, lowest), minimum and maximum. Level k is

        minimum + round(k * (maximum - minimum) / n)

    An element has the code of the nearest level before this rounding; the lower one wins ties. A block of equal numbers
    has code 0 in all elements. An exponent of 255 is NaN.
    """

    @property
    def header_bits(self) -> int:
        return 8 + 2 * FIXED_BITS

    def _encode(self, sign: np.ndarray, field: np.ndarray, magnitude: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        exponent = field.max(axis=-1, keepdims=True)
        doubled = (magnitude << GUARD_BITS + 1) >> np.minimum(exponent - field, 62)
        fixed = np.where(sign, -1, 1) * (doubled + 1 >> 1)
        low, high = fixed.min(axis=-1, keepdims=True), fixed.max(axis=-1, keepdims=True)
        steps, span = (1 << self.bits) - 1, high - low
        # k steps with (2 k - 1) * span < 2 * steps * (fixed - low)
        code = np.where(span > 0, -(-(2 * steps * (fixed - low) + span) // np.maximum(2 * span, 1)) - 1, 0)
        nan = exponent == bf16.EXPONENT_MAX
        mask = (1 << FIXED_BITS) - 1
        header = exponent | np.where(nan, 0, low & mask) << 8 | np.where(nan, 0, high & mask) << 8 + FIXED_BITS
        return np.where(nan, 0, code).astype(np.uint8), header[..., 0].astype(np.uint32)

    def levels(self, headers: np.ndarray) -> np.ndarray:
        """BF16 bit patterns of all levels of blocks with these headers, uint16 (..., 2**bits)."""
        headers = np.asarray(headers, np.int64)[..., None]
        exponent = headers & 0xFF
        low, high = (_signed_number(headers >> at, FIXED_BITS) for at in (8, 8 + FIXED_BITS))
        steps = (1 << self.bits) - 1
        fixed = low + (2 * np.arange(steps + 1) * (high - low) + steps) // (2 * steps)
        nan = exponent == bf16.EXPONENT_MAX
        return _bf16((fixed < 0).astype(np.int64), np.abs(fixed), exponent - _NORMAL - GUARD_BITS, nan)

    def _decode(self, codes: np.ndarray, headers: np.ndarray) -> np.ndarray:
        return np.take_along_axis(self.levels(headers), codes, axis=-1)


@dataclass(frozen=True)
class BlockFloat(BlockFormat):
    """Block floating point: integers of `bits` bits with a common exponent, one bit of them above the binary point.

    The header is the largest exponent field of the block. A significand is shifted right by the distance of its
    exponent to the header, and rounded to nearest even, in units of 2**(2 - bits) of the power of two of the header.
    With 8 bits, half of the numbers with the largest exponent are ties. Rounding them away from zero would make the
    mean magnitude larger. Codes are in two's complement and saturate at +-(2**(bits - 1) - 1); the most negative code
    does not occur. Decoding is exact, except for results below the smallest normal number, which are zeros of their
    sign. Code 0 is +0. An exponent of 255 is NaN.
    """

    @property
    def header_bits(self) -> int:
        return 8

    def _encode(self, sign: np.ndarray, field: np.ndarray, magnitude: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        header = field.max(axis=-1, keepdims=True)
        shift = np.minimum(header - field, 16) + 9 - self.bits
        floor, rest, half = magnitude >> shift, magnitude & (1 << shift) - 1, (1 << shift) // 2
        floor += (rest > half) | ((rest == half) & (floor & 1 == 1))
        number = np.minimum(floor, (1 << self.bits - 1) - 1)
        number = np.where(header == bf16.EXPONENT_MAX, 0, np.where(sign, -number, number))
        return (number & (1 << self.bits) - 1).astype(np.uint8), header[..., 0].astype(np.uint32)

    def _decode(self, codes: np.ndarray, headers: np.ndarray) -> np.ndarray:
        headers = headers[..., None]
        number = _signed_number(codes, self.bits)
        exponent = headers - bf16.BIAS + 2 - self.bits
        return _bf16((number < 0).astype(np.int64), np.abs(number), exponent, headers == bf16.EXPONENT_MAX)


def _signed_number(value: np.ndarray, bits: int) -> np.ndarray:
    """The lowest `bits` bits as a signed number."""
    half = 1 << bits - 1
    return ((value & 2 * half - 1) ^ half) - half


def _signed(sign: np.ndarray, code: np.ndarray, bits: int, nan: np.ndarray) -> np.ndarray:
    """Codes with their sign in the highest bit; 0 in blocks with NaN."""
    return np.where(nan[..., None], 0, sign << bits - 1 | code).astype(np.uint8)


def _bf16(sign: np.ndarray, number: np.ndarray, exponent: np.ndarray | int, nan: np.ndarray) -> np.ndarray:
    """BF16 bit patterns of number * 2**exponent, rounded once; `number` has at most 53 bits."""
    value = np.ldexp(np.where(nan, np.nan, number.astype(np.float64)), exponent)
    return bf16.encode(np.where(sign, -value, value))


KIVI_TOKENS = 32  # tokens that share a header in a channel of the keys
OAKEN_TOKENS = 32  # first tokens, which give the thresholds of Oaken
MXFP4, MXFP8 = Microscaling(4, 32, E2M1), Microscaling(8, 32, E4M3)
FP4 = ScaledFloat(4, 16)
INT4, INT8 = Symmetric(4, 32), Symmetric(8, 32)
AFFINE4, AFFINE4S, AFFINE2 = Affine(4, 64), Affine(4, 32), Affine(2, 32)
BFP8 = BlockFloat(8, 16)
PER_TOKEN: dict[str, BlockFormat] = {
    "mxfp4": MXFP4,
    "mxfp8": MXFP8,
    "fp4": FP4,
    "int4": INT4,
    "int8": INT8,
    "bfp8": BFP8,
    "affine4": AFFINE4,
    "affine4s": AFFINE4S,
}
KIVI: dict[str, BlockFormat] = {"kivi4": AFFINE4S, "kivi2": AFFINE2}
NAMES = (*PER_TOKEN, *KIVI, "oaken")


@dataclass(frozen=True)
class ReadBack:
    """Keys and values after encoding and decoding, float32 (N, Hkv, d); mean bits of one of their elements."""

    keys: np.ndarray
    values: np.ndarray
    bits: float


def read_back(name: str, keys: np.ndarray, values: np.ndarray) -> ReadBack:
    """Keys and values (N, Hkv, d), in the order of their tokens, after a KV cache in the format `name`.

    A block of a token lies in one head; it has d elements if a block of the format is larger. KIVI keeps keys whose
    group of `KIVI_TOKENS` tokens is not complete in BF16. Oaken works on float64 and profiles the first `OAKEN_TOKENS`
    tokens.

    Raises ValueError for an unknown name, numbers that are not finite, different shapes, or a d that is not a multiple
    of the block.
    """
    checks.one_of("kv_format", name, NAMES)
    k = checks.reals("keys", keys, None, None, None)
    v = checks.reals("values", values, *k.shape)
    if name == "oaken":
        rows = [x.reshape(len(x), -1) for x in (k, v)]
        stored = [oaken.quantise(x, oaken.profile(x[:OAKEN_TOKENS])) if x.size else None for x in rows]
        bits = sum(s.bits for s in stored if s) / max(1, k.size + v.size)
        k, v = (x if s is None else s.values.reshape(x.shape) for x, s in zip((k, v), stored, strict=True))
        return ReadBack(k.astype(np.float32), v.astype(np.float32), bits)
    codes, value_codes = bf16.encode(k), bf16.encode(v)
    form = (PER_TOKEN | KIVI)[name]
    value_codes, value_bits = _along(form, value_codes)
    if name in KIVI:
        grouped = len(k) // KIVI_TOKENS * KIVI_TOKENS
        channels = codes[:grouped].reshape(-1, KIVI_TOKENS, *k.shape[1:]).transpose(0, 2, 3, 1)
        channels, bits = _along(form, channels)
        grouped_codes = channels.transpose(0, 3, 1, 2).reshape(grouped, *k.shape[1:])
        codes = np.concatenate([grouped_codes, codes[grouped:]])
        bits = (bits * grouped + 16 * (len(k) - grouped)) / max(1, len(k))
    else:
        codes, bits = _along(form, codes)
    key_numbers, numbers = (bf16.decode(x).astype(np.float32) for x in (codes, value_codes))
    return ReadBack(key_numbers, numbers, (bits + value_bits) / 2)


def _along(form: BlockFormat, codes: np.ndarray) -> tuple[np.ndarray, float]:
    """`codes` after encoding and decoding in blocks of their last axis, and the bits of one element."""
    size = codes.shape[-1]
    form = form.resized(min(form.block, size))
    if size % form.block:
        raise ValueError(f"head_dim must be a multiple of {form.block}, the elements of a block, got {size}")
    blocks = codes.reshape(*codes.shape[:-1], size // form.block, form.block)
    return form.decode(form.encode(blocks)).reshape(codes.shape), form.element_bits
