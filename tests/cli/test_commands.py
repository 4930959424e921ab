"""Commands with their output and files; slow functions are replaced."""

import json
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

import vrex
from cli.commands import models, verification
from cli.console import Console
from sim.mutation.campaign import Campaign, CampaignError, Result
from sim.mutation.netlist import Mutant
from sw_model import request
from sw_model.media import generator
from sw_model.media.trace import write_trace
from sw_model.papers.claims import CLAIMS
from sw_model.request import Request


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


def test_model_and_explain(run, tmp_path):
    options = ("--policy", "mosaic", "--tokens", 5000, "--set", "link.nominal_gbps=8")
    status, out, _ = run("model", *options, "--out", "run.json", "--trace", "trace.json")
    expected = Request(policy="mosaic", tokens=5000, changes={"link.nominal_gbps": 8})
    assert status == 0 and out.rstrip("\n") == request.as_text(expected, expected.run())
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    status, out, _ = run("model", *options, "--json")
    assert (
        json.loads(out) == json.loads((tmp_path / "run.json").read_text()) == request.report(expected, expected.run())
    )
    status, out, _ = run("explain", "run.json", "--json")
    result = json.loads(out)
    assert status == 0 and result["request"] == expected.json() and result["bounds"][0]["stage"] == "weights"
    assert run("explain", "run.json")[1].splitlines()[0] == result["words"]


def test_model_uses_measured_retrieval_ratio(run):
    """The run has the retrieval ratio that the policy has on the stream."""
    options = ("--policy", "quickprefill", "--tokens", 5000, "--source", "generator", "--frames", 40)
    status, out, err = run("model", *options, "--json")
    ratio = json.loads(out)["request"]["retrieval_ratio"]
    assert status == 0 and 0.5 < ratio < 1 and "chunks: " in err  # half of each complete group is kept


def test_reproduce(run, tmp_path, monkeypatch):
    monkeypatch.setattr("sw_model.papers.claims.CLAIMS", CLAIMS[:1])
    status, out, _ = run("reproduce", "vrex.fig13.fps", "--claims", "--report", "r.html", "--json")
    assert list(json.loads(out)["claims"]) == [CLAIMS[0].what]
    assert CLAIMS[0].what in (tmp_path / "r.html").read_text()
    status, out, _ = run("reproduce", "vrex.fig13.frame_server", "--json")
    assert status == 0 and json.loads(out)["targets"][0]["verdict"] == "inside"
    status, out, _ = run("reproduce", "vrex.fig13.frame_server")
    assert "vrex.fig13.frame_server" in out and "contradiction: V-Rex" in out and "1 of 1 evaluated are inside" in out


def test_compare(run, tmp_path):
    options = ("--policies", "resv", "hybrid", "--contexts", 1000, 40000)
    source = ("--source", "generator", "--frames", 4, "--every", 2)
    status, out, err = run("compare", *options, *source, "--report", "c.html", "--json")
    result = json.loads(out)
    assert status == 0 and result["winners"]["40000"]["latency"] == ["hybrid"] and "policies: 4 of 4" in err
    assert {row["policy"] for row in result["quality"]} == {"resv", "hybrid"}
    assert "Comparison of policies" in (tmp_path / "c.html").read_text()
    assert "smallest, within 1 %" in run("compare", *options)[1]
    status, out, _ = run("compare", "--systems", "--contexts", "40000", "--json")
    rows = json.loads(out)["rows"]
    assert status == 0 and {row["tokens"] for row in rows} == {40000}
    assert {row["frame"]["source"] for row in rows} == {"program", "formula"}


def test_sweep(run, tmp_path):
    (tmp_path / "s.toml").write_text('name = "two"\n[grid]\ntokens = [1000, 5000]\n')
    status, out, err = run("sweep", "s.toml", "--workers", 1)
    assert status == 0 and out == "build/sweeps/two.csv: 2 rows\n" and "two: 2 of 2" in err
    status, out, _ = run("sweep", "s.toml", "--json")
    assert [row["tokens"] for row in json.loads(out)] == [1000, 5000]
    result = json.loads(run("explain", "build/sweeps/two.json", "--row", 1, "--json")[1])
    assert result["request"]["tokens"] == 5000


def test_progress_on_a_terminal(capsys):
    console = Console()
    console.terminal = True
    for what, done, total in (("frames", 0, 2), ("frames", 2, 2), ("report", 0, 0)):
        console.progress(what, done, total)
    console.close()
    console.close()
    err = capsys.readouterr().err
    assert "frames" in err and "2/2" in err and "report" in err


def test_generate_prints_its_files(run, tmp_path):
    status, out, _ = run("generate", "hcu", "--preset", "tiny", "--out", "made")
    assert status == 0 and sorted(out.split()) == sorted(str(path) for path in Path("made").glob("*/*"))


def test_synth_with_proof_and_table3(run):
    arguments = ("synth", "operand_memory", "--preset", "tiny", "--equiv", "--table3")
    status, out, _ = run(*arguments)
    assert status == 0 and "LXE memories" in out and "V-Rex" in out
    status, out, _ = run(*arguments[:-1])
    assert status == 0 and "is equivalent" in out


def test_table3_as_json(run):
    """Area, total and the power under each stimulus."""
    status, out, _ = run("synth", "operand_memory", "--preset", "tiny", "--table3", "--json", "--power", "idle")
    result = json.loads(out)
    (row,) = result["rows"]
    assert status == 0 and row["name"] == "LXE memories" and result["total"]["mm2"] == row["mm2"] > 0
    assert result["power_by_stimulus"] == {"idle": {"mw": {"LXE memories": row["mw"], "total": row["mw"]},
                                                    "dre_percent": 0.0}}  # fmt: skip


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_board(run, monkeypatch, form):
    made = SimpleNamespace(json=lambda: {"board": "ulx3s"}, table=lambda: '{"board": "ulx3s"}')
    monkeypatch.setattr("synth.board.build", lambda *arguments, **options: made)
    status, out, _ = run("board", "ulx3s", "--unit", "hcu", "--preset", "tiny", "--beats", 20, *form)
    assert status == 0 and json.loads(out) == {"board": "ulx3s"}


@pytest.mark.parametrize("failed", [0, 1])
def test_verify(run, monkeypatch, failed):
    lines = []
    monkeypatch.setattr(
        "subprocess.run", lambda line, **options: lines.append(line) or SimpleNamespace(returncode=failed)
    )
    monkeypatch.setattr("sim.bench.build.has_simulator", lambda name: name != "icarus" or failed == 0)
    flags = ("--waves", "--gates", "--heavy")
    if failed:
        status, out, err = run("verify", "wtu", "--simulator", "icarus")
        assert (status, out, err) == (2, "", "vrex: simulator must be installed, got icarus\n") and not lines
        assert run("verify", "wtu", "--heavy")[0] == 1 and "--heavy" in lines[0]
        return
    status, out, _ = run("verify", "wtu", "wtu_sweep", "--simulator", "icarus", *flags)
    assert status == 0 and out == "waveforms: build/sim/runs/*/dump.vcd\n"
    assert {"--sim=icarus", *flags} < set(lines[0])
    assert lines[0].count(f"{verification.ROOT}/tests/hw/dre/wtu/test_wtu.py") == 1
    assert run("verify", "wtu")[1] == "" and not set(flags) & set(lines[1])
    assert run("verify", "wtu", "--simulator", "icarus", "--unknown")[0] == 0 and "--unknown" in lines[2]


def test_mutate(run, tmp_path, monkeypatch):
    mutant = Mutant(1, "inv", "$1", "Y", 0, None, "w", ("hw/x.py:3",))
    late = Mutant(2, "const0", "$2", "Q", 25, None, "stat_tokens[25]", ("hw/x.py:4",))
    results = Result(1, None, "left no trace"), Result(2, None, "")
    made = Campaign("hcu", (mutant, late), results, ("a test",), 1.5)
    monkeypatch.setattr("sim.mutation.campaign.run", lambda *arguments, **options: made)
    status, out, _ = run("mutate", "hcu", "--out", "m.json")
    assert status == 0 and "hcu survives 1: inv at $1.Y[0] (w), hw/x.py:3: left no trace" in out
    assert "hcu unreached 2: const0 at $2.Q[25] (stat_tokens[25]), hw/x.py:4: visible after 33,554,432 events" in out
    result = json.loads(run("mutate", "hcu", "--mutants", 5, "--json")[1])
    assert result["units"] == json.loads((tmp_path / "m.json").read_text())["units"] and result["preset"] == "tiny"

    def refuse(*arguments, **options):
        raise CampaignError("hcu: no test simulates it")

    monkeypatch.setattr("sim.mutation.campaign.run", refuse)
    status, _, err = run("mutate", "hcu")
    assert status == 1 and err == "vrex: hcu: no test simulates it\n"


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_capture(run, tmp_path, monkeypatch, form):
    """A generated stream replaces the recording, which needs a model."""
    small = generator.small()

    def record(model, path, **options):
        return write_trace(
            tmp_path / "t.safetensors", small.geometry, generator.Generator(small).chunks(3), {"model": model}
        )

    monkeypatch.setattr("sw_model.media.capture.capture", record)
    status, out, _ = run("capture", "some", "--prompt", "x", *form)
    assert status == 0 and ("3 chunks" in out or json.loads(out)["chunks"] == 3)


def test_steps_of_a_video():
    """Pairs of frames with their times for a tower with two pictures in a patch; the last one is repeated."""
    qwen = SimpleNamespace(temporal_patch=2, tokens_per_second=2)
    assert list(models.steps("abcde", 4.0, qwen)) == [(["a", "b"], 0.0), (["c", "d"], 0.5), (["e", "e"], 1.0)]
    clip = SimpleNamespace(temporal_patch=1, tokens_per_second=None)
    assert list(models.steps("abcde", 4.0, clip)) == [([picture], None) for picture in "abcde"]
