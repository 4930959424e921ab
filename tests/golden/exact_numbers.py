"""Numbers of bit patterns as exact fractions, and BF16 rounding of fractions."""

from fractions import Fraction

import numpy as np

INFINITY, NAN = 0x7F80, 0x7FC0


def real(code):
    """The number of a BF16 bit pattern as a fraction; subnormals are zero."""
    sign, field, fraction = int(code) >> 15, int(code) >> 7 & 255, int(code) & 127
    magnitude = Fraction(128 + fraction) * Fraction(2) ** (field - 134) if field else Fraction(0)
    return -magnitude if sign else magnitude


def rounded(number, negative=False):
    """BF16 bit pattern of a fraction, to nearest even; below the smallest normal number zero, above the largest inf."""
    sign, x = (number < 0 or (number == 0 and negative)) << 15, abs(number)
    if not x:
        return sign
    exponent = x.numerator.bit_length() - x.denominator.bit_length()
    exponent -= x < Fraction(2) ** exponent
    significand = round(x * Fraction(2) ** (7 - exponent))  # Python rounds fractions to even
    if exponent + (significand >> 8) < -126:
        return sign
    return sign | min(significand + (exponent + 126 << 7), INFINITY)


def floats(dtype, codes):
    """The numbers of all codes of an ml_dtypes type as fractions."""
    return [Fraction(float(x)) for x in np.arange(codes, dtype=np.uint8).view(dtype).astype(np.float64)]


def nearest(x, points):
    """Index of the nearest point; the even one of two. Above the last point the last one."""
    return min(range(len(points)), key=lambda k: (abs(points[k] - x), k & 1))
