"""Bins of the KV codec: the kinds of words, and the codes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sim.coverage.bins.cover import RESET, Cover, Met, Run

_WORDS = (
    "subnormal in",
    "zeros",
    "equal numbers",
    "infinity",
    "NaN",
    "both signs",
    "largest exponent",
    "smallest exponent",
    "element shifted out",
)
_CODES = ("lowest", "between", "highest")
_LEVELS = ("NaN", "zero", "underflow", "equal levels", "both signs")


def _encoder(run: Run) -> Iterator[Met]:
    """By the word, and by the codes of a word that is not constant."""
    x, cycles = np.asarray(run.inputs["i"]).astype(np.int64), run.cycles["o"]
    field, fraction, sign = x >> 7 & 255, x & 127, x >> 15
    top = field.max(1)
    finite = top < 255
    rows = {
        "subnormal in": ((field == 0) & (fraction > 0)).any(1),
        "zeros": top == 0,
        "equal numbers": (x == x[:, :1]).all(1) & (top > 0) & finite,
        "infinity": ((field == 255) & (fraction == 0)).any(1),
        "NaN": ((field == 255) & (fraction > 0)).any(1),
        "both signs": (sign == 0).any(1) & (sign == 1).any(1) & finite & (top > 0),
        "largest exponent": top == 254,
        "smallest exponent": top == 1,
        "element shifted out": ((field > 0) & (top[:, None] - field > 11)).any(1) & finite,
    }
    yield from (("word", name, int(cycle)) for name, hit in rows.items() for cycle in cycles[hit])
    codes = np.asarray(run.outputs["o"]["codes"]).astype(np.int64)
    highest = (1 << run.component.bits) - 1
    hits = {"lowest": codes == 0, "between": (codes > 0) & (codes < highest), "highest": codes == highest}
    moving = codes.max(1) > 0
    yield from (("code", name, int(c)) for name, hit in hits.items() for c in cycles[hit.any(1) & moving])


def _decoder(run: Run) -> Iterator[Met]:
    """By the codes, and by the levels of a word."""
    values, cycles = run.inputs["i"], run.cycles["o"]
    codes, header = np.asarray(values["codes"]).astype(np.int64), values["header"]
    exponent, low, high = (np.asarray(header[name]).astype(np.int64) for name in ("exponent", "low", "high"))
    y = np.asarray(run.outputs["o"]).astype(np.int64)
    nan = exponent == 255
    low, high = ((limit ^ 1 << 11) - (1 << 11) for limit in (low, high))
    zero = ((y & 0x7FFF) == 0).any(1)
    rows = {
        "NaN": nan,
        "zero": zero & ~nan,
        "underflow": ((y == 0x8000).any(1) | zero & (low > 0)) & ~nan,
        "equal levels": (low == high) & (low != 0),
        "both signs": (low < 0) & (high > 0),
    }
    yield from (("level", name, int(cycle)) for name, hit in rows.items() for cycle in cycles[hit])
    highest = (1 << run.component.bits) - 1
    hits = {"lowest": codes == 0, "between": (codes > 0) & (codes < highest), "highest": codes == highest}
    yield from (("code", name, int(cycle)) for name, hit in hits.items() for cycle in cycles[hit.any(1) & ~nan])


COVERS = {
    "kv_encoder": Cover({"word": _WORDS, "code": _CODES, RESET[0]: RESET[1:]}, _encoder),
    "kv_decoder": Cover({"level": _LEVELS, "code": _CODES, RESET[0]: RESET[1:]}, _decoder),
}
