"""Bins of the KV codec: the kinds of words, and the codes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hw.kv_codec.bfp import QUARTERS
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


_QUARTERS = (
    "subnormal in",
    "zeros",
    "infinity",
    "NaN",
    "largest exponent",
    "smallest exponent",
    "element shifted out",
    "tie",
    "saturation",
)
_NUMBERS = ("NaN", "zero", "negative zero", "underflow", "largest exponent", "both signs")


def _bfp_encoder(run: Run) -> Iterator[Met]:
    """By the quarters of a word, and by the codes."""
    cycles = run.cycles["o"]
    x = np.asarray(run.inputs["i"]).astype(np.int64)
    x = x.reshape(len(x), QUARTERS, -1)
    field, fraction = x >> 7 & 255, x & 127
    top = field.max(2, keepdims=True)
    finite, distance = top < 255, top - field
    # a tie: the last bits of the significand are a one and zeros
    significand = np.where(field > 0, fraction | 128, 0)
    tie = (significand & (2 << np.minimum(distance, 8)) - 1) == 1 << np.minimum(distance, 8)
    rows = {
        "subnormal in": (field == 0) & (fraction > 0),
        "zeros": top == 0,
        "infinity": (field == 255) & (fraction == 0),
        "NaN": (field == 255) & (fraction > 0),
        "largest exponent": top == 254,
        "smallest exponent": top == 1,
        "element shifted out": (field > 0) & (distance > 7) & finite,
        "tie": tie & finite,
        "saturation": (distance == 0) & (fraction == 127) & finite & (top > 0),
    }
    yield from (("quarter", name, int(c)) for name, hit in rows.items() for c in cycles[hit.any((1, 2))])
    yield from _signed_codes(np.asarray(run.outputs["o"]["codes"]), cycles)


def _bfp_decoder(run: Run) -> Iterator[Met]:
    """By the codes, and by the numbers of a word."""
    columns, cycles = run.inputs["i"], run.cycles["o"]
    codes, header = np.asarray(columns["codes"]).astype(np.int64), np.asarray(columns["header"]).astype(np.int64)
    y = np.asarray(run.outputs["o"]).astype(np.int64)
    exponent = header.repeat(codes.shape[1] // QUARTERS, axis=1)
    nan, zero = exponent == 255, (y & 0x7FFF) == 0
    rows = {
        "NaN": nan.any(1),
        "zero": (zero & (codes == 0) & ~nan).any(1),
        "negative zero": (y == 0x8000).any(1),
        "underflow": (zero & (codes != 0)).any(1),
        "largest exponent": (exponent == 254).any(1),
        "both signs": (y >> 15 == 0).any(1) & (y >> 15 == 1).any(1),
    }
    yield from (("number", name, int(cycle)) for name, hit in rows.items() for cycle in cycles[hit])
    yield from _signed_codes(np.where(nan, 0, codes), cycles)


def _signed_codes(codes: np.ndarray, cycles: np.ndarray) -> Iterator[Met]:
    """By the codes of the format with 8 bits."""
    codes = codes.astype(np.uint8).view(np.int8)
    hits = {"lowest": codes == -127, "between": np.abs(codes) < 127, "highest": codes == 127}
    yield from (("code", name, int(c)) for name, hit in hits.items() for c in cycles[hit.any(1)])


COVERS = {
    "kv_encoder": Cover({"word": _WORDS, "code": _CODES, RESET[0]: RESET[1:]}, _encoder),
    "kv_decoder": Cover({"level": _LEVELS, "code": _CODES, RESET[0]: RESET[1:]}, _decoder),
    "bfp_encoder": Cover({"quarter": _QUARTERS, "code": _CODES, RESET[0]: RESET[1:]}, _bfp_encoder),
    "bfp_decoder": Cover({"number": _NUMBERS, "code": _CODES, RESET[0]: RESET[1:]}, _bfp_decoder),
}
