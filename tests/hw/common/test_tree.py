"""Reductions: order and depth."""

import pytest

from hw.common.tree import reduce_tree


@pytest.mark.parametrize("n", range(1, 18))
def test_order_and_depth(n):
    text = reduce_tree(lambda a, b: f"({a}{b})", [chr(ord("a") + i) for i in range(n)])
    assert text.replace("(", "").replace(")", "") == "".join(chr(ord("a") + i) for i in range(n))
    depth = max(text[:i].count("(") - text[:i].count(")") for i in range(len(text) + 1))
    assert depth == (n - 1).bit_length()


def test_empty():
    with pytest.raises(ValueError, match="items must have at least one value, got none"):
        reduce_tree(lambda a, b: a, [])
