"""The commands of the system model: what they print and leave, and one line with status 2 for what cannot be."""

import json
import signal
from pathlib import Path

import pytest

import vrex
from sw_model import request
from sw_model.frontend.generator import Generator, small
from sw_model.frontend.trace import write_trace
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
    status, _, err = run("model", *options, "--workload", "coin")
    assert status == 2 and "goes with the workloads frame, text and stream" in err
    config = small(1)
    write_trace(Path("t.safetensors"), config.geometry, Generator(config).chunks(4, text_every=None), {})
    status, _, err = run("model", "--source", "t.safetensors", "--workload", "text")
    assert status == 2 and "--source t.safetensors: has no text with a past" in err


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
    status, _, err = run("compare", *options, "--source", "none.mp4")
    assert status == 2 and err == "vrex: video 'none.mp4': no such file\n"  # before any policy is run


def test_sweep(run, tmp_path):
    (tmp_path / "s.toml").write_text('name = "two"\n[grid]\ntokens = [1000, 5000]\n')
    status, out, err = run("sweep", "s.toml", "--workers", 1)
    assert status == 0 and out == "build/sweeps/two.csv: 2 rows\n" and "two: 2 of 2" in err
    status, out, _ = run("sweep", "s.toml", "--json")
    assert [row["tokens"] for row in json.loads(out)] == [1000, 5000]
    told = json.loads(run("explain", "build/sweeps/two.json", "--row", 1, "--json")[1])
    assert told["request"]["tokens"] == 5000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("model", "--system", "tpu"), "vrex: unknown system 'tpu'"),
        (("model", "--set", "link.nominal_gbps=0"), "vrex: system: link.nominal_gbps = 0 must be positive"),
        (("model", "--set", "link.none=1"), "vrex: system: V-Rex8 has no link.none: nominal_gbps, "),
        (("model", "--set", "gpu.none=1"), "vrex: 'gpu.none' cannot be set: V-Rex8 has no gpu"),
        (("model", "--set", "tokens"), "vrex: --set 'tokens': must be assume.NAME=VALUE or PART.NAME=VALUE"),
        (("model", "--set", "assume.none=1"), "vrex: assume.none is not an assumption: one of chunks, "),
        (("model", "--policy", "best"), "vrex: policy must be one of full, "),
        (("model", "--workload", "film"), "vrex: workload must be one of coin, frame, stream, text, got 'film'"),
        (("model", "--tokens", "0"), "vrex: tokens must be at least 1, got 0"),
        (("model", "--batch", "0"), "vrex: batch must be at least 1, got 0"),
        (("model", "--link", "fast"), "vrex: link must be one of paper, realistic, got 'fast'"),
        (("model", "--ratio", "2"), "vrex: ratio must be finite and between 0 and 1, got 2.0"),
        (("model", "--source", "none.mp4"), "vrex: video 'none.mp4': no such file"),
        (("compare", "--policies", "best"), "vrex: policy must be one of full, "),
        (("compare", "--contexts", "0"), "vrex: tokens must be at least 1, got 0"),
        (("reproduce", "vrex.fig13.fps", "--link", "fast"), "vrex: unknown link preset 'fast'"),
        (("model", "--out", "/dev/full/x"), "vrex: /dev/full/x: "),
        (("explain", "none.json"), "vrex: run file none.json: No such file"),
        (("reproduce", "vrex.fig99"), "vrex: unknown figure 'vrex.fig99'"),
        (("sweep", "none.toml"), "vrex: sweep file none.toml: No such file"),
    ],
)
def test_system_model_says_what_is_wrong(run, arguments, message):
    status, out, err = run(*arguments)
    lines = [line for line in err.splitlines() if line.startswith("vrex: ")]  # progress left out
    assert status == 2 and out == "" and len(lines) == 1 and lines[0].startswith(message)
