"""Compiled kernels of the matrix engine: the fused dot product of `golden.dot` for the tiles of a MULTIPLY command.

Weights and activations are decoded to exponents and signed significands once per command. A product of a tile row with
an activation row takes two loops over its elements: the largest exponent, then the sum of the aligned products. LLVM
vectorises both. It needs 16-bit and 32-bit arithmetic; numba widens integers to 64 bits, so the functions `_..._code`
emit LLVM instructions.

All kernels take a MULTIPLY command as int64 array `p`, see the constants `WEIGHTS` to `SLOTS` for its elements.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from compiler.machine.arithmetic import INFINITY, NAN, SIGN, add, round_bf16, round_fp32
from golden.bf16 import EXPONENT_MAX
from golden.core_interpreter import NUMBERS
from util.compiled import unowned

WEIGHTS, M_STRIDE, K_STRIDE, M_BLOCKS, K_BLOCKS, ACTIVATIONS, X_STRIDE, VECTORS, FIRST, LAST, SPREAD, SLOTS = range(12)
ALL_VALID, TILE, ROW, SUM = range(4)  # result of `check`
ZERO_EXPONENT = -1024  # exponent of a zero: below the sum of any two others
FARTHEST = 31  # shift that removes all bits of a product
NARROW_BITS = 31  # bits of a sum that int32 holds


def _exponent_code(typing_context: Any, code: Any) -> Any:
    """Exponent field of a BF16 code, or `ZERO_EXPONENT`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (code,) = arguments
        number = code.type
        exponent = builder.and_(builder.lshr(code, number(7)), number(EXPONENT_MAX))
        is_zero = builder.icmp_unsigned("==", exponent, number(0))
        return builder.select(is_zero, number(ZERO_EXPONENT), exponent)

    return types.int16(types.uint16), generate


def _significand_code(typing_context: Any, code: Any) -> Any:
    """Significand of a BF16 code with its sign, 0 for a zero."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (code,) = arguments
        number = code.type
        magnitude = builder.or_(builder.and_(code, number(127)), number(128))
        negative = builder.icmp_signed("<", code, number(0))
        signed = builder.select(negative, builder.sub(number(0), magnitude), magnitude)
        exponent = builder.and_(code, number(EXPONENT_MAX << 7))
        return builder.select(builder.icmp_unsigned("==", exponent, number(0)), number(0), signed)

    return types.int16(types.uint16), generate


def _later_code(typing_context: Any, top: Any, exponent: Any, other: Any) -> Any:
    """Larger one of `top` and the sum of two exponents."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        top, exponent, other = arguments
        total = builder.add(exponent, other)
        return builder.select(builder.icmp_signed(">", total, top), total, top)

    return types.int16(types.int16, types.int16, types.int16), generate


def _aligned_code(typing_context: Any, w: Any, x: Any, w_exponent: Any, x_exponent: Any, top: Any) -> Any:
    """Product of the significands `w` and `x`, shifted right from `top` by magnitude."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        w, x, w_exponent, x_exponent, top = arguments
        integer = ir.IntType(32)
        product = builder.mul(builder.sext(w, integer), x)
        distance = builder.sext(builder.sub(top, builder.add(w_exponent, x_exponent)), integer)
        farthest, zero = integer(FARTHEST), integer(0)
        distance = builder.select(builder.icmp_signed("<", distance, farthest), distance, farthest)
        negative = builder.icmp_signed("<", product, zero)
        magnitude = builder.select(negative, builder.sub(zero, product), product)
        shifted = builder.lshr(magnitude, distance)
        return builder.select(negative, builder.sub(zero, shifted), shifted)

    return types.int32(types.int16, types.int32, types.int16, types.int16, types.int16), generate


def _plus_code(typing_context: Any, total: Any, term: Any) -> Any:
    """int32 sum."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.add(*arguments)

    return types.int32(types.int32, types.int32), generate


_exponent: Any = intrinsic(_exponent_code)
_significand: Any = intrinsic(_significand_code)
_later: Any = intrinsic(_later_code)
_aligned: Any = intrinsic(_aligned_code)
_plus: Any = intrinsic(_plus_code)


@unowned
def check(p, tiles, rows, started):
    """Check the operands of a command in the order of its products, and mark the sums that it starts and ends.

    tiles, rows  tiles of weights and rows of activations
    started      uint8 (slots,), sums that are started; changed

    Returns (what is invalid, its number, valid products). The number of products excludes the invalid one.
    """
    count = 0
    for m in range(p[M_BLOCKS]):
        base = m * p[VECTORS] if p[SPREAD] else 0
        for k in range(p[K_BLOCKS]):
            tile = (p[WEIGHTS] + m * p[M_STRIDE] + k * p[K_STRIDE]) % NUMBERS
            if tile >= tiles:
                return TILE, tile, count
            for t in range(p[VECTORS]):
                row, slot = (p[ACTIVATIONS] + t * p[X_STRIDE]) % NUMBERS + k, (base + t) % p[SLOTS]
                if row >= rows:
                    return ROW, row, count
                if not (p[FIRST] and k == 0) and not started[slot]:
                    return SUM, slot, count
                started[slot] = not (p[LAST] and k == p[K_BLOCKS] - 1)
                count += 1
    return ALL_VALID, 0, count


@unowned
def _decode(codes, exponents, significands):
    """Exponents and signed significands of BF16 codes; returns whether there is an infinity or NaN."""
    for j in range(len(codes)):
        exponents[j] = _exponent(codes[j])
    for j in range(len(codes)):
        significands[j] = _significand(codes[j])
    largest = np.int16(0)
    for j in range(len(codes)):
        largest = _later(largest, exponents[j], np.int16(0))
    return largest == EXPONENT_MAX


@unowned
def decode_activations(p, count, activations, exponents, significands, special, work, shift):
    """Decode the activation rows of the first `count` products of a command.

    activations, exponents, significands  uint16, int16, int32 (rows, inputs); significands times 2**shift
    special                               uint8 (rows,), there is an infinity or NaN
    work                                  int16 (inputs,), changed
    shift                                 alignment bits minus the 16 bits of a product
    """
    vectors, left = p[VECTORS], count
    for k in range(p[K_BLOCKS]):
        for t in range(min(vectors, left)):
            row = (p[ACTIVATIONS] + t * p[X_STRIDE]) % NUMBERS + k
            special[row] = _decode(activations[row], exponents[row], work)
            shifted = significands[row]
            for j in range(len(work)):
                shifted[j] = np.int32(work[j]) << shift
        left = max(left - vectors, 0)


@unowned
def _special_product(x, w):
    """Dot product of rows of BF16 codes of which one is an infinity or NaN, as FP32 code."""
    plus, minus, invalid = False, False, False
    for j in range(len(x)):
        a, b = int(x[j]) & 0x7FFF, int(w[j]) & 0x7FFF
        invalid |= a > 0x7F80 or b > 0x7F80 or (a == 0x7F80 and b < 0x80) or (b == 0x7F80 and a < 0x80)
        infinite, negative = a == 0x7F80 or b == 0x7F80, (int(x[j]) ^ int(w[j])) >> 15 == 1
        plus |= infinite and not negative
        minus |= infinite and negative
    if invalid or (plus and minus):
        return np.uint32(NAN)
    return np.uint32(INFINITY if plus else INFINITY | SIGN)


@unowned
def _sum32(w, x, w_exponents, x_exponents, top):
    """Sum of the aligned products as int32."""
    total = np.int32(0)
    for j in range(len(w)):
        total = _plus(total, _aligned(w[j], x[j], w_exponents[j], x_exponents[j], top))
    return np.int64(total)


@unowned
def _sum64(w, x, w_exponents, x_exponents, top):
    """Sum of the aligned products as int64."""
    total = np.int64(0)
    for j in range(len(w)):
        total += np.int64(_aligned(w[j], x[j], w_exponents[j], x_exponents[j], top))
    return total


def _products(
    p, count, low, high, align_bits, scales, weights, activations, x_exponents, x_significands, x_special,
    w_exponents, w_significands, w_special, tops, totals, sums, results,
):  # fmt: skip
    """The first `count` products of a command, for the rows `low` to `high` of each tile.

    scales               float64 (1024,), 2**(top - 252 - alignment bits) by `top`
    weights              uint16 (rows, inputs); activations and their decoded rows as for `decode_activations`
    w_exponents, w_significands, w_special  int16, int16 (inputs, inputs) and uint8 (inputs,), decoded tile; changed
    tops, totals         int16, int64 (inputs,), largest exponent and sum of aligned products; changed
    sums                 uint32 (slots, inputs), FP32 codes; changed
    results              uint32 (results, inputs), completed sums in the order of the command; changed
    """
    n = weights.shape[1]
    narrow = n << align_bits <= 1 << NARROW_BITS
    done, result = 0, 0
    for m in range(p[M_BLOCKS]):
        base = m * p[VECTORS] if p[SPREAD] else 0
        for k in range(p[K_BLOCKS]):
            if done == count:
                return
            first_row = (p[WEIGHTS] + m * p[M_STRIDE] + k * p[K_STRIDE]) % NUMBERS * n
            for r in range(low, high):
                w_special[r] = _decode(weights[first_row + r], w_exponents[r], w_significands[r])
            start, end = p[FIRST] and k == 0, p[LAST] and k == p[K_BLOCKS] - 1
            for t in range(min(p[VECTORS], count - done)):
                row, slot = (p[ACTIVATIONS] + t * p[X_STRIDE]) % NUMBERS + k, (base + t) % p[SLOTS]
                x, exponents = x_significands[row], x_exponents[row]
                for r in range(low, high):
                    own, top = w_exponents[r], np.int16(0)
                    for j in range(n):
                        top = _later(top, own[j], exponents[j])
                    tops[r] = top
                    if narrow:
                        totals[r] = _sum32(w_significands[r], x, own, exponents, top)
                    else:
                        totals[r] = _sum64(w_significands[r], x, own, exponents, top)
                so_far = sums[slot]
                for r in range(low, high):
                    if x_special[row] or w_special[r]:
                        product = _special_product(activations[row], weights[first_row + r])
                    else:
                        product = round_fp32(np.float64(totals[r]) * scales[tops[r]])
                    so_far[r] = product if start else add(so_far[r], product)
                if end:
                    for r in range(low, high):
                        results[result, r] = so_far[r]
                    result += 1
                done += 1


products = unowned(_products, nogil=True)


@unowned
def to_bf16(codes):
    """Round FP32 codes (results, inputs) to BF16 in place: the BF16 code is the upper half."""
    for row in range(codes.shape[0]):
        line = codes[row]
        for j in range(len(line)):
            line[j] = round_bf16(line[j])


@unowned
def write(words, codes, vectors, out, stride, wide):
    """Write results in the order of the command to the device memory `words`, uint16."""
    n = codes.shape[1]
    for number in range(len(codes)):
        first = (out + number % vectors * stride + number // vectors * (1 + wide)) * n
        line = codes[number]
        if wide:
            target = words[first : first + 2 * n]
            for j in range(n):
                target[2 * j], target[2 * j + 1] = line[j] & 0xFFFF, line[j] >> 16
        else:
            target = words[first : first + n]
            for j in range(n):
                target[j] = line[j] >> 16
