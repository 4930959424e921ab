"""Line, branch and toggle coverage of simulations: merges Verilator's data files and sums them up."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_POINT = re.compile(r"C '(.*)' (\d+)$")


@dataclass(frozen=True)
class Coverage:
    """Points reached and points there are, by kind, and the ones never reached."""

    reached: dict[str, int]
    total: dict[str, int]
    missed: list[str]

    def table(self, most: int = 40) -> str:
        """One line per kind, then up to `most` of the missed points."""
        lines = [f"{k:8} {self.reached[k]}/{n} = {100 * self.reached[k] / n:.1f} %" for k, n in self.total.items()]
        lines += [f"  not reached: {point}" for point in self.missed[:most]]
        more = len(self.missed) - most
        return "\n".join(lines + ([f"  and {more} more"] if more > 0 else []))


def merge(files: Iterable[Path]) -> Coverage:
    """Coverage over all runs; neither bits stored in memories nor names that yosys made count as toggles."""
    counts: Counter[str] = Counter()
    for file in files:
        for line in file.read_text(encoding="latin1").splitlines():
            if found := _POINT.match(line):
                counts[found[1]] += int(found[2])
    reached: Counter[str] = Counter()
    total: Counter[str] = Counter()
    missed = []
    for point, hits in sorted(counts.items()):
        fields = dict(field.split("\x02", 1) for field in point.split("\x01") if "\x02" in field)
        kind = fields.get("t") or fields.get("page", "?").split("/")[0].removeprefix("v_")
        name = fields.get("o", "")
        if kind == "toggle" and name.startswith(("_", "array[", "storage[")):
            continue
        total[kind] += 1
        reached[kind] += hits > 0
        if not hits:
            missed.append(f"{kind} {fields.get('h', '').removeprefix('TOP.')} {name} line {fields.get('l', '?')}")
    return Coverage({kind: reached[kind] for kind in total}, dict(total), missed)
