"""The command line in complete runs: successful commands, killed tools and interrupts."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import vrex
from sim.formal import claims as formal_claims
from sim.formal.specifications.common import Fifo, QueueSpec
from sw_model.cycles.machine import compiled
from sw_model.media import clip
from tests.browser import browser

ROOT = Path(__file__).resolve().parent.parent
TINY = (
    "--preset", "tiny", "--layers", "1", "--frames", "6", "--grid", "2", "--model-frames", "1", "--answer-tokens", "2",
)  # fmt: skip


@pytest.fixture(autouse=True)
def restore_handler():
    """`main` installs a handler of SIGTERM."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    frames = clip.synthesise(24, width=96, height=64, scene_frames=12)
    return clip.encode(frames, tmp_path_factory.mktemp("clip") / "small.mp4", gop=8)


def run(capsys, *arguments):
    """Exit status, stdout, stderr of one command in this process."""
    try:
        status = vrex.main([str(argument) for argument in arguments])
    except SystemExit as stop:  # argparse
        status = stop.code
    done = capsys.readouterr()
    return status, done.out, done.err


def error_line(capsys, *arguments):
    """The error line of a command, without progress."""
    status, out, err = run(capsys, *arguments)
    assert status == 2, (out, err)
    assert out == ""
    lines = [line for line in err.splitlines() if line.startswith("vrex")]
    assert len(lines) == 1 and "Traceback" not in err, err
    return lines[0]


@pytest.fixture(scope="module")
def report(tmp_path_factory, video):
    """Report folder and stdout of a complete demo."""
    folder, before = tmp_path_factory.mktemp("demo") / "report", signal.getsignal(signal.SIGTERM)
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        status = vrex.main(["demo", "--video", str(video), *TINY, "--out", str(folder)])
    signal.signal(signal.SIGTERM, before)
    assert status == 0, err.getvalue()
    return folder, out.getvalue()


def test_demo_from_video_to_report(report):
    folder, out = report
    assert "RTL equals golden: 30 tokens" in out
    page = (folder / "index.html").read_text()
    assert "<html" in page and 'src="http' not in page
    summary = json.loads((folder / "demo.json").read_text())
    assert summary["video"]["size"] == [96, 64]
    assert summary["rtl"]["busy_cycles"] == summary["rtl"]["formula_cycles"] > 0
    assert "RTL of the core equals the golden machine: 1 frames, answer of 2 tokens, 3 steps" in out
    assert [step["kind"] for step in summary["model"]["steps"]] == ["frame", "question", "answer"]
    assert (folder / "hcu" / "hcu.v").read_text().count("endmodule") > 1
    assert not list(folder.rglob(".*"))  # nothing aside is left


@pytest.mark.parametrize("width", [1280, 390])
def test_report_in_a_browser(report, width):
    with browser() as chromium:
        observation = chromium.observe(report[0] / "index.html", width)
    observation.check(width)
    assert observation.pictures == (report[0] / "index.html").read_text().count("<img ") > 3


@pytest.mark.parametrize("broken", [False, True])
def test_formal(capsys, monkeypatch, tmp_path, broken):
    monkeypatch.chdir(tmp_path)
    depth = 1 if broken else 2
    claim = formal_claims.Claim("part", lambda: QueueSpec(Fifo(width=1, depth=2), depth=depth, patience=2))
    monkeypatch.setattr("sim.formal.engine.claims", lambda name: (claim,))
    status, out, err = run(capsys, "formal", "hcu", "--json")
    if broken:
        assert status == 1 and "vrex: hcu_part: a property fails in cycle" in err and not out
    else:
        (proof,) = json.loads(out)
        result = run(capsys, "formal", "hcu")[1]
        assert result.startswith("hcu_part: induction, ") and "\n    reached: " in result
        assert status == 0 and (proof["name"], proof["kind"]) == ("hcu_part", "induction") and proof["covers"]


def test_generate_and_synth_as_json(capsys, tmp_path):
    status, out, _ = run(capsys, "generate", "hcu", "--preset", "tiny", "--out", tmp_path, "--json")
    assert status == 0 and json.loads(out)[0]["unit"] == "hcu"
    status, out, _ = run(capsys, "synth", "hcu", "--preset", "tiny", "--json")
    (result,) = json.loads(out)
    assert status == 0 and result["unit"] == "hcu" and result["timing"]["fmax_mhz"] > 0


def test_synth_with_power(capsys):
    arguments = ("synth", "hcu", "--preset", "tiny", "--point", "area", "--power", "idle", "--power", "generator")
    status, out, _ = run(capsys, *arguments)
    assert status == 0 and "guess 0.2: registers and logic are" in out


def test_synth_reports_and_compares(capsys, tmp_path):
    arguments = ("synth", "hcu", "--preset", "tiny", "--point", "area", "--out", tmp_path / "first")
    assert run(capsys, *arguments)[0] == 0
    arguments = (*arguments[:-1], tmp_path / "second", "--against", tmp_path / "first" / "synth.json")
    status, out, _ = run(capsys, *arguments)
    assert status == 0 and "+0.00%" in out and (tmp_path / "second" / "index.html").exists()


def test_missing_c_compiler(capsys, tmp_path, monkeypatch):
    """The cycle model needs one. Compiled code of earlier runs is in another folder."""
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setattr("sw_model.cycles.native.__file__", str(tmp_path / "native.py"))
    monkeypatch.setattr("cli.rtl.run", lambda *_, **__: compiled.__wrapped__())
    line = error_line(capsys, "model", "--rtl", "tiny")
    assert "C compiler no-such-compiler is not installed (Debian: apt install gcc)" in line


def test_killed_tool_leaves_no_report(capsys, tmp_path, monkeypatch):
    """The first unit is in the cache; the report needs the second one too."""
    monkeypatch.setenv("VREX_BUILD", str(tmp_path / "build"))
    tiny = ("--preset", "tiny", "--point", "area")
    assert run(capsys, "synth", "operand_memory", *tiny)[0] == 0
    monkeypatch.setattr("hw.yosys._YOWASP", "import os; os.kill(os.getpid(), 9)")
    line = error_line(capsys, "synth", "operand_memory", "hcu", *tiny, "--out", tmp_path / "report")
    assert "hcu: mapping to predictive14 failed: yosys: killed by signal 9" in line
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_stops_children(tmp_path, video, number):
    """While the C++ compiler builds the simulator: the compiler stops and no report is written."""
    environment = os.environ | {"VREX_BUILD": str(tmp_path / "build")}
    command = [sys.executable, "vrex.py", "demo", "--video", str(video), *TINY, "--out", str(tmp_path / "out")]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as process:
        marker, deadline = str(tmp_path / "build").encode(), time.monotonic() + 300
        while not any(b"cc1plus" in line and marker in line for line in command_lines().values()):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert err.splitlines()[-1].startswith("vrex: interrupted")
    assert not list((tmp_path / "out").rglob("*.*"))
    deadline = time.monotonic() + 5
    while left := {number: line for number, line in command_lines().items() if marker in line}:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def command_lines() -> dict[str, bytes]:
    """Command line of every process, by its number."""
    lines = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended
            lines[folder.name] = (folder / "cmdline").read_bytes()
    return lines


def test_closed_pipe_gives_no_error():
    done = subprocess.run(
        ["sh", "-c", '"$1" vrex.py generate --help | head -c 1; exit 0', "sh", sys.executable],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
