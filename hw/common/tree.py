"""Balanced reductions: every sum, minimum or OR over many values goes through `reduce_tree`."""

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def reduce_tree(combine: Callable[[T, T], T], items: Sequence[T]) -> T:
    """Combine `items` pairwise, in order, in a tree of depth ceil(log2(n)).

    Order is kept: the left operand of `combine` always stands before the right one, so a combine that prefers
    its left operand on ties makes the lowest index win.
    """
    if not items:
        raise ValueError("items is empty: a reduction needs at least one value")
    level = list(items)
    while len(level) > 1:
        pairs = [combine(a, b) for a, b in zip(level[::2], level[1::2], strict=False)]
        level = pairs + level[len(level) & ~1 :]
    return level[0]
