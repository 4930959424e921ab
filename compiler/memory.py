"""Device memory: regions of words, and the image of a matrix.

Cores read parts of a matrix at the same time, each part in the order of addresses. Parts that begin at a multiple of
the interleave of a DRAM use the same banks with different rows all the time. A gap after each result block avoids it.
Rows of scores are written piece by piece, the same piece of all rows after each other, and rows of activations that
exceed the operand memory are read so. A gap after each row moves the piece to another channel.
"""

from dataclasses import dataclass

import numpy as np

from golden.page_layout import PageLayout
from golden.weight_formats import PackedWeights, WeightFormat
from hw.config import Config

# bytes in all channels and bank groups of LPDDR5 with pieces of 256 B, and the piece in all channels
INTERLEAVE_BYTES, GAP_BYTES = 16384, 4096
CHANNEL_BYTES = 256  # of the piece in one channel


@dataclass
class Region:
    """Allocator of the words of a memory region; `next` is the first free word."""

    words: int
    next: int = 0

    def allocate(self, count: int) -> int:
        """Allocate `count` words and return the first one; `ValueError` when the region is full."""
        address = self.next
        self.next += count
        if self.next > self.words:
            raise ValueError(f"count must be at most {self.words - address} free words of the region, got {count}")
        return address


def page_layout(config: Config) -> PageLayout:
    """Layout of a head page of a core. Raises ValueError if the sizes of the core do not fit its encoding."""
    return PageLayout(config.head_dim, config.page_tokens, config.dpe_inputs, config.kv_bits)


def block_words(k_blocks: int, width: int, form: WeightFormat | None = None) -> int:
    """Words from one result block of a matrix to the next: its tiles; multiples of `INTERLEAVE_BYTES` have a gap.

    `form` : format of the tiles; None: BF16
    """
    words, word_bytes = k_blocks * (form.tile_words(width) if form else width), 2 * width
    return words if words * word_bytes % INTERLEAVE_BYTES else words + GAP_BYTES // word_bytes


def encoded_tiles(matrix: np.ndarray | PackedWeights, width: int, form: WeightFormat) -> bytes:
    """Memory image of a matrix (M, K) in a format. K is a multiple of `width`.

    BF16 codes, uint16, are quantised; codes of the format are stored as they are. The order of the tiles is that of
    `tiles`.
    """
    packed = matrix if isinstance(matrix, PackedWeights) else form.quantise(matrix)
    blocks = form.tiles(packed, width)
    gap = block_words(blocks.shape[1], width, form) * 2 * width - blocks[0].size
    return np.pad(blocks.reshape(len(blocks), -1), ((0, 0), (0, gap))).tobytes()


def row_words(words: int, width: int) -> int:
    """Words from one row of at least `words` words to the next; multiples of `GAP_BYTES` have a gap."""
    word_bytes = 2 * width
    return words if words * word_bytes % GAP_BYTES else words + CHANNEL_BYTES // word_bytes


def tiles(matrix: np.ndarray, width: int) -> bytes:
    """Memory image of a matrix of BF16 codes, uint16 (M, K).

    The matrix is padded with zeros to tiles of `width` rows and columns. The tiles of one block of rows are contiguous;
    the next block follows after `block_words`.
    """
    rows, columns = (-(-size // width) for size in matrix.shape)
    padded = np.zeros((rows * width, columns * width), "<u2")
    padded[: matrix.shape[0], : matrix.shape[1]] = matrix
    blocks = padded.reshape(rows, width, columns, width).swapaxes(1, 2).reshape(rows, -1)
    gap = block_words(columns, width) * width - blocks.shape[1]
    return np.pad(blocks, ((0, 0), (0, gap))).tobytes() if gap else blocks.tobytes()
