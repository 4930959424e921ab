"""Many runs from one TOML file, on local processes or a Dask cluster; resumable, with the same table from either.

    name = "links"

    [fixed]                       # values of every run
    policy = "resv"
    workload = "frame"

    [grid]                        # all combinations; the last key changes fastest
    system = ["vrex8", "vrex48"]
    tokens = [1000, 10000, 40000]
    "link.nominal_gbps" = [2, 4, 8]

`sw_model.request` defines the keys. While the sweep runs, complete rows are appended to a journal next to the output,
one JSON line each, synchronised to the disk. A sweep that was killed continues from its journal, with the same table as
a sweep that was not killed. At the end the table (CSV or Parquet) and a JSON file with everything that is needed to
repeat the sweep are written to temporary files and renamed, and the journal is removed.
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
from sw_model.request import Request, parse
from util.files import read_json, write, write_json
from util.progress import Progress, no_progress
from util.report.metadata import run_metadata

Row = dict[str, Any]
FORMATS = (".csv", ".parquet")
TIMEOUT_S = 10.0  # of a connection to a scheduler
CHUNK = 4  # runs that a process or a worker gets at once


@dataclass(frozen=True)
class Sweep:
    """A checked sweep: its name and its runs in order."""

    name: str
    requests: tuple[Request, ...]

    @property
    def digest(self) -> str:
        """Hash of the requests; rows with another digest belong to another sweep."""
        text = json.dumps([request.json() for request in self.requests], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def load_sweep(path: Path | str) -> Sweep:
    """The sweep of a TOML file. Raises ValueError that names the file and the key, or the invalid run."""
    return parse_sweep(preset_file.read(Path(path), "sweep"), str(path))


def parse_sweep(data: dict[str, Any], where: str = "sweep") -> Sweep:
    """A checked sweep from the parsed TOML."""
    if unknown := set(data) - {"name", "fixed", "grid"}:
        raise ValueError(f"{where}: key must be one of name, fixed, grid, got {min(unknown)!r}")
    name, fixed, grid = data.get("name"), data.get("fixed", {}), data.get("grid", {})
    if not isinstance(name, str) or not name:
        raise ValueError(f"{where}: name is missing or not a string")
    if not isinstance(fixed, dict) or not isinstance(grid, dict):
        raise ValueError(f"{where}: fixed and grid must be tables")
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            raise ValueError(f"{where}: grid.{key} must be a list of values, got {values!r}")
        if key in fixed:
            raise ValueError(f"{where}: {key} must be in [fixed] or in [grid], got both")
    requests = []
    for index, values in enumerate(itertools.product(*grid.values())):
        try:
            requests.append(parse({**fixed, **dict(zip(grid, values, strict=True))}))
        except ValueError as error:
            raise ValueError(f"{where}: run {index}: {error}") from None
    return Sweep(name, tuple(requests))


def row_of(index: int, request: Request) -> Row:
    """One row: its number, the request, the figures of the result."""
    return {"run": index, **request.json(), **request.figures()}


def rows_of(chunk: Sequence[tuple[int, Request]]) -> list[Row]:
    """The rows of some numbered requests; the task of a process or of a worker of a cluster."""
    return [row_of(index, request) for index, request in chunk]


def sweep(
    plan: Sweep,
    out: Path | str,
    *,
    workers: int | None = None,
    scheduler: str | None = None,
    progress: Progress = no_progress,
) -> list[Row]:
    """Run the requests that `out` or its journal does not have yet, and write the table. Returns all rows in order.

    out        table, `.csv` or `.parquet`; a file with the suffix `.json` describes the sweep
    workers    local processes; None: one per core; 1: this process
    scheduler  address of a Dask scheduler, instead of local processes

    Raises ValueError for an invalid argument, a journal of another sweep, or a scheduler that cannot be reached;
    OSError when a file cannot be written; ConnectionError when the connection to the scheduler breaks;
    ChildProcessError when a local process ends early. Complete rows stay in the journal.
    """
    out = Path(out)
    if out.suffix not in FORMATS:
        raise ValueError(f"out must end in {' or '.join(FORMATS)}, got {str(out)!r}")
    if out.suffix == ".parquet":
        require("pyarrow")
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    out.parent.mkdir(parents=True, exist_ok=True)
    total = len(plan.requests)
    with journal(out, plan) as (rows, add_rows):
        remaining = [(index, request) for index, request in enumerate(plan.requests) if index not in rows]
        progress(plan.name, len(rows), total)
        for new_rows in executed(remaining, workers, scheduler):
            add_rows(new_rows)
            progress(plan.name, len(rows), total)
        table = [rows[index] for index in range(total)]
    write_table(table, out)
    metadata = {"sweep": plan.name, "digest": plan.digest, "rows": total, **run_metadata({"table": out.name})}
    write_json(out.with_suffix(".json"), {**metadata, "table": table})
    journal_path(out).unlink(missing_ok=True)
    return table


def executed(
    numbered: Sequence[tuple[int, Request]], workers: int | None, scheduler: str | None
) -> Iterator[list[Row]]:
    """The rows of numbered requests, some at a time, in no particular order."""
    if scheduler:
        yield from run_on_dask(chunks_of(numbered, CHUNK), scheduler)
        return
    count = workers or os.cpu_count() or 1
    if count == 1 or len(numbered) < 2:
        yield from (rows_of([entry]) for entry in numbered)
        return
    pool = ProcessPoolExecutor(min(count, len(numbered)), mp_context=get_context("spawn"))
    try:
        pending = {pool.submit(rows_of, chunk) for chunk in chunks_of(numbered, CHUNK)}
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
    except BrokenProcessPool:
        raise ChildProcessError("a worker process ended early; run the sweep again to continue") from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def chunks_of(numbered: Sequence[tuple[int, Request]], size: int) -> list[Sequence[tuple[int, Request]]]:
    """The requests in groups of `size`; the last group can be shorter."""
    return [numbered[at : at + size] for at in range(0, len(numbered), size)]


def run_on_dask(chunks: Sequence[Sequence[tuple[int, Request]]], scheduler: str) -> Iterator[list[Row]]:
    """Rows from a Dask cluster. When a worker ends early, another worker repeats its runs."""
    distributed = require("distributed")
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # the exception below reports errors once
    try:
        client = distributed.Client(scheduler, timeout=TIMEOUT_S, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"scheduler {scheduler!r} cannot be reached: {reason}") from None
    try:
        lost = ConnectionError(f"connection to scheduler {scheduler!r} broke; run the sweep again to continue")
        finished: Queue[Any] = Queue()
        futures = client.map(rows_of, chunks, pure=False)
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
                rows = future.result(timeout=TIMEOUT_S)
            except (OSError, TimeoutError, CancelledError):
                raise lost from None
            yield rows
    finally:
        client.close(timeout=1)


def require(module: str) -> Any:
    """An optional package. Raises ValueError that says how to install it."""
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError:
        raise ValueError(f"the package {module} is missing: pip install 'vrex-rtl[sweep]'") from None


def journal_path(out: Path) -> Path:
    """The journal of an output file."""
    return out.with_name(f".{out.name}.journal")


@contextmanager
def journal(out: Path, plan: Sweep) -> Iterator[tuple[dict[int, Row], Callable[[list[Row]], None]]]:
    """The complete rows of `plan` by number, and a function that adds rows to the journal.

    An incomplete last line, which a crash leaves, is dropped. A complete table of the same sweep is read too, so that
    no run is repeated. Raises ValueError for a journal of another sweep or a damaged journal.
    """
    path = journal_path(out)
    head = {"sweep": plan.name, "digest": plan.digest}
    rows: dict[int, Row] = {}
    complete_bytes = 0
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
            complete_bytes += len(line)
    else:
        rows = finished_rows(out, plan)
    with path.open("r+b" if path.exists() else "w+b", buffering=0) as file:
        file.truncate(complete_bytes)
        file.seek(complete_bytes)
        if not complete_bytes:
            append(file, head, path)

        def add_rows(new_rows: list[Row]) -> None:
            append(file, new_rows, path)
            rows.update((row["run"], row) for row in new_rows)

        yield rows, add_rows


def append(file: io.FileIO, value: Any, path: Path) -> None:
    """Append one line and write it to the disk; on failure the file keeps its old content."""
    at, content = file.tell(), json.dumps(value).encode() + b"\n"
    try:
        while content:
            content = content[file.write(content) or 0 :]
        os.fsync(file.fileno())
    except OSError as error:
        file.truncate(at)
        raise OSError(error.errno, error.strerror, str(path)) from None


def finished_rows(out: Path, plan: Sweep) -> dict[int, Row]:
    """The rows of a complete output of the same sweep; empty when there is none."""
    with suppress(OSError, ValueError, KeyError, TypeError):  # no output, or one that cannot be read
        result = read_json(out.with_suffix(".json"), "sweep result")
        if out.exists() and result["digest"] == plan.digest:
            return rows_by_number(result["table"], plan)
    return {}


def rows_by_number(rows: Any, plan: Sweep) -> dict[int, Row]:
    """Rows from a file, by number. Raises ValueError for a row that is not a run of `plan`."""
    if not isinstance(rows, list):
        raise ValueError(f"rows must be a list, got {rows!r}")
    for row in rows:
        if not isinstance(row, dict) or type(row.get("run")) is not int or not 0 <= row["run"] < len(plan.requests):
            raise ValueError(f"row must have the number of a run, got {row!r}")
        request = plan.requests[row["run"]].json()
        if {key: row.get(key) for key in request} != request:
            raise ValueError(f"row {row['run']} must have the request {request}, got {row!r}")
    return {row["run"]: row for row in rows}


def columns(rows: Sequence[Row]) -> list[str]:
    """The columns of all rows, in order of first appearance."""
    return list(dict.fromkeys(key for row in rows for key in row))


def write_table(rows: Sequence[Row], out: Path) -> None:
    """Write the rows as CSV or Parquet, by the suffix of `out`; a value that a row does not have is empty."""
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
