"""Order, windows and two-dimensional RoPE of the patches of a picture (Qwen2.5-VL, 2502.13923).

Squares of `merge` x `merge` patches become one token. A tower processes windows one after the other, and in a window
squares in row-major order, so that the patches of a window and of a square are contiguous. Windows and squares are in
row-major order; windows at the right and lower edge can be smaller. If a grid keeps some tokens only, the patches of
the others are left out; the order, windows and angles of the remaining ones do not change (CodecSight, SPEC 4.1).
"""

from dataclasses import dataclass

import numpy as np

from golden import rope
from golden.decoder_layer import angles
from util import checks


@dataclass(frozen=True)
class PatchGrid:
    """Patches of a picture.

    rows, columns  patches, multiples of `merge`
    merge          side of the square of patches that becomes one token
    window         side of a window in patches, a multiple of `merge`; 0: one window
    theta          base of the RoPE frequencies
    kept           row-major numbers of the tokens that are computed, ascending; None: all
    """

    rows: int
    columns: int
    merge: int
    window: int
    theta: float
    kept: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        checks.integer("merge", self.merge, 1)
        for name, low in (("rows", 1), ("columns", 1), ("window", 0)):
            if checks.integer(name, getattr(self, name), low) % self.merge:
                raise ValueError(f"{name} must be a multiple of merge = {self.merge}, got {getattr(self, name)}")
        if self.kept is not None:
            check_kept(self.kept, self.rows * self.columns // self.merge**2)

    def _sorted(self, side: int, window: int) -> np.ndarray:
        """Row-major numbers of squares of `side` patches: squares of a window of `window` squares follow each other."""
        rows, columns = np.indices((self.rows // side, self.columns // side)).reshape(2, -1)
        return np.lexsort((columns, rows, columns // window, rows // window)) if window else np.arange(rows.size)

    @property
    def token_order(self) -> np.ndarray:
        """Row-major number of the token at each place of the tower, int64 (tokens,)."""
        order = self._sorted(self.merge, self.window // self.merge)
        return order if self.kept is None else order[np.isin(order, self.kept)]

    @property
    def order(self) -> np.ndarray:
        """Row-major number of the patch at each place of the tower, int64 (patches,)."""
        row, column = np.divmod(self.token_order, self.columns // self.merge)
        inner = np.arange(self.merge)
        rows = (row[:, None, None] * self.merge + inner[:, None]) * self.columns
        return (rows + column[:, None, None] * self.merge + inner).ravel()

    @property
    def windows(self) -> tuple[int, ...]:
        """Patches of each window that has some, in the order of the tower."""
        if self.kept is not None:
            row, column = np.divmod(self.token_order * self.merge, self.columns)
            down, across = row * self.merge // (self.window or self.rows), column // (self.window or self.columns)
            counts = np.unique(down * self.columns + across, return_counts=True)[1]
            return tuple((counts * self.merge**2).tolist())
        if not self.window:
            return (self.rows * self.columns,)
        heights, widths = (
            [min(self.window, size - start) for start in range(0, size, self.window)]
            for size in (self.rows, self.columns)
        )
        return tuple(height * width for height in heights for width in widths)

    def angles(self, head: int, padded: int) -> tuple[np.ndarray, np.ndarray]:
        """Cosines and sines of RoPE in the order of the tower: FP32 bit patterns (patches, padded / 2) each.

        The first half of the pairs of a head of `head` elements follows the row, the other half the column. The pairs
        of the padding to `padded` elements have angle 0.
        """
        if checks.integer("head", head, 4) % 4:
            raise ValueError(f"head must be a multiple of 4, got {head}")
        positions = np.stack(np.divmod(self.order, self.columns), axis=1)
        frequencies = np.tile(rope.frequencies(head // 2, self.theta), 2)
        return angles(np.repeat(positions, head // 4, axis=1), padded, frequencies)


def check_kept(kept: tuple[int, ...], tokens: int) -> None:
    """ValueError unless `kept` has at least one of the numbers 0 to `tokens` - 1, in ascending order."""
    if not kept or list(kept) != sorted(set(kept)) or not 0 <= kept[0] <= kept[-1] < tokens:
        raise ValueError(f"kept must be ascending numbers of tokens from 0 to {tokens - 1}, got {kept}")
