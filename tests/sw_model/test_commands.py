"""The commands of the system model: what they print and leave."""

import json
import signal

import pytest

import vrex
from sw_model import request
from sw_model.request import Request


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """Runs one command in a folder of its own; gives (status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)  # `main` takes it over

    def go(*arguments):
        status = vrex.main([str(argument) for argument in arguments])
        return status, *capsys.readouterr()

    yield go
    signal.signal(signal.SIGTERM, before)


def test_model_and_explain(run, tmp_path):
    options = ("--policy", "mosaic", "--tokens", 5000, "--set", "link.nominal_gbps=8")
    status, out, _ = run("model", *options, "--out", "run.json", "--trace", "trace.json")
    asked = Request(policy="mosaic", tokens=5000, changes={"link.nominal_gbps": 8})
    assert status == 0 and out.rstrip("\n") == request.as_text(asked, asked.run())
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    status, out, _ = run("model", *options, "--json")
    assert json.loads(out) == json.loads((tmp_path / "run.json").read_text()) == request.report(asked, asked.run())
    status, out, _ = run("explain", "run.json", "--json")
    told = json.loads(out)
    assert status == 0 and told["request"] == asked.json() and told["bounds"][0]["stage"] == "weights"
    assert run("explain", "run.json")[1].splitlines()[0] == told["words"]


def test_model_of_a_measured_stream(run):
    """The share that the policy retrieves on the stream is the one the run is made with."""
    options = ("--policy", "quickprefill", "--tokens", 5000, "--source", "generator", "--frames", 40)
    status, out, err = run("model", *options, "--json")
    ratio = json.loads(out)["request"]["ratio"]
    assert status == 0 and 0.5 < ratio < 1 and "chunks: " in err  # half of each complete group is kept


def test_reproduce(run):
    status, out, _ = run("reproduce", "vrex.fig13.fps", "--json")
    assert status == 0 and json.loads(out)["targets"][0]["verdict"] == "inside"
    status, out, _ = run("reproduce", "vrex.fig13.fps")
    assert "vrex.fig13.fps" in out and "contradiction: V-Rex" in out and "1 of 1 judged are inside" in out


def test_compare(run, tmp_path):
    options = ("--policies", "resv", "hybrid", "--contexts", 1000, 40000)
    source = ("--source", "generator", "--frames", 4, "--every", 2)
    status, out, err = run("compare", *options, *source, "--report", "c.html", "--json")
    told = json.loads(out)
    assert status == 0 and told["winners"]["40000"]["latency"] == ["hybrid"] and "policies: 4 of 4" in err
    assert {row["policy"] for row in told["quality"]} == {"resv", "hybrid"}
    assert "Policies side by side" in (tmp_path / "c.html").read_text()
    assert "least, within 1 %" in run("compare", *options)[1]


def test_sweep(run, tmp_path):
    (tmp_path / "s.toml").write_text('name = "two"\n[grid]\ntokens = [1000, 5000]\n')
    status, out, err = run("sweep", "s.toml", "--workers", 1)
    assert status == 0 and out == "build/sweeps/two.csv: 2 rows\n" and "two: 2 of 2" in err
    status, out, _ = run("sweep", "s.toml", "--json")
    assert [row["tokens"] for row in json.loads(out)] == [1000, 5000]
    told = json.loads(run("explain", "build/sweeps/two.json", "--row", 1, "--json")[1])
    assert told["request"]["tokens"] == 5000
