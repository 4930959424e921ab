"""Quantised matrices with all codes and boundary scales, and an exact decoder of the bits of their tiles."""

import struct
from fractions import Fraction

import ml_dtypes
import numpy as np

from golden.weight_formats import PackedWeights
from tests.golden.exact_numbers import INFINITY, NAN, rounded

FP32_EDGES = (
    0, 0x80000000, 1, 0x007FFFFF, 0x00800000, 0x80800001, 0x00FFFFFF, 0x01000000, 0x3F800000, 0xBF800000, 0x3FFFFFFF,
    0x7E800000, 0x7F7FFFFF, 0xFF7FFF00, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0xFFFFFF00, 0x3F80FF00,
)  # fmt: skip
E8M0_EDGES = (0, 1, 2, 126, 127, 128, 251, 252, 253, 254, 255)
E2M1 = [Fraction(float(x)) for x in np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(float)]
E4M3 = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(float)


def near_ties(rng, lanes):
    """A matrix in FP8, one tile wide: products of scales and codes next to a tie, whose rounding one bit decides.

    A scale for each significand of a code, 8 to 15, both places of the half, and each bit below it: their product has
    the half, the bit and no other one below. Without such a bit it is a tie.
    """
    factor, grows, bit = (x.ravel() for x in np.meshgrid(np.arange(8, 16), (0, 1), np.arange(-1, 19), indexing="ij"))
    twos = np.where(factor == 8, 3, np.where(factor == 12, 2, 1 - factor % 2))  # the product is odd << twos
    ones = 1 << 18 + grows | np.where(bit < 0, 0, 1 << np.maximum(bit, 0))
    inverse = np.array([pow(int(odd), -1, 1 << 20) for odd in factor >> twos])
    fraction = (ones >> twos) * inverse & (1 << 20) - 1 | rng.integers(0, 1 << 3, len(ones)) << 20
    entries = rng.integers(100, 150, len(ones)) << 23 | fraction
    rows = -(-len(ones) // lanes) * lanes
    codes = rng.integers(1, 15, (rows, lanes)) << 3 | rng.integers(0, 2, (rows, lanes)) << 7
    codes |= np.resize(factor, rows)[:, None] - 8
    return PackedWeights(codes.astype(np.uint8), np.resize(entries, rows)[:, None].astype(np.uint32), lanes)


def matrix(rng, form, rows, inputs, group):
    """A matrix with random codes; half of the entries are boundaries, the others random scales."""
    codes = rng.integers(0, 1 << form.bits, (rows, inputs)).astype(np.uint8)
    shape = rows, -(-inputs // group)
    if form.name == "mxfp4":
        edges, random = rng.choice(E8M0_EDGES, shape), rng.integers(90, 160, shape)
    else:
        fields = rng.integers(100, 150, shape) << 23
        random = rng.integers(0, 2, shape) << 31 | fields | rng.integers(0, 1 << 23, shape)
        edges = rng.choice(FP32_EDGES, shape)
        if form.name == "int4":
            edges, random = (x >> 8 << 8 | rng.integers(0, 16, shape) for x in (edges, random))
    entries = np.where(rng.random(shape) < 0.5, edges, random).astype(np.uint32)
    return PackedWeights(codes, entries, group)


def product(form, code, entry):
    """BF16 bit pattern of one weight, from the definition of the format."""
    if form.name == "mxfp4":
        if entry == 255:
            return NAN
        return rounded(E2M1[code] * Fraction(2) ** (entry - 127), negative=code >= 8)
    zero, bits = (entry & 15, entry & ~255) if form.name == "int4" else (0, entry)
    field, fraction, negative = bits >> 23 & 255, bits & (1 << 23) - 1, bool(bits >> 31)
    element = float(code - zero) if form.name == "int4" else E4M3[code]
    sign = negative != (element < 0 or (element == 0 and form.name == "fp8" and code >= 128))
    if np.isnan(element) or (field == 255 and (fraction or element == 0)):
        return NAN
    if field == 255:
        return INFINITY | sign << 15
    scale = Fraction(struct.unpack("<f", struct.pack("<I", bits))[0]) if field else Fraction(0)
    return rounded(Fraction(element) * scale, negative=sign)


def exact_tile(form, stored, lanes):
    """BF16 bit patterns of a tile, rows of `lanes`, from the bits of its bytes."""
    number = int.from_bytes(bytes(stored), "little")
    per_row = max(1, lanes // 32) if form.name == "mxfp4" else 1
    size = 8 if form.name == "mxfp4" else 32
    header = -(-lanes * per_row * size // (16 * lanes)) * 16 * lanes
    result = []
    for row in range(lanes):
        for column in range(lanes):
            entry = number >> size * (row * per_row + column * per_row // lanes) & (1 << size) - 1
            code = number >> header + form.bits * (row * lanes + column) & (1 << form.bits) - 1
            result.append(product(form, code, entry))
    return np.array(result, np.uint16).reshape(lanes, lanes)
