"""Masks of a decoded video: which groups of patches a vision tower computes (CodecSight, SPEC 4.1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from golden.codecsight import CodecSightConfig, MotionMask, complete_groups
from sw_model.media.video import Frame


@dataclass(frozen=True)
class MaskedFrame:
    """A frame, and its groups of patches that are computed, bool (rows, columns)."""

    frame: Frame
    kept: np.ndarray

    @property
    def pts(self) -> int:
        """Presentation time stamp of the frame."""
        return self.frame.pts

    @property
    def time_base(self) -> Fraction:
        """Seconds of a unit of `pts`."""
        return self.frame.time_base


def masked(
    frames: Iterable[Frame], rules: CodecSightConfig, coded: tuple[int, int], resized: tuple[int, int], patch: int
) -> Iterator[MaskedFrame]:
    """Every frame with its groups of patches that moved since the last I-frame.

    `coded`, `resized` : (width, height) of the coded picture and of the tower's image, which shows the whole picture
    `patch` : side of a patch in pixels ; `rules.group` : side of a group in patches

    FFmpeg exports no residuals, so `alpha` of the rules must be 0. A frame of an unknown kind counts as an I-frame.
    """
    if rules.alpha:
        raise ValueError(f"alpha must be 0 for a decoded video, which has no residuals, got {rules.alpha}")
    mask = MotionMask(rules, coded, resized, patch)
    for frame in frames:
        kind = frame.kind if frame.kind in ("P", "B") else "I"
        yield MaskedFrame(frame, complete_groups(mask.update(kind, frame.motion), rules.group))
