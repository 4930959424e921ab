"""Cycles of V-Rex's frames and text tokens from the programs of its cores, in `sw_model/data/programs.json`.

python -m tests.sw_model.papers.bench_programs [name ...] simulates the runs with these names, such as
`vrex8 frame 40000`, and records them; without names, all runs that the record does not have. A run takes some minutes.
"""

import datetime
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from sw_model.papers import programs
from sw_model.systems import load_system
from util.files import git_revision, write_json


def runs() -> dict[str, Callable[[], dict[str, Any]]]:
    """All runs by name."""
    result: dict[str, Callable[[], dict[str, Any]]] = {"check": programs.check}
    for name in programs.SYSTEMS:
        system = load_system(name)
        result[programs.Point(name, "vision").name] = partial(programs.simulate_vision, system)
        for stage, tokens in (("frame", programs.LLAMA3_8B.tokens_per_frame), ("text", 1)):
            result[f"{name} {stage} head"] = partial(programs.simulate_head, system, tokens)
    return result | {point.name: partial(programs.simulate, point) for point in programs.POINTS}


def main(*names: str) -> None:
    every = runs()
    if unknown := set(names) - every.keys():
        raise SystemExit(f"name must be one of {', '.join(every)}, got {min(unknown)}")
    path = programs.RECORD
    done: dict[str, Any] = json.loads(path.read_text())["runs"] if path.exists() else {}
    for name in names or [name for name in every if name not in done]:
        start = time.process_time()
        entry = every[name]()
        print(f"{name}: {entry}, {time.process_time() - start:.0f} s", flush=True)
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        done[name] = entry | {"date": date, "commit": git_revision()}
        write_json(path, {"command": programs.COMMAND, "runs": {n: done[n] for n in every if n in done}})


if __name__ == "__main__":
    main(*sys.argv[1:])
