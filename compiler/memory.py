"""Device memory: regions of words, and the image of a matrix.

Cores read parts of a matrix at the same time. In an interleaved matrix, the tiles that they read at the same time
follow each other (see `tile_numbers`). Together the cores read the matrix in the order of addresses, which uses all
banks of a DRAM evenly. Long result blocks have gaps (see `gap_tiles`).

Encoded matrices, those of one core and those of a vision tower are stored result block by result block. An encoded tile
is too short to be read alone at the full rate. If the size of a result block is a multiple of the interleave of the
DRAM, cores use the same banks with different rows all the time. A gap after each result block avoids it.

Rows of scores are written piece by piece, the same piece of all rows after each other. Rows of activations that exceed
the operand memory are read in the same way. A gap after each row moves the piece to another channel.
"""

from dataclasses import dataclass

import numpy as np

from golden.page_layout import PageLayout
from golden.weight_formats import PackedWeights, WeightFormat
from hw.config import Config

# bytes in all channels and bank groups of LPDDR5 with pieces of 256 B, and the piece in all channels
INTERLEAVE_BYTES, GAP_BYTES = 16384, 4096
CHANNEL_BYTES = 256  # of the piece in one channel
# bytes of a row of all banks of LPDDR5, and the gap between long result blocks, which then begin in different banks
BANKS_BYTES, BANK_GAP_BYTES = 524288, 393216
LEAST_GAPS = 2  # length of a core's result block that has a gap, in gaps


class RegionFullError(ValueError):
    """A memory region has too few free words."""


@dataclass
class Region:
    """Allocator of the words of a memory region; `next` is the first free word."""

    words: int
    next: int = 0

    def allocate(self, count: int) -> int:
        """Allocate `count` words and return the first one; `RegionFullError` if they are not free."""
        address = self.next
        self.next += count
        if self.next > self.words:
            raise RegionFullError(f"count must be at most {self.words - address} free words of the region, got {count}")
        return address


def page_layout(config: Config) -> PageLayout:
    """Layout of a head page of a core. Raises ValueError if the sizes of the core do not fit its encoding."""
    return PageLayout(config.head_dim, config.page_tokens, config.dpe_inputs, config.kv_bits)


def block_words(k_blocks: int, width: int, form: WeightFormat | None = None) -> int:
    """Words from one result block of a matrix to the next, if its tiles follow each other, for one core.

    Multiples of `INTERLEAVE_BYTES` have a gap. `form` : format of the tiles; None: BF16
    """
    words, word_bytes = k_blocks * (form.tile_words(width) if form else width), 2 * width
    return words if words * word_bytes % INTERLEAVE_BYTES else words + GAP_BYTES // word_bytes


def matrix_words(m_blocks: int, k_blocks: int, width: int, cores: int = 1) -> int:
    """Words of a matrix of BF16 tiles."""
    if cores == 1:
        return m_blocks * block_words(k_blocks, width)
    return (m_blocks * k_blocks + m_blocks // cores * gap_tiles(m_blocks, k_blocks, width, cores)) * width


def gap_tiles(m_blocks: int, k_blocks: int, width: int, cores: int) -> int:
    """Tiles of the gap after the n-th result blocks of all cores, which are interleaved.

    If the activations of a product do not fit the operand memory, a core reads a few tiles of several result blocks in
    turn. Without a gap, they all would be in different rows of the same bank. Short blocks have no gap, because their
    activations fit. A matrix of which most cores have one block has none either.
    """
    tile_bytes = 2 * width * width
    in_one_bank = cores * k_blocks * tile_bytes % BANKS_BYTES == 0
    is_long = k_blocks * tile_bytes >= LEAST_GAPS * BANK_GAP_BYTES
    return BANK_GAP_BYTES // tile_bytes if in_one_bank and is_long and m_blocks >= 2 * cores else 0


def tile_numbers(m: int, m_blocks: int, k_blocks: int, width: int, cores: int) -> range:
    """Numbers of the tiles of result block `m` in the memory of a matrix whose blocks the cores divide.

    A core computes the result blocks that `Share.part` returns. Memory begins with the first result block of every
    core: their first tiles, then their second tiles, and so on. The second result block of every core follows in the
    same way, after a gap (`gap_tiles`). The last tiles are interleaved among the cores that have one block more.
    """
    blocks_per_core, remainder = divmod(m_blocks, cores)
    first_longer = cores - remainder  # number of the first core with one block more
    if m < first_longer * blocks_per_core:
        core, block = divmod(m, blocks_per_core)
    else:
        core, block = divmod(m - first_longer * blocks_per_core, blocks_per_core + 1)
        core += first_longer
    first = block * (cores * k_blocks + gap_tiles(m_blocks, k_blocks, width, cores)) + core
    step = cores
    if block == blocks_per_core:
        first, step = first - first_longer, remainder
    return range(first, first + k_blocks * step, step)


def encoded_tiles(matrix: np.ndarray | PackedWeights, width: int, form: WeightFormat) -> bytes:
    """Memory image of a matrix (M, K) in a format. K is a multiple of `width`.

    BF16 codes, uint16, are quantised; codes of the format are stored as they are. The order of the tiles is that of
    `tiles` for one core.
    """
    packed = matrix if isinstance(matrix, PackedWeights) else form.quantise(matrix)
    blocks = form.tiles(packed, width)
    return _with_gaps(blocks.reshape(len(blocks), -1), block_words(blocks.shape[1], width, form) * 2 * width)


def _with_gaps(blocks: np.ndarray, size: int) -> bytes:
    """Result blocks (M, elements), each with zeros up to `size` elements."""
    return np.pad(blocks, ((0, 0), (0, size - blocks.shape[1]))).tobytes()


def row_words(words: int, width: int) -> int:
    """Words from one row of at least `words` words to the next; multiples of `GAP_BYTES` have a gap."""
    word_bytes = 2 * width
    return words if words * word_bytes % GAP_BYTES else words + CHANNEL_BYTES // word_bytes


def tiles(matrix: np.ndarray, width: int, cores: int = 1) -> bytes:
    """Memory image of a matrix of BF16 codes, uint16 (M, K).

    The matrix is padded with zeros to tiles of `width` rows and columns. For one core the tiles of a block of rows
    follow each other, and the next block follows after `block_words`. For more cores the order is `tile_numbers`.
    """
    rows, columns = (-(-size // width) for size in matrix.shape)
    padded = np.zeros((rows * width, columns * width), "<u2")
    padded[: matrix.shape[0], : matrix.shape[1]] = matrix
    blocks = padded.reshape(rows, width, columns, width).swapaxes(1, 2)
    if cores == 1:
        return _with_gaps(blocks.reshape(rows, -1), block_words(columns, width) * width)
    result = np.zeros((matrix_words(rows, columns, width, cores) // width, width, width), "<u2")
    for m, block in enumerate(blocks):
        result[tile_numbers(m, rows, columns, width, cores)] = block
    return result.tobytes()
