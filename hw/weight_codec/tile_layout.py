"""Layout of weight tiles in memory: a header with scales, then codes, in whole memory words."""

import enum
from dataclasses import dataclass

BF16_BITS = 16


class Encoding(enum.IntEnum):
    """Format of the rows of a LOAD."""

    BF16 = 0
    MXFP4 = 1  # E2M1 elements, an E8M0 scale for 32 of them
    INT4 = 2  # codes with a zero point, a scale with 15 fraction bits for each row of a tile
    FP8 = 3  # E4M3 elements, an FP32 scale for each row of a tile


ENCODED = (Encoding.MXFP4, Encoding.INT4, Encoding.FP8)
BITS = {Encoding.MXFP4: 4, Encoding.INT4: 4, Encoding.FP8: 8}  # of a code
ENTRY_BITS = {Encoding.MXFP4: 8, Encoding.INT4: 32, Encoding.FP8: 32}  # of an entry of the header
GROUP = 32  # elements that share a scale of MXFP4


@dataclass(frozen=True)
class TileLayout:
    """Sizes of a tile of `lanes` rows and columns; a memory word has `lanes` * 16 bits.

    The header has the entries of row 0, row 1, ..., padded to whole words. The codes follow, row after row, the first
    element lowest.

    Raises
    ------
    ValueError
        When `lanes` is not a power of two of at least 4, so that a word has the codes of whole rows.
    """

    lanes: int

    def __post_init__(self) -> None:
        if self.lanes < 4 or self.lanes & (self.lanes - 1):
            raise ValueError(f"lanes must be a power of two, at least 4, got {self.lanes}")

    @property
    def word(self) -> int:
        """Bits of a memory word."""
        return BF16_BITS * self.lanes

    @property
    def groups(self) -> int:
        """Scales of a row with MXFP4."""
        return max(1, self.lanes // GROUP)

    def row_entry_bits(self, encoding: Encoding) -> int:
        """Bits of the header that belong to one row."""
        return ENTRY_BITS[encoding] * (self.groups if encoding is Encoding.MXFP4 else 1)

    def header_words(self, encoding: Encoding) -> int:
        """Words of a header."""
        return -(-self.lanes * self.row_entry_bits(encoding) // self.word)

    def rows_per_word(self, encoding: Encoding) -> int:
        """Rows whose codes fill a word."""
        return BF16_BITS // BITS[encoding]

    def code_words(self, encoding: Encoding) -> int:
        """Words with the codes of a tile."""
        return self.lanes // self.rows_per_word(encoding)

    def tile_words(self, encoding: Encoding) -> int:
        """Words of a tile."""
        return self.header_words(encoding) + self.code_words(encoding)
