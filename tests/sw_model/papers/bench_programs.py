"""Cycles and bytes of frames and text tokens from the programs of the cores, in `sw_model/data/programs.json`.

python -m tests.sw_model.papers.bench_programs [name ...] simulates the runs with these names, such as
`vrex8 frame 40000` (policy `resv`) or `vrex8 full text 10000`, and records them; without names, all runs that the
record does not have. A run takes some minutes and is recorded when it is done, so that a stopped command can be
repeated.
"""

import datetime
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from sw_model.papers import program_runs, programs
from sw_model.systems import load_system
from util.files import git_revision, write_json


def runs() -> dict[str, Callable[[], dict[str, Any]]]:
    """All runs by name."""
    result: dict[str, Callable[[], dict[str, Any]]] = {"check": program_runs.check}
    for name in dict.fromkeys((*programs.SYSTEMS, *(point.system for point in programs.PLUS_POINTS))):
        system = load_system(name)
        if name in programs.SYSTEMS:
            result[programs.Point(name, "vision").name] = partial(program_runs.simulate_vision, system)
    points = [*programs.POINTS, *programs.TABLE_POINTS, *programs.PLUS_POINTS, *programs.BATCH_POINTS]
    for point in points:
        tokens = programs.LLAMA3_8B.tokens_per_frame if point.stage == "frame" else 1
        result[point.head] = partial(program_runs.simulate_head, load_system(point.system), tokens, point.batch)
    return result | {point.name: partial(program_runs.simulate, point) for point in points if program_runs.fits(point)}


def main(*names: str) -> None:
    every = runs()
    if unknown := set(names) - every.keys():
        raise SystemExit(f"name must be one of {', '.join(every)}, got {min(unknown)}")
    for name in names or [name for name in every if name not in recorded()]:
        start = time.process_time()
        entry = every[name]()
        print(f"{name}: {entry}, {time.process_time() - start:.0f} s", flush=True)
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        done = recorded() | {name: entry | {"date": date, "commit": git_revision()}}  # others can have run meanwhile
        write_json(programs.RECORD, {"command": programs.COMMAND, "runs": {n: done[n] for n in every if n in done}})


def recorded() -> dict[str, Any]:
    """Runs of the record at this moment."""
    return json.loads(programs.RECORD.read_text())["runs"] if programs.RECORD.exists() else {}


if __name__ == "__main__":
    main(*sys.argv[1:])
