"""Sweeps: the same table from one process, two, a cluster, and after a kill; no run is repeated, no row is lost."""

import csv
import errno
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from threading import Timer
from types import SimpleNamespace

import pytest

from sw_model.request import Request, figures
from sw_model.sweep import executed, journal_path, load_sweep, parse_sweep, rows_of, sweep

ROOT = Path(__file__).resolve().parents[2]
GRID = {"system": ["vrex8", "agx-orin"], "tokens": [1000, 20000], "policy": ["resv", "mosaic"]}
PLAN = parse_sweep({"name": "small", "fixed": {"workload": "text"}, "grid": GRID})


@pytest.fixture(scope="module")
def expected():
    """The rows of single runs."""
    rows = []
    for index, request in enumerate(PLAN.requests):
        rows.append({"run": index, **request.json(), **figures(request.run())})
    return rows


def test_grid_order():
    order = [(r.system, r.tokens, r.policy) for r in PLAN.requests]
    assert order[:3] == [("vrex8", 1000, "resv"), ("vrex8", 1000, "mosaic"), ("vrex8", 20000, "resv")]
    assert len(order) == 8 and {r.workload for r in PLAN.requests} == {"text"}


def test_table_files(tmp_path, expected):
    pyarrow = pytest.importorskip("pyarrow.parquet")
    assert sweep(PLAN, tmp_path / "t.csv", workers=1) == expected
    metadata = json.loads((tmp_path / "t.json").read_text())
    assert metadata["table"] == expected and metadata["rows"] == 8 and metadata["git revision"]
    with (tmp_path / "t.csv").open(newline="") as file:
        read = list(csv.DictReader(file))
    assert [float(row["total_ms"]) for row in read] == [row["total_ms"] for row in expected]
    assert read[0]["utilisation.GPU"] == "" and read[-1]["utilisation.LXE"] == ""
    sweep(PLAN, tmp_path / "t.parquet", workers=1)
    table = pyarrow.read_table(tmp_path / "t.parquet")
    assert table.column("total_ms").to_pylist() == [row["total_ms"] for row in expected]
    assert table.column("bytes.PCIe").to_pylist() == [row.get("bytes.PCIe") for row in expected]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t.csv", "t.json", "t.parquet"]


def test_number_of_processes_does_not_change_the_table(tmp_path, expected):
    assert sweep(PLAN, tmp_path / "two.csv", workers=2) == expected
    sweep(PLAN, tmp_path / "one.csv", workers=1)
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()


def test_interrupted_sweep_continues(tmp_path, expected, monkeypatch):
    """A sweep that stops after three rows, while it writes the fourth, runs the other five requests only."""
    executed_runs = []

    def counted(part):
        executed_runs.extend(index for index, _ in part)
        return rows_of(part)

    def stop(what, done, total):
        if done == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("sw_model.sweep.rows_of", counted)
    out = tmp_path / "t.csv"
    with pytest.raises(KeyboardInterrupt):
        sweep(PLAN, out, workers=1, progress=stop)
    assert not out.exists()
    with journal_path(out).open("ab") as file:
        file.write(b'[{"run": 3, "total')
    calls = []
    assert sweep(PLAN, out, workers=1, progress=lambda what, done, total: calls.append(done)) == expected
    assert executed_runs == list(range(8)) and calls == [3, 4, 5, 6, 7, 8]
    # a complete sweep repeats no run
    assert sweep(PLAN, out, workers=1) == expected and len(executed_runs) == 8
    assert not journal_path(out).exists()


def test_killed_sweep_continues(tmp_path, expected):
    """After SIGKILL and a second start the table is that of a sweep that was not killed."""
    spec = tmp_path / "s.toml"
    spec.write_text(
        'name = "small"\n[fixed]\nworkload = "text"\n[grid]\n'
        + "".join(f"{key} = {json.dumps(values)}\n" for key, values in GRID.items())
    )
    assert load_sweep(spec) == PLAN
    out = tmp_path / "t.csv"
    command = [
        sys.executable,
        "-c",
        f"from sw_model.sweep import *; sweep(load_sweep({str(spec)!r}), {str(out)!r}, workers=1)",
    ]
    child = subprocess.Popen(command, cwd=ROOT)
    limit = time.monotonic() + 60
    while not (journal_path(out).exists() and journal_path(out).read_bytes().count(b"\n") >= 2):
        assert time.monotonic() < limit and child.poll() is None
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    child.wait()
    complete_rows = journal_path(out).read_bytes().count(b"\n") - 1
    first = []
    assert sweep(PLAN, out, workers=1, progress=lambda what, done, total: first.append(done)) == expected
    assert first[0] == complete_rows >= 1


def test_full_disk_keeps_complete_rows(tmp_path, expected, monkeypatch):
    """The disk is full at the third row: the error names the file; with free space the sweep continues."""
    out, calls, sync = tmp_path / "t.csv", [], os.fsync

    def full(handle):
        calls.append(handle)
        if len(calls) == 4:  # the head and two rows fitted
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(handle)

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        sweep(PLAN, out, workers=1)
    assert caught.value.filename == str(journal_path(out)) and not out.exists()
    assert journal_path(out).read_bytes().count(b"\n") == 3
    assert sweep(PLAN, out, workers=1) == expected


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "name is missing"),
        ({"name": "x", "colour": 1}, "key must be one of name, fixed, grid, got 'colour'"),
        ({"name": "x", "grid": {"tokens": 5}}, "grid.tokens must be a list"),
        ({"name": "x", "grid": {"tokens": []}}, "grid.tokens must be a list"),
        (
            {"name": "x", "fixed": {"tokens": 5}, "grid": {"tokens": [5]}},
            "tokens must be in .fixed. or in .grid., got both",
        ),
        ({"name": "x", "grid": {"tokens": [5, -5]}}, "run 1: tokens must be at least 1"),
        ({"name": "x", "fixed": {"link.lanes": 3}}, "run 0: system: link.lanes must be one of .*got 3"),
        ({"name": "x", "fixed": {"wings": 2}}, "run 0: key must be one of .*got 'wings'"),
    ],
)
def test_invalid_sweeps_raise_value_error(data, message):
    with pytest.raises(ValueError, match=message):
        parse_sweep(data)


def test_invalid_files_raise_value_error(tmp_path):
    with pytest.raises(ValueError, match="No such file"):
        load_sweep(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("name = ")
    with pytest.raises(ValueError, match="is not TOML"):
        load_sweep(tmp_path / "bad.toml")
    with pytest.raises(ValueError, match=r"out must end in \.csv or \.parquet, got 'x\.xls'"):
        sweep(PLAN, "x.xls")
    with pytest.raises(ValueError, match="workers must be at least 1"):
        sweep(PLAN, tmp_path / "t.csv", workers=0)
    other = tmp_path / "o.csv"
    journal_path(other).write_bytes(b'{"sweep": "other", "digest": "0"}\n')
    with pytest.raises(ValueError, match="belongs to another sweep"):
        sweep(PLAN, other)


def dask(*arguments, **more):
    command = [sys.executable, "-m", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **more)


@pytest.fixture
def cluster(tmp_path):
    """A scheduler and two workers on loopback: (address, scheduler process, worker processes)."""
    pytest.importorskip("distributed")
    file = tmp_path / "scheduler.json"
    quiet = ("--no-dashboard", "--host", "127.0.0.1")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    scheduler = dask("distributed.cli.dask_scheduler", "--port", "0", "--scheduler-file", file, *quiet, env=environment)
    workers = []
    try:
        limit = time.monotonic() + 60
        while not file.exists() or not file.read_text().endswith("}"):
            assert time.monotonic() < limit and scheduler.poll() is None
            time.sleep(0.05)
        address = json.loads(file.read_text())["address"]
        once = ("--nthreads", "1", "--no-nanny", "--local-directory", tmp_path)
        workers = [dask("distributed.cli.dask_worker", address, *once, *quiet, env=environment) for _ in range(2)]
        yield address, scheduler, workers
    finally:
        for child in (*workers, scheduler):
            child.kill()
            child.wait()


@pytest.mark.heavy
def test_table_of_a_cluster(tmp_path, expected, cluster):
    address, _, workers = cluster
    out = tmp_path / "t.csv"
    assert sweep(PLAN, out, scheduler=address) == expected
    # one worker is killed; the other repeats its runs
    workers[0].kill()
    assert sweep(PLAN, tmp_path / "again.csv", scheduler=address) == expected
    assert (tmp_path / "again.csv").read_bytes() == out.read_bytes()


@pytest.mark.heavy
def test_killed_scheduler_raises_connection_error(tmp_path, expected, cluster):
    """Complete rows stay; the sweep continues without the scheduler and gives the same table."""
    address, scheduler, _ = cluster
    out = tmp_path / "t.csv"

    def kill(what, done, total):
        if done:
            scheduler.kill()

    with pytest.raises(
        ConnectionError, match=f"connection to scheduler '{address}' broke; run the sweep again to continue"
    ):
        sweep(PLAN, out, scheduler=address, progress=kill)
    calls = []
    assert sweep(PLAN, out, workers=1, progress=lambda what, done, total: calls.append(done)) == expected
    assert calls[0] == 4


def test_unreachable_scheduler_raises_value_error(tmp_path, monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr("sw_model.sweep.TIMEOUT_S", 0.5)
    with pytest.raises(ValueError, match=r"scheduler 'tcp://127\.0\.0\.1:9' cannot be reached"):
        sweep(PLAN, tmp_path / "t.csv", scheduler="tcp://127.0.0.1:9")


def test_missing_package_raises_value_error(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match=r"pyarrow is missing: pip install 'vrex-rtl\[sweep\]'"):
        sweep(PLAN, tmp_path / "t.parquet")


def test_requests_of_a_sweep_are_checked_requests():
    assert all(isinstance(request, Request) for request in PLAN.requests)
    changed = parse_sweep({"name": "small", "fixed": {"workload": "text"}, "grid": {**GRID, "tokens": [1000]}})
    assert changed.digest != PLAN.digest


@pytest.mark.parametrize("part", ["fixed", "grid"])
def test_fixed_and_grid_must_be_tables(part):
    with pytest.raises(ValueError, match="fixed and grid must be tables"):
        parse_sweep({"name": "small", part: [1, 2]})


def test_worker_process_that_ends_early_raises_child_process_error(monkeypatch):
    """The pool breaks, as when memory is full."""
    pool = SimpleNamespace(submit=lambda work, part: object(), shutdown=lambda **options: None)

    def broken(pending, **options):
        raise BrokenProcessPool

    monkeypatch.setattr("sw_model.sweep.ProcessPoolExecutor", lambda *arguments, **options: pool)
    monkeypatch.setattr("sw_model.sweep.wait", broken)
    with pytest.raises(ChildProcessError, match="a worker process ended early; run the sweep again to continue"):
        list(executed(list(enumerate(PLAN.requests)), 2, None))


class Future:
    """A future of a simulated cluster."""

    def __init__(self, rows, status):
        self.rows, self.status = rows, status

    def add_done_callback(self, call):
        call(self)

    def exception(self):
        return "no memory"

    def result(self, timeout):
        if self.rows is None:
            raise TimeoutError
        return self.rows


@pytest.mark.parametrize(
    ("status", "rows", "client", "message"),
    [
        ("error", [], "running", "a run failed on 'there': no memory"),
        ("cancelled", [], "running", "connection to scheduler 'there' broke"),
        ("finished", None, "running", "connection to scheduler 'there' broke"),
        ("finished", [], "closed", "connection to scheduler 'there' broke"),
    ],
)
def test_errors_of_a_cluster_raise_connection_error(status, rows, client, message, monkeypatch):
    """A simulated cluster; a real one is tested with --heavy."""
    futures, closed = [Future([1], "finished"), Future(rows, status)], []

    def answer(work, parts, pure):
        return futures[: len(parts)]

    fake = SimpleNamespace(map=answer, status="running", close=lambda timeout: closed.append(timeout))
    monkeypatch.setattr("sw_model.sweep.require", lambda module: SimpleNamespace(Client=lambda *a, **o: fake))
    assert list(executed([1], None, "there")) == [[1]]
    fake.status = client
    with pytest.raises(ConnectionError, match=message):
        list(executed([1] * 8, None, "there"))
    assert len(closed) == 2


def test_slow_cluster_is_polled_again(monkeypatch):
    """If no row arrives within a second, the status is read again."""
    later = Future([1], "finished")
    later.add_done_callback = lambda call: Timer(1.2, call, [later]).start()
    fake = SimpleNamespace(map=lambda *a, **o: [later], status="running", close=lambda timeout: None)
    monkeypatch.setattr("sw_model.sweep.require", lambda module: SimpleNamespace(Client=lambda *a, **o: fake))
    assert list(executed([1], None, "there")) == [[1]]
