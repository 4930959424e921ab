"""What the units of a core did, from its trace port: spans of commands, a Chrome trace, a picture."""

from __future__ import annotations

import html
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from hw.core.core import TRACE
from hw.core.isa import BY_NAME, Command, ExecUnit

ACTIVITY = ("matrix", "vector", "device_read", "device_write", "host_read", "host_write")
COLOURS = {
    "LOAD": "#4e79a7", "GATHER": "#76b7b2", "MULTIPLY": "#f28e2b", "VECTOR": "#59a14f", "MEANS": "#8cd17d",
    "BEGIN": "#b07aa1", "CLUSTER": "#b07aa1", "FETCH": "#d4a6c8", "OFFLOAD": "#ff9da7", "STORE": "#9c755f",
    "COPY": "#bab0ac",
}  # fmt: skip


LANES = 3  # commands of a unit that are drawn beside each other


@dataclass(frozen=True)
class Span:
    """A command on its unit, from cycle `start` up to cycle `end`; the `number`-th of the `program`-th program.

    Commands of a unit overlap; `lane` says how many earlier ones of it were still under way, up to two.
    """

    unit: ExecUnit
    name: str
    program: int
    number: int
    lane: int
    start: int
    end: int


def column(trace: np.ndarray, name: str) -> np.ndarray:
    """A field of the trace port over all cycles: int64 (cycles,)."""
    field = TRACE[name]
    values = np.asarray([int(word) for word in trace], np.int64)
    return values >> field.offset & (1 << field.width) - 1


def spans(trace: np.ndarray, programs: Sequence[Sequence[Command]]) -> list[Span]:
    """Spans of the commands of programs that ran one after the other, while `trace` was recorded.

    Commands of a unit begin and end in order, so the k-th beginning is that of its k-th command.
    """
    waiting: dict[ExecUnit, deque[tuple[str, int, int]]] = defaultdict(deque)
    for which, program in enumerate(programs):
        for number, command in enumerate(program):
            unit = BY_NAME[command.name].unit
            if unit is not None:
                waiting[unit].append((command.name, which, number))
    started, complete = column(trace, "started"), column(trace, "complete")
    found = []
    for unit in ExecUnit:
        begins = np.flatnonzero(started >> unit & 1)
        ends = np.flatnonzero(complete >> unit & 1)
        if not len(begins) == len(ends) == len(waiting[unit]):
            raise ValueError(
                f"{unit.name}: {len(begins)} beginnings and {len(ends)} ends of {len(waiting[unit])} commands"
            )
        free = [0] * LANES
        for begin, end, given in zip(begins.tolist(), ends.tolist(), waiting[unit], strict=True):
            lane = next((n for n, cycle in enumerate(free) if cycle <= begin), LANES - 1)
            free[lane] = end + 1
            found.append(Span(unit, *given, lane, begin, end + 1))
    return sorted(found, key=lambda span: (span.start, span.unit))


def busy(found: Sequence[Span]) -> dict[ExecUnit, int]:
    """Cycles in which each unit had a command."""
    total = {}
    for unit in ExecUnit:
        end = cycles = 0
        for span in found:
            if span.unit == unit:
                cycles += max(0, span.end - max(span.start, end))
                end = max(end, span.end)
        total[unit] = cycles
    return total


def together(found: Sequence[Span]) -> np.ndarray:
    """Cycles in which 0, 1, .. units had a command, from the first beginning to the last end: int64 (units + 1,)."""
    first, last = min(span.start for span in found), max(span.end for span in found)
    at_work = np.zeros((len(ExecUnit), last - first), bool)
    for span in found:
        at_work[span.unit, span.start - first : span.end - first] = True
    return np.bincount(at_work.sum(axis=0), minlength=len(ExecUnit) + 1)


def chrome_trace(
    found: Sequence[Span], trace: np.ndarray, *, window: int = 64, clock_mhz: float = 800
) -> dict[str, Any]:
    """For ui.perfetto.dev, in microseconds: tracks of commands for each unit; shares of cycles with a beat."""
    events: list[dict[str, Any]] = [{"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "core"}}]
    for unit, lane in sorted({(span.unit, span.lane) for span in found}):
        about = {"name": unit.name + (f" {lane + 1}" if lane else "")}
        events.append({"ph": "M", "pid": 1, "tid": LANES * unit + lane, "name": "thread_name", "args": about})
    events += [
        {
            "ph": "X",
            "pid": 1,
            "tid": LANES * span.unit + span.lane,
            "name": span.name,
            "ts": span.start / clock_mhz,
            "dur": (span.end - span.start) / clock_mhz,
            "args": {"program": span.program, "command": span.number, "cycles": span.end - span.start},
        }
        for span in found
    ]
    for name in ACTIVITY:
        beats = column(trace, name)
        shares = [(start, float(beats[start : start + window].mean())) for start in range(0, len(beats), window)]
        events += [
            {"ph": "C", "pid": 1, "name": name, "ts": start / clock_mhz, "args": {"share": share}}
            for start, share in shares
        ]
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"clock_mhz": clock_mhz}}


def picture(found: Sequence[Span], trace: np.ndarray, *, width: int = 1200) -> str:
    """An SVG: a row of commands for each unit, and below it how busy engines and ports were."""
    first, last = min(span.start for span in found), max(span.end for span in found)
    left, row = 100, 32
    scale = (width - left - 10) / (last - first)
    height = row * (len(ExecUnit) + len(ACTIVITY)) + 40
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        f'font-size="11"><title>Commands of {last - first} cycles</title>'
    ]
    out += [f'<text x="4" y="{row * unit + 17}">{unit.name}</text>' for unit in ExecUnit]
    high = (row - 8) / LANES
    for span in found:
        x, w = left + (span.start - first) * scale, max(0.5, (span.end - span.start) * scale)
        note = html.escape(f"{span.name} {span.number}: {span.start - first} to {span.end - first}")
        out.append(
            f'<rect x="{x:.1f}" y="{row * span.unit + 4 + span.lane * high:.1f}" width="{w:.1f}" height="{high:.1f}" '
            f'fill="{COLOURS[span.name]}" fill-opacity="0.8"><title>{note}</title></rect>'
        )
    bins = 300
    edges = np.linspace(first, last, bins + 1).astype(int)
    for n, name in enumerate(ACTIVITY):
        beats, base = column(trace, name), row * (len(ExecUnit) + n + 1) - 2
        out.append(f'<text x="4" y="{base - 7}">{name}</text>')
        shares = [float(beats[a : max(b, a + 1)].mean()) for a, b in pairwise(edges)]
        step = (width - left - 10) / bins
        points = " ".join(f"{left + k * step:.1f},{base - share * (row - 6):.1f}" for k, share in enumerate(shares))
        out.append(f'<polyline points="{left},{base} {points} {width - 10},{base}" fill="#bbb" stroke="#555"/>')
    used = dict.fromkeys(span.name for span in found)
    for n, name in enumerate(used):
        x = left + 95 * n
        out.append(f'<rect x="{x}" y="{height - 22}" width="12" height="12" fill="{COLOURS[name]}"/>')
        out.append(f'<text x="{x + 16}" y="{height - 12}">{name}</text>')
    return "\n".join([*out, "</svg>", ""])
