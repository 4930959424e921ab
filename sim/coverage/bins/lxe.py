"""Bins of the matrix and vector engines."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hw.lxe.microcode import REDUCTIONS, Function, Post, Pre, Source, Times
from sim.coverage.bins.cover import RESET, Cover, Met, Run


def _dpe(run: Run) -> Iterator[Met]:
    """Tile by tile: a tile ends with the beat that releases its weights."""
    columns = {name: np.asarray(values).astype(np.int64) for name, values in run.inputs["i"].items() if name != "x"}
    results = np.asarray(run.outputs["o"]["y"])
    start = 0
    for end in (np.flatnonzero(columns["release"]) + 1).tolist():
        accumulators, first, last = (columns[name][start:end] for name in ("accumulator", "first", "last"))
        for mode, mode_beats in (
            ("whole sum", first & last),
            ("begins a sum", first & ~last & 1),
            ("goes on", ~first & ~last & 1),
            ("ends a sum", ~first & last & 1),
        ):
            if mode_beats.any():
                at = int(run.cycles["i"][end - 1])
                yield mode, "one vector" if end - start == 1 else "several vectors", at
                if len(np.unique(accumulators)) == run.component.accumulators:
                    yield mode, "every accumulator", at
                if (accumulators[1:] == accumulators[:-1])[mode_beats[1:] > 0].any():
                    yield mode, "the accumulator of the beat before", at
        start = end
    kinds = {"infinity": results & 0x7FFFFFFF == 0x7F800000, "NaN": results == 0x7FC00000, "zero": results == 0}
    for name, hits in kinds.items():
        yield from (("results", name, int(at)) for at in run.cycles["o"][hits.any(1)])


_TILE = ("one vector", "several vectors", "every accumulator", "the accumulator of the beat before")


def _memory(run: Run) -> Iterator[Met]:
    """Read by read, against the writes before and after it."""
    unit, write = run.component, run.inputs["i_write"]
    written = {
        (int(cycle), int(kind), int(row))
        for cycle, kind, row in zip(run.cycles["i_write"], write["activations"], write["row"], strict=True)
    }
    for mode, kind, rows, last in (
        ("weights", 0, np.asarray(run.inputs["i_weights"]), unit.weight_rows // unit.load_rows - 1),
        ("activations", 1, np.asarray(run.inputs["i_activations"]["row"]), unit.activation_rows - 1),
    ):
        cycles = run.cycles[f"i_{mode}"]
        size = 1 if kind else unit.load_rows
        for cycle, row in zip(cycles.tolist(), rows.tolist(), strict=True):
            rows_read = [row * size + k for k in range(size)]
            for when, at in (("before", cycle - 1), ("after", cycle + 1)):
                if any((at, kind, address) in written for address in rows_read):
                    yield mode, f"written in the cycle {when}", cycle
            if row in (0, last):
                yield mode, "first row" if row == 0 else "last row", cycle
        yield from ((mode, "one after the other", int(at)) for at in cycles[1:][np.diff(cycles) == 1])


_READ = ("first row", "last row", "written in the cycle before", "written in the cycle after", "one after the other")


def _vpe(run: Run) -> Iterator[Met]:
    """Instruction by instruction."""
    code = {name: np.asarray(values).astype(np.int64) for name, values in run.inputs["code"].items()}
    beats = 0  # of the input stream that the instructions so far take; their last one is when they are under way
    for n in range(len(code["post"])):
        op = {name: int(values[n]) for name, values in code.items()}
        steps = (Pre(op["pre"]), Times(op["times"]), Function(op["function"]), Post(op["post"]))
        if op["a"] == Source.STREAM.value:
            beats += op["rows"] * op["beats"]
        at = int(max(run.cycles["code"][n], run.cycles["i"][beats - 1] if beats else 0))
        met = ["one beat" if op["beats"] == 1 else "several beats"]
        met += ["several rows"] * (op["rows"] > 1)
        for step in steps:
            yield from ((f"{type(step).__name__}.{step.name}", boundary, at) for boundary in met)
        if steps[3] in REDUCTIONS and op["tail"]:
            yield f"Post.{steps[3].name}", "part of a beat", at
        for operand in "ab":
            yield f"operand {operand}", Source(op[operand]).name.lower(), at
        for destination in ("memory", "stream"):
            if op[f"to_{destination}"]:
                yield "result", f"to {destination}{', rounded' if op['round'] else ''}", at


_LENGTHS = ("one beat", "several beats", "several rows")
_INSTRUCTIONS: dict[str, tuple[str, ...]] = {
    **{f"Pre.{step.name}": _LENGTHS for step in Pre},
    **{f"Times.{step.name}": _LENGTHS for step in Times},
    **{f"Function.{step.name}": _LENGTHS for step in Function},
    **{f"Post.{step.name}": _LENGTHS + ("part of a beat",) * (step in REDUCTIONS) for step in Post},
    "Post.ROTATE": _LENGTHS[1:],
    "operand a": tuple(source.name.lower() for source in Source),
    "operand b": tuple(source.name.lower() for source in Source if source is not Source.STREAM),
    "result": tuple(
        f"to {destination}{suffix}" for destination in ("memory", "stream") for suffix in ("", ", rounded")
    ),
    RESET[0]: RESET[1:],
}
COVERS = {
    "dpe": Cover(
        {
            **dict.fromkeys(("whole sum", "begins a sum", "goes on", "ends a sum"), _TILE),
            "results": ("infinity", "NaN", "zero"),
            RESET[0]: RESET[1:],
        },
        _dpe,
    ),
    "operand_memory": Cover({"weights": _READ, "activations": _READ, RESET[0]: RESET[1:]}, _memory),
    "vpe": Cover(_INSTRUCTIONS, _vpe),
}
