"""Positions of the tokens of a stream for RoPE, and for M-RoPE on three axes: time, height, width.

With M-RoPE a text token has the same position on all axes. The tokens of a picture have the positions (p + t, p + row,
p + column); the next token has the largest position so far + 1. For a picture alone t is 0, and p is the next position.
The pictures of a video share p, which is the next position at its first picture, and t is the floor of
tokens_per_second times the seconds since that picture. A video ends where text or a picture alone follows, and where a
picture is not later than the first one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from golden.rope import pair_axes
from util import checks


@dataclass(frozen=True)
class Positions:
    """Position that the next token of a stream gets, and where its video starts.

    next     next position
    video    first position of the video that can continue; None: the last token is not one of a video
    seconds  time of the first picture of this video
    """

    next: int = 0
    video: int | None = None
    seconds: float = 0.0

    def __post_init__(self) -> None:
        checks.integer("next", self.next, 0)
        if self.video is not None:
            checks.integer("video", self.video, 0, self.next)
        if checks.real("seconds", self.seconds) < 0:
            raise ValueError(f"seconds must be at least 0, got {self.seconds}")

    def text(self, count: int) -> tuple[np.ndarray, Positions]:
        """Positions of text tokens, int64 (count,), and the positions after them."""
        return np.arange(self.next, self.next + count), Positions(self.next + count)

    def picture(
        self, rows: int, columns: int, seconds: float | None = None, tokens_per_second: int | None = None
    ) -> tuple[np.ndarray, Positions]:
        """Positions of rows * columns visual tokens in row-major order, int64 (tokens, 3), and those after them.

        `seconds` : time of a picture of a video; None: a picture alone
        """
        start, time, first = self.next, 0, seconds
        if seconds is not None:
            if tokens_per_second is None:
                raise ValueError(f"seconds must be None for a model without tokens_per_second, got {seconds}")
            if checks.real("seconds", seconds) < 0:
                raise ValueError(f"seconds must be at least 0, got {seconds}")
            if self.video is not None and seconds > self.seconds:
                start, first = self.video, self.seconds
                time = int(np.floor((seconds - first) * tokens_per_second))
        row, column = np.indices((rows, columns)).reshape(2, -1)
        positions = start + np.stack([np.full_like(row, time), row, column], axis=1)
        after = max(self.next, int(positions.max()) + 1)
        return positions, Positions(after) if first is None else Positions(after, start, first)


def joined(positions: Sequence[np.ndarray]) -> np.ndarray:
    """Positions of several sequences one after the other; where some are on several axes, text is on all of them."""
    axes = {each.shape[1] for each in positions if each.ndim > 1}
    if not axes:
        return np.concatenate(positions)
    (count,) = axes
    return np.concatenate([np.repeat(each[:, None], count, axis=1) if each.ndim == 1 else each for each in positions])


def of_pairs(positions: np.ndarray, head_dim: int, sections: tuple[int, ...] | None) -> np.ndarray:
    """Position of every RoPE pair, (tokens, pairs), of positions on several axes; those on one axis (tokens,) stay."""
    if positions.ndim == 1:
        return positions
    if sections is None:
        raise ValueError(f"positions must have one axis for a model without sections, got {positions.shape[1]}")
    return positions[:, pair_axes(head_dim, sections)]
