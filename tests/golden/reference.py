"""Independent references for the arithmetic tests, with Python integers and rationals and without `golden`."""

from fractions import Fraction

import numpy as np


def round_integer(sign, magnitude, exponent, fraction_bits=7):
    """Codes of (-1)**sign * magnitude * 2**exponent, RNE, flushed to zero: integer arithmetic, magnitude < 2**52."""
    magnitude = np.asarray(magnitude, np.int64)
    length = np.frexp(magnitude.astype(np.float64))[1].astype(np.int64)
    drop = length - (fraction_bits + 1)
    rounded = np.where(drop > 0, magnitude >> np.maximum(drop, 0), magnitude << np.maximum(-drop, 0))
    rest = np.where(drop > 0, magnitude - (rounded << np.maximum(drop, 0)), 0)
    half = np.where(drop > 0, np.int64(1) << np.maximum(drop - 1, 0), 1)
    rounded += (rest > half) | ((rest == half) & (rounded & 1 == 1))
    field = exponent + drop + fraction_bits + 127 + (rounded >> (fraction_bits + 1))
    rounded = np.where(rounded >> (fraction_bits + 1), rounded >> 1, rounded)
    code = np.where(field >= 255, 255 << fraction_bits, field << fraction_bits | rounded & ((1 << fraction_bits) - 1))
    code = np.where((field <= 0) | (magnitude == 0), 0, code)
    return code | np.asarray(sign, np.int64) << (8 + fraction_bits)


def fields(code, fraction_bits=7):
    """Sign, exponent field and significand (0 for zeros and subnormals), int64."""
    code = np.asarray(code).astype(np.int64)
    exponent = code >> fraction_bits & 0xFF
    significand = np.where(exponent, 1 << fraction_bits | code & ((1 << fraction_bits) - 1), 0)
    return code >> (8 + fraction_bits), exponent, significand


def multiply(a, b, fraction_bits=7):
    """Product codes of finite operands; fraction_bits at most 23."""
    (sa, ea, ma), (sb, eb, mb) = fields(a, fraction_bits), fields(b, fraction_bits)
    return round_integer(sa ^ sb, ma * mb, ea + eb - 254 - 2 * fraction_bits, fraction_bits)


def add(a, b, fraction_bits=7):
    """Sum codes of finite operands; fraction_bits at most 23."""
    (sa, ea, ma), (sb, eb, mb) = fields(a, fraction_bits), fields(b, fraction_bits)
    ea, eb = np.maximum(ea, 1), np.maximum(eb, 1)
    reach = 26  # beyond this distance the smaller operand is only sticky
    top = np.where(ma == 0, eb, np.where(mb == 0, ea, np.maximum(ea, eb)))
    ia, ib = (
        np.where(top - e > reach, m != 0, m << np.clip(reach - (top - e), 0, reach)) for e, m in ((ea, ma), (eb, mb))
    )
    total = np.where(sa == 1, -ia, ia) + np.where(sb == 1, -ib, ib)
    sign = np.where(total == 0, sa & sb, total < 0)
    return round_integer(sign, np.abs(total), top - 127 - fraction_bits - reach, fraction_bits)


def fraction(code, fraction_bits=7):
    """Exact rational of one finite code."""
    sign, exponent, significand = (int(x) for x in fields(code, fraction_bits))
    return (-1) ** sign * significand * Fraction(2) ** (exponent - 127 - fraction_bits)


def fused_dot(a, b, width):
    """The fused dot product's definition, one vector at a time with Python integers."""
    signs, keys, products, plus, minus = [], [], [], False, False
    for x, y in zip((int(v) for v in a), (int(v) for v in b), strict=True):
        ex, ey, fx, fy = x >> 7 & 255, y >> 7 & 255, x & 127, y & 127
        sign = (x ^ y) >> 15
        if (ex == 255 and fx) or (ey == 255 and fy) or (ex == 255 and ey == 0) or (ey == 255 and ex == 0):
            return 0x7FC00000
        if ex == 255 or ey == 255:
            plus, minus = plus or not sign, minus or bool(sign)
        zero = ex == 0 or ey == 0
        signs.append(sign)
        keys.append(0 if zero else ex + ey)
        products.append(0 if zero else (128 + fx) * (128 + fy))
    if plus and minus:
        return 0x7FC00000
    if plus or minus:
        return 0x7F800000 | minus << 31
    top = max(keys)
    total = sum((-1) ** s * (p << (width - 16) >> (top - k)) for s, k, p in zip(signs, keys, products, strict=True))
    size = abs(total)
    length = size.bit_length()
    exponent = top - 126 + length - width
    if length <= 24:
        significand = size << (24 - length)
    else:
        significand, rest = divmod(size, 1 << (length - 24))
        half = 1 << (length - 25)
        significand += rest > half or (rest == half and significand & 1)
    if significand >> 24:
        significand, exponent = significand >> 1, exponent + 1
    if total == 0:
        return 0
    sign = int(total < 0) << 31
    if exponent <= 0:
        return sign
    if exponent >= 255:
        return sign | 0x7F800000
    return sign | exponent << 23 | significand & 0x7FFFFF
