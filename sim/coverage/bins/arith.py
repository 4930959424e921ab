"""Bins of the arithmetic units."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sim.coverage.bins.cover import RESET, Cover, Met, Run


def _dot(run: Run) -> Iterator[Met]:
    """By what is added up: one bin for each rule of the sum."""
    a, b = (np.asarray(run.inputs["i"][name]).astype(np.int64) for name in ("a", "b"))
    y = np.asarray(run.outputs["o"]).astype(np.int64)
    exponents, fractions = [(v >> 7) & 255 for v in (a, b)], [v & 127 for v in (a, b)]
    infinite = [(e == 255) & (f == 0) for e, f in zip(exponents, fractions, strict=True)]
    nan = [(e == 255) & (f > 0) for e, f in zip(exponents, fractions, strict=True)]
    zero = (exponents[0] == 0) | (exponents[1] == 0)
    negative = ((a ^ b) >> 15 & 1).astype(bool)
    unbounded = infinite[0] | infinite[1]
    finite = ~(nan[0] | nan[1] | unbounded).any(1)
    total = exponents[0] + exponents[1]
    spread = np.where(zero, 0, total).max(1) - np.where(zero, 1 << 10, total).min(1)
    rows = {
        "NaN in": (nan[0] | nan[1]).any(1),
        "infinity times zero": (unbounded & zero & ~(nan[0] | nan[1])).any(1),
        "infinities of both signs": (unbounded & negative).any(1) & (unbounded & ~negative).any(1),
        "infinity": (y & 0x7FFFFFFF == 0x7F800000) & ~finite,
        "overflow": (y & 0x7FFFFFFF == 0x7F800000) & finite,
        "all products zero": zero.all(1) & finite,
        "cancels to zero": (y == 0) & ~zero.all(1) & finite & (total.max(1) > 200),
        "underflow": (y & 0x7FFFFFFF == 0) & ~zero.all(1) & finite & (total.max(1) < 160),
        "subnormal in": ((exponents[0] == 0) & (fractions[0] > 0)).any(1),
        "product shifted out": (spread >= run.component.align_bits) & ~zero.all(1) & finite,
        "negative": (y >> 31 == 1) & finite,
        "positive": (y >> 31 == 0) & (y > 0) & finite,
    }
    cycles = run.cycles["o"]
    yield from (("sum", name, int(cycle)) for name, hit in rows.items() for cycle in cycles[hit])


COVERS = {
    "dot_tree": Cover(
        {
            "sum": (
                "NaN in",
                "infinity times zero",
                "infinities of both signs",
                "infinity",
                "overflow",
                "all products zero",
                "cancels to zero",
                "underflow",
                "subnormal in",
                "product shifted out",
                "negative",
                "positive",
            ),
            RESET[0]: RESET[1:],
        },
        _dot,
    )
}
