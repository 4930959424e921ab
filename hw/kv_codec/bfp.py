"""Number format of the KV codec with 8-bit codes: block floating point, one exponent for each quarter of a word."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth.lib import data

BITS = 8  # of a code in two's complement: sign, one integer bit, six fraction bits
QUARTERS = 4  # of a word; each is a block of the format

# Largest exponent field of BF16 of each quarter; the first quarter has the lowest byte. 255: NaN.
HEADER = data.ArrayLayout(8, QUARTERS)


def packed_layout(lanes: int) -> data.StructLayout:
    """Layout of an encoded word: `codes` of all elements, `header`."""
    return data.StructLayout({"codes": data.ArrayLayout(BITS, lanes), "header": HEADER})


def check_lanes(lanes: int) -> None:
    """Check the elements of a word. Raises `ValueError` for an invalid number."""
    if lanes < QUARTERS or lanes & (lanes - 1):
        raise ValueError(f"lanes must be a power of two, at least {QUARTERS}, got {lanes}")
