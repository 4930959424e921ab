"""Balanced reduction of many values by an operation of two operands, such as a sum, minimum or OR."""

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def reduce_tree(combine: Callable[[T, T], T], items: Sequence[T]) -> T:
    """Combine `items` pairwise, in order, in a tree of depth ceil(log2(n)).

    The left operand of `combine` is always before the right one in `items`. A minimum that returns its left operand on
    ties therefore returns the lowest index.
    """
    if not items:
        raise ValueError("items must have at least one value, got none")
    level = list(items)
    while len(level) > 1:
        pairs = [combine(a, b) for a, b in zip(level[::2], level[1::2], strict=False)]
        level = pairs + level[len(level) & ~1 :]
    return level[0]
