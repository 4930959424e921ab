"""Functions that several units use."""

from __future__ import annotations


def remaining(total: int, first: int, limit: int) -> int:
    """Number of items of `total` from number `first` on, at most `limit`."""
    return min(max(total - first, 0), limit)
