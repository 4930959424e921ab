"""Many runs from one TOML file: on local processes or a Dask cluster, resumable, the same table from any of them.

    name = "links"

    [fixed]                       # of every run
    policy = "resv"
    workload = "frame"

    [grid]                        # every combination, the last key fastest
    system = ["vrex8", "vrex48"]
    tokens = [1000, 10000, 40000]
    "link.nominal_gbps" = [2, 4, 8]

Keys are those of `sw_model.request`. While the sweep runs, finished rows are appended to a journal beside the output,
one JSON line each, synchronised to the disk; a sweep that was killed goes on from there, and its table is the same as
that of one that was not. The table (CSV or Parquet) and a JSON file with all that is needed to repeat the sweep are
written aside and renamed at the end, and the journal is removed.
"""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from sw_model import preset_file
from sw_model.request import Request, figures, parse
from util.files import read_json, write, write_json
from util.progress import Progress, no_progress
from util.report.metadata import run_metadata

Row = dict[str, Any]
FORMS = (".csv", ".parquet")
PATIENCE_S = 10.0


@dataclass(frozen=True)
class Sweep:
    """A checked sweep: its name and its runs in order."""

    name: str
    requests: tuple[Request, ...]

    @property
    def digest(self) -> str:
        """Of the runs asked for; rows of another digest are another sweep's."""
        text = json.dumps([request.json() for request in self.requests], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def load_sweep(path: Path | str) -> Sweep:
    """The sweep of a TOML file; every run of it is checked. Raises ValueError naming what is wrong."""
    return parse_sweep(preset_file.read(Path(path), "sweep"), str(path))


def parse_sweep(data: dict[str, Any], where: str = "sweep") -> Sweep:
    """A checked sweep from the parsed TOML."""
    if unknown := set(data) - {"name", "fixed", "grid"}:
        raise ValueError(f"{where}: unknown key {min(unknown)!r}: name, [fixed] and [grid]")
    name, fixed, grid = data.get("name"), data.get("fixed", {}), data.get("grid", {})
    if not isinstance(name, str) or not name:
        raise ValueError(f"{where}: name is missing or not a string")
    if not isinstance(fixed, dict) or not isinstance(grid, dict):
        raise ValueError(f"{where}: fixed and grid must be tables")
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            raise ValueError(f"{where}: grid.{key} must be a list of values, got {values!r}")
        if key in fixed:
            raise ValueError(f"{where}: {key} is in [fixed] and in [grid]")
    requests = []
    for index, values in enumerate(itertools.product(*grid.values())):
        try:
            requests.append(parse({**fixed, **dict(zip(grid, values, strict=True))}))
        except ValueError as error:
            raise ValueError(f"{where}: run {index}: {error}") from None
    return Sweep(name, tuple(requests))


def row_of(index: int, request: Request) -> Row:
    """One row: its number, what was asked, what came out."""
    return {"run": index, **request.json(), **figures(request.run())}


def rows_of(part: Sequence[tuple[int, Request]]) -> list[Row]:
    """The rows of some runs; what a process or a worker of a cluster is sent."""
    return [row_of(index, request) for index, request in part]


def sweep(
    plan: Sweep,
    out: Path | str,
    *,
    workers: int | None = None,
    scheduler: str | None = None,
    progress: Progress = no_progress,
) -> list[Row]:
    """Make the runs that `out` or its journal do not have yet, and write the table. Returns all rows in order.

    out        `.csv` or `.parquet`; `.json` beside it tells the sweep
    workers    local processes; default one per core, 1: in this process
    scheduler  address of a Dask scheduler, instead of local processes

    Raises ValueError for a bad argument, a journal of another sweep, or a scheduler that cannot be reached; OSError if
    nothing can be written, ConnectionError if the scheduler is lost. What is finished stays in the journal.
    """
    out = Path(out)
    if out.suffix not in FORMS:
        raise ValueError(f"out must end in {' or '.join(FORMS)}, got {str(out)!r}")
    if out.suffix == ".parquet":
        needs("pyarrow")
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    out.parent.mkdir(parents=True, exist_ok=True)
    total = len(plan.requests)
    with journal(out, plan) as (rows, keep):
        todo = [(index, request) for index, request in enumerate(plan.requests) if index not in rows]
        progress(plan.name, len(rows), total)
        for part in executed(todo, workers, scheduler):
            keep(part)
            progress(plan.name, len(rows), total)
        table = [rows[index] for index in range(total)]
    write_table(table, out)
    about = {"sweep": plan.name, "digest": plan.digest, "rows": total, **run_metadata({"table": out.name})}
    write_json(out.with_suffix(".json"), {**about, "table": table})
    journal_path(out).unlink(missing_ok=True)
    return table


def executed(todo: Sequence[tuple[int, Request]], workers: int | None, scheduler: str | None) -> Iterator[list[Row]]:
    """Rows as they come, in parts, in no particular order."""
    if scheduler:
        yield from on_cluster(parts_of(todo, 4), scheduler)
        return
    count = workers or os.cpu_count() or 1
    if count == 1 or len(todo) < 2:
        yield from (rows_of([one]) for one in todo)
        return
    pool = ProcessPoolExecutor(min(count, len(todo)), mp_context=get_context("spawn"))
    try:
        pending = {pool.submit(rows_of, part) for part in parts_of(todo, 4)}
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
    except BrokenProcessPool:
        raise ChildProcessError("a worker process died; run the sweep again to go on") from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def parts_of(todo: Sequence[tuple[int, Request]], size: int) -> list[Sequence[tuple[int, Request]]]:
    return [todo[at : at + size] for at in range(0, len(todo), size)]


def on_cluster(parts: Sequence[Sequence[tuple[int, Request]]], scheduler: str) -> Iterator[list[Row]]:
    """Rows from a Dask cluster. A worker that dies has its runs made again by another."""
    distributed = needs("distributed")
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what goes wrong is said once, by the error
    try:
        client = distributed.Client(scheduler, timeout=PATIENCE_S, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"scheduler {scheduler!r} cannot be reached: {said}") from None
    try:
        lost = ConnectionError(f"scheduler {scheduler!r} was lost; run the sweep again to go on")
        finished: Queue[Any] = Queue()
        futures = client.map(rows_of, parts, pure=False)
        for future in futures:
            future.add_done_callback(finished.put)
        for _ in futures:
            while finished.empty() and client.status == "running":
                with suppress(Empty):
                    finished.put(finished.get(timeout=1))
            if client.status != "running":
                raise lost
            future = finished.get()
            if future.status == "error":
                raise ConnectionError(f"a run failed on {scheduler!r}: {future.exception()}")
            if future.status != "finished":
                raise lost
            try:
                rows = future.result(timeout=PATIENCE_S)
            except (OSError, TimeoutError, CancelledError):
                raise lost from None
            yield rows
    finally:
        client.close(timeout=1)


def needs(module: str) -> Any:
    """An optional package, or one line that says how to get it."""
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError:
        raise ValueError(f"the package {module} is missing: pip install 'vrex-rtl[sweep]'") from None


def journal_path(out: Path) -> Path:
    return out.with_name(f".{out.name}.journal")


@contextmanager
def journal(out: Path, plan: Sweep) -> Iterator[tuple[dict[int, Row], Callable[[list[Row]], None]]]:
    """The finished rows of `plan` by number, and a function that keeps more.

    A line that a crash cut short is dropped. A finished table of the same sweep counts too, so that running it again
    makes nothing twice. Raises ValueError for a journal of another sweep, or a damaged one.
    """
    path = journal_path(out)
    head = {"sweep": plan.name, "digest": plan.digest}
    rows: dict[int, Row] = {}
    whole = 0
    if path.exists():
        lines = path.read_bytes().splitlines(keepends=True)
        for number, line in enumerate(lines):
            if not line.endswith(b"\n"):
                break
            if number == 0:
                if line.strip() != json.dumps(head).encode():
                    raise ValueError(f"{path} belongs to another sweep: remove it, or choose another output")
            else:
                try:
                    rows.update(rows_by_number(json.loads(line), plan))
                except (ValueError, RecursionError):
                    raise ValueError(f"{path} is damaged in line {number + 1}: remove it to start over") from None
            whole += len(line)
    else:
        rows = finished_rows(out, plan)
    with path.open("r+b" if path.exists() else "w+b", buffering=0) as file:
        file.truncate(whole)
        file.seek(whole)
        if not whole:
            append(file, head, path)

        def keep(part: list[Row]) -> None:
            append(file, part, path)
            rows.update((row["run"], row) for row in part)

        yield rows, keep


def append(file: io.FileIO, value: Any, path: Path) -> None:
    """One more line, seen onto the disk; on failure nothing of it stays."""
    at, content = file.tell(), json.dumps(value).encode() + b"\n"
    try:
        while content:
            content = content[file.write(content) or 0 :]
        os.fsync(file.fileno())
    except OSError as error:
        file.truncate(at)
        raise OSError(error.errno, error.strerror, str(path)) from None


def finished_rows(out: Path, plan: Sweep) -> dict[int, Row]:
    """The rows of an output that is already there, if it is this sweep's."""
    with suppress(OSError, ValueError, KeyError, TypeError):  # there is none, or none that can be read
        told = read_json(out.with_suffix(".json"), "sweep result")
        if out.exists() and told["digest"] == plan.digest:
            return rows_by_number(told["table"], plan)
    return {}


def rows_by_number(rows: Any, plan: Sweep) -> dict[int, Row]:
    """Rows that were read back, by number. Raises ValueError for one that is no run of `plan`."""
    if not isinstance(rows, list):
        raise ValueError(f"rows must be a list, got {rows!r}")
    for row in rows:
        if not isinstance(row, dict) or type(row.get("run")) is not int or not 0 <= row["run"] < len(plan.requests):
            raise ValueError(f"row must have its number, got {row!r}")
        asked = plan.requests[row["run"]].json()
        if {key: row.get(key) for key in asked} != asked:
            raise ValueError(f"row {row['run']} must be of {asked}, got {row!r}")
    return {row["run"]: row for row in rows}


def columns(rows: Sequence[Row]) -> list[str]:
    """Every column that some row has, in order of first appearance."""
    return list(dict.fromkeys(key for row in rows for key in row))


def write_table(rows: Sequence[Row], out: Path) -> None:
    """CSV or Parquet, by the name; a value that a row lacks is empty."""
    names = columns(rows)
    if out.suffix == ".csv":
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write(out, text.getvalue())
        return
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({name: [row.get(name) for row in rows] for name in names})
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(table, sink)
    write(out, sink.getvalue().to_pybytes())
