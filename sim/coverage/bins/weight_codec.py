"""Bins of the decoder of weights: the numbers of each format, and the sizes of runs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hw.weight_codec.tile_layout import ENCODED
from sim.coverage.bins.cover import RESET, Cover, Met, Run

_NUMBERS = ("normal", "both signs", "zero", "negative zero", "infinity", "NaN")
_SIZES = ("one tile", "several tiles", "several rows", "format changes")


def _decoder(run: Run) -> Iterator[Met]:
    """By the rows of each format, and by the runs."""
    lanes, cycles = run.component.lanes, run.cycles["o"]
    runs = {name: np.asarray(column).astype(np.int64) for name, column in run.inputs["runs"].items()}
    encoding = np.repeat(runs["encoding"], runs["rows"] * runs["tiles"] * lanes)
    data = b"".join(int(word).to_bytes(2 * lanes, "little") for word in run.outputs["o"]["data"])
    y = np.frombuffer(data, "<u2").reshape(-1, lanes).astype(np.int64)
    magnitude, negative = y & 0x7FFF, y >> 15
    normal = (magnitude > 0) & (magnitude < 0x7F80)
    rows = {
        "normal": normal.any(1),
        "both signs": (normal & (negative == 0)).any(1) & (normal & (negative == 1)).any(1),
        "zero": (y == 0).any(1),
        "negative zero": (y == 0x8000).any(1),
        "infinity": (magnitude == 0x7F80).any(1),
        "NaN": (magnitude > 0x7F80).any(1),
    }
    for each in ENCODED:
        for name, hit in rows.items():
            yield from ((each.name, name, int(cycle)) for cycle in cycles[hit & (encoding == each)])
    changes = np.append(False, np.diff(runs["encoding"]) != 0)
    sizes = {
        "one tile": (runs["rows"] == 1) & (runs["tiles"] == 1),
        "several tiles": runs["tiles"] > 1,
        "several rows": runs["rows"] > 1,
        "format changes": changes,
    }
    yield from (("run", name, int(cycle)) for name, hit in sizes.items() for cycle in run.cycles["runs"][hit])


COVERS = {
    "weight_decoder": Cover(
        {**{encoding.name: _NUMBERS for encoding in ENCODED}, "run": _SIZES, RESET[0]: RESET[1:]}, _decoder
    ),
}
