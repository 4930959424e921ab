"""`vrex serve-sim`: tables, JSON, files, and the report page."""

import json
import signal

import pytest

import vrex
from cli.pages import serving
from sw_model.request import parse
from tests.browser import browser

QUICK = ("--policy", "hybrid", "--system", "a100", "--tokens", 1000, "--seconds", 4, "--batch", 4)


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """Runs one command in an empty folder; returns status, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)  # `main` installs a handler

    def run_command(*arguments):
        status = vrex.main([str(argument) for argument in arguments])
        return status, *capsys.readouterr()

    yield run_command
    signal.signal(signal.SIGTERM, before)


def test_tables_and_json(run):
    options = ("serve-sim", *QUICK, "--streams", 2, 4, "--capacity", 200, "--max-streams", 8, "--check", 3)
    status, out, err = run(*options, "--json")
    result = json.loads(out)
    simulations, search = result["rows"][:2], result["rows"][2]
    assert status == 0 and [row["streams"] for row in simulations] == [2, 4] and "serve-sim: 3 of 3" in err
    assert 0 <= result["check"]["largest"] < 0.03 and result["check"]["steps"] == 6
    base = {"policy": "hybrid", "system": "a100", "tokens": 1000, "batch": 4, "serve.seconds": 4.0}
    expected = parse(base | {"workload": "serve", "serve.streams": 4, "serve.limit_ms": 200.0}).figures()
    assert {key: simulations[1][key] for key in expected} == expected
    assert search["capacity_streams"] >= 1 and search["serve.limit_ms"] == 200
    status, out, _ = run(*options)
    lines = out.splitlines()
    assert lines[0].startswith("system, policy") and "TTFT p50 ms" in lines[0]
    assert [line.split()[3] for line in lines[2:4]] == ["2", "4"]
    assert lines[7].split()[:5] == ["a100,", "hybrid", "1", "200", str(search["capacity_streams"])]
    assert lines[-1].startswith("difference from the event model in 6 steps: mean 0.")


def test_output_file_is_not_computed_again(run, tmp_path, monkeypatch):
    options = ("serve-sim", *QUICK, "--streams", 1, 2, "--out", "t.csv", "--workers", 1)
    _, first, _ = run(*options)
    assert len((tmp_path / "t.csv").read_text().splitlines()) == 3
    monkeypatch.setattr("sw_model.sweep.rows_of", None)  # nothing runs
    assert run(*options)[1] == first


def test_report(run, tmp_path):
    """The page on wide and narrow windows; its numbers are those of the rows."""
    options = ("--policy", "hybrid", "codecsight", "--streams", 1, 4, 40, "--fps", 20, "--capacity", 100, 500)
    _, out, _ = run("serve-sim", *QUICK, *options, "--max-streams", 4, "--report", "r.html", "--json")
    rows = json.loads(out)["rows"]
    simulations = [row for row in rows if row["workload"] == "serve"]
    searches = [row for row in rows if row["workload"] == "capacity"]
    latency, capacity = serving.sections(simulations, searches)
    assert len(latency.images) == 1 + 2 * 2 and len(latency.tables[0].rows) == 6
    assert latency.tables[0].rows[0][3:6] == [simulations[0][f"frame_p{share}_ms"] for share in (50, 95, 99)]
    assert simulations[2]["refused_frames"] > 0 and latency.tables[0].rows[2][6] > 0
    assert capacity.tables[0].rows[0][2:4] == [row["capacity_streams"] for row in searches[:2]]
    with browser() as chromium:
        for width in (1200, 400):
            observation = chromium.observe(tmp_path / "r.html", width)
            observation.check(width)
            assert observation.pictures == 5


def test_nothing_is_served(run):
    """A device without room for the weights: dashes instead of latencies, and no chart."""
    options = (*QUICK, "--streams", 2, "--set", "device_memory.capacity_gb=8", "--capacity", 100)
    status, out, _ = run("serve-sim", *options, "--report", "r.html")
    lines = out.splitlines()
    assert status == 0 and lines[2].split()[3:7] == ["2", "(-2)", "-", "-"]
    assert lines[3] == "a100, hybrid: 2 of 2 streams are refused: memory: device 0 of 1 holds at most 0 streams"
    assert lines[-1].split()[-1] == "memory" and lines[-1].split()[4] == "0"
