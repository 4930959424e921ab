"""Positions of the tokens of a stream for RoPE, and for M-RoPE on three axes: time, height, width.

With M-RoPE a text token has the same position on all axes. The tokens of a picture have the positions (p + t, p + row,
p + column); the next token has the largest position so far + 1. For a picture alone t is 0, and p is the next position.
The pictures of a video share p, which is the next position at its first picture, and t is floor(seconds *
tokens_per_second). A video ends where text or a picture alone follows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from golden.rope import pair_axes
from util import checks


@dataclass(frozen=True)
class Positions:
    """Position that the next token of a stream gets, and where its video starts.

    next   next position
    video  first position of the video that can continue; None: the last token is not one of a video
    """

    next: int = 0
    video: int | None = None

    def __post_init__(self) -> None:
        checks.integer("next", self.next, 0)
        if self.video is not None:
            checks.integer("video", self.video, 0, self.next)

    def text(self, count: int) -> tuple[np.ndarray, Positions]:
        """Positions of text tokens, int64 (count,), and the positions after them."""
        return np.arange(self.next, self.next + count), Positions(self.next + count)

    def picture(
        self, rows: int, columns: int, seconds: float | None = None, tokens_per_second: int | None = None
    ) -> tuple[np.ndarray, Positions]:
        """Positions of rows * columns visual tokens in row-major order, int64 (tokens, 3), and those after them.

        `seconds` : time since the first picture of the video; None: a picture alone
        """
        start, time = self.next, 0
        if seconds is not None:
            if tokens_per_second is None:
                raise ValueError(f"seconds must be None for a model without tokens_per_second, got {seconds}")
            if checks.real("seconds", seconds) < 0:
                raise ValueError(f"seconds must be at least 0, got {seconds}")
            start = self.next if self.video is None else self.video
            time = int(np.floor(seconds * tokens_per_second))
        row, column = np.indices((rows, columns)).reshape(2, -1)
        positions = start + np.stack([np.full_like(row, time), row, column], axis=1)
        after = Positions(max(self.next, int(positions.max()) + 1))
        return positions, after if seconds is None else replace(after, video=start)


def of_pairs(positions: np.ndarray, head_dim: int, sections: tuple[int, ...] | None) -> np.ndarray:
    """Position of every RoPE pair, (tokens, pairs), of positions on several axes; those on one axis (tokens,) stay."""
    if positions.ndim == 1:
        return positions
    if sections is None:
        raise ValueError(f"positions must have one axis for a model without sections, got {positions.shape[1]}")
    return positions[:, pair_axes(head_dim, sections)]
