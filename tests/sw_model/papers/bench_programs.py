"""Cycles of V-Rex's frames and text tokens from the programs of its cores, in `sw_model/data/programs.json`.

python -m tests.sw_model.papers.bench_programs [name ...] simulates the runs with these names, such as
`vrex8 frame 40000`, and records them; without names, all runs that the record does not have. A run takes some minutes.
"""

import datetime
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from sw_model.papers import programs
from sw_model.systems import load_system
from util.files import git_revision, write_json


def runs() -> dict[str, Callable[[], dict[str, Any]]]:
    """All runs by name."""
    result: dict[str, Callable[[], dict[str, Any]]] = {"check": programs.check}
    for name in programs.SYSTEMS:
        system = load_system(name)
        result[f"{name} vision"] = lambda system=system: programs.simulate_vision(system)
        for stage, tokens in (("frame", programs.LLAMA3_8B.tokens_per_frame), ("text", 1)):
            result[f"{name} {stage} head"] = lambda s=system, t=tokens: programs.simulate_head(s, t)
    return result | {point.name: lambda p=point: programs.simulate(p) for point in programs.POINTS}


def main(*names: str) -> None:
    every = runs()
    if unknown := set(names) - every.keys():
        raise SystemExit(f"name must be one of {', '.join(every)}, got {min(unknown)}")
    record = {"command": programs.COMMAND, "runs": {}}
    if programs.RECORD.exists():
        record = json.loads(programs.RECORD.read_text())
    for name in names or [name for name in every if name not in record["runs"]]:
        start = time.process_time()
        entry = every[name]()
        print(f"{name}: {entry}, {time.process_time() - start:.0f} s", flush=True)
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        record["runs"][name] = entry | {"date": date, "commit": git_revision()}
        record["runs"] = {name: record["runs"][name] for name in every if name in record["runs"]}
        write_json(programs.RECORD, record)


if __name__ == "__main__":
    main(*sys.argv[1:])
