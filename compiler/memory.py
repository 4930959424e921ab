"""Device memory: regions of words, and the image of a matrix."""

from dataclasses import dataclass

import numpy as np


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


def tiles(matrix: np.ndarray, width: int) -> bytes:
    """Memory image of a matrix of BF16 codes, uint16 (M, K).

    The matrix is padded with zeros to tiles of `width` rows and columns. The tiles of one block of rows are contiguous.
    """
    rows, columns = (-(-size // width) for size in matrix.shape)
    padded = np.zeros((rows * width, columns * width), "<u2")
    padded[: matrix.shape[0], : matrix.shape[1]] = matrix
    return padded.reshape(rows, width, columns, width).swapaxes(1, 2).tobytes()
