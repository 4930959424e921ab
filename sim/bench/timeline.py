"""Timeline of the units of a core from its trace port: spans of commands, a Chrome trace, an SVG picture."""

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
    "OPEN": "#b07aa1", "CLUSTER": "#b07aa1", "SELECT": "#e15759", "FETCH": "#d4a6c8", "OFFLOAD": "#ff9da7",
    "RELEASE": "#d37295", "KEEP": "#86bcb6", "MOVE": "#fabfd2", "STORE": "#9c755f", "COPY": "#bab0ac",
    "COUNT": "#a0cbe8", "BARRIER": "#edc948",
}  # fmt: skip


LANES = 3  # overlapping commands of a unit that are drawn in separate rows


@dataclass(frozen=True)
class Span:
    """Execution of a command on its unit, from cycle `start` to cycle `end` (exclusive).

    program, number : index of the program, and of the command in the program
    lane : row of the command in the drawing; overlapping commands of a unit have different lanes while lanes are free
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
    """Spans of the commands of `programs`, which ran in this order while `trace` was recorded.

    The commands of a unit start and end in order, so the k-th start event of a unit belongs to its k-th command.
    Raises ValueError when the numbers of events and commands of a unit differ.
    """
    commands: dict[ExecUnit, deque[tuple[str, int, int]]] = defaultdict(deque)
    for index, program in enumerate(programs):
        for number, command in enumerate(program):
            unit = BY_NAME[command.name].unit
            if unit is not None:
                commands[unit].append((command.name, index, number))
    start_events, complete = column(trace, "started"), column(trace, "complete")
    result = []
    for unit in ExecUnit:
        starts = np.flatnonzero(start_events >> unit & 1)
        ends = np.flatnonzero(complete >> unit & 1)
        if not len(starts) == len(ends) == len(commands[unit]):
            raise ValueError(
                f"{unit.name} must have {len(commands[unit])} start and end events, got {len(starts)} and {len(ends)}"
            )
        free = [0] * LANES
        for start, end, entry in zip(starts.tolist(), ends.tolist(), commands[unit], strict=True):
            lane = next((n for n, cycle in enumerate(free) if cycle <= start), LANES - 1)
            free[lane] = end + 1
            result.append(Span(unit, *entry, lane, start, end + 1))
    return sorted(result, key=lambda span: (span.start, span.unit))


def busy(spans: Sequence[Span]) -> dict[ExecUnit, int]:
    """Number of cycles in which each unit executes a command."""
    total = {}
    for unit in ExecUnit:
        end = cycles = 0
        for span in spans:
            if span.unit == unit:
                cycles += max(0, span.end - max(span.start, end))
                end = max(end, span.end)
        total[unit] = cycles
    return total


def concurrency(spans: Sequence[Span]) -> np.ndarray:
    """Numbers of cycles from the first start to the last end in which 0, 1, .. units execute a command."""
    first, last = min(span.start for span in spans), max(span.end for span in spans)
    active = np.zeros((len(ExecUnit), last - first), bool)
    for span in spans:
        active[span.unit, span.start - first : span.end - first] = True
    return np.bincount(active.sum(axis=0), minlength=len(ExecUnit) + 1)


def chrome_trace(
    spans: Sequence[Span], trace: np.ndarray, *, window: int = 64, clock_mhz: float = 800
) -> dict[str, Any]:
    """Trace for ui.perfetto.dev in microseconds: tracks of the commands of each unit, shares of cycles with a beat."""
    events: list[dict[str, Any]] = [{"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "core"}}]
    for unit, lane in sorted({(span.unit, span.lane) for span in spans}):
        thread_name = {"name": unit.name + (f" {lane + 1}" if lane else "")}
        events.append({"ph": "M", "pid": 1, "tid": LANES * unit + lane, "name": "thread_name", "args": thread_name})
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
        for span in spans
    ]
    for name in ACTIVITY:
        beats = column(trace, name)
        shares = [(start, float(beats[start : start + window].mean())) for start in range(0, len(beats), window)]
        events += [
            {"ph": "C", "pid": 1, "name": name, "ts": start / clock_mhz, "args": {"share": share}}
            for start, share in shares
        ]
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"clock_mhz": clock_mhz}}


def picture(spans: Sequence[Span], trace: np.ndarray, *, width: int = 1200) -> str:
    """SVG with the commands of each unit in a row, and below the shares of busy cycles of engines and ports."""
    first, last = min(span.start for span in spans), max(span.end for span in spans)
    left, row = 100, 32
    scale = (width - left - 10) / (last - first)
    height = row * (len(ExecUnit) + len(ACTIVITY)) + 40
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        f'font-size="11"><title>Commands of {last - first} cycles</title>'
    ]
    out += [f'<text x="4" y="{row * unit + 17}">{unit.name}</text>' for unit in ExecUnit]
    lane_height = (row - 8) / LANES
    for span in spans:
        x, w = left + (span.start - first) * scale, max(0.5, (span.end - span.start) * scale)
        y = row * span.unit + 4 + span.lane * lane_height
        note = html.escape(f"{span.name} {span.number}: {span.start - first} to {span.end - first}")
        out.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{lane_height:.1f}" '
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
    names = dict.fromkeys(span.name for span in spans)
    for n, name in enumerate(names):
        x = left + 95 * n
        out.append(f'<rect x="{x}" y="{height - 22}" width="12" height="12" fill="{COLOURS[name]}"/>')
        out.append(f'<text x="{x + 16}" y="{height - 12}">{name}</text>')
    return "\n".join([*out, "</svg>", ""])
