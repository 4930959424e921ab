"""Coverage of a small design by source location, and the bins of a run."""

import dataclasses
import inspect
import json

import numpy as np
import pytest
from amaranth import Module, Mux, ResetInserter, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.registry import UNITS
from sim.bench.build import build_root
from sim.bench.run import simulate
from sim.coverage import source_map
from sim.coverage import verilog as coverage
from sim.coverage.bins import table as bins
from sim.coverage.bins.cover import Cover, Run
from sim.coverage.verilog import merge, total


class Steps(wiring.Component):
    """Counts down from its input to zero."""

    i: In(stream.Signature(data.StructLayout({"start": 4, "even": 1})))
    o: Out(stream.Signature(4))
    cfg_never: In(1)

    def elaborate(self, platform):
        m = Module()
        value = Signal(4)
        m.d.comb += [self.i.ready.eq((value == 0) & ~self.o.valid), self.o.payload.eq(value)]
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += [value.eq(self.i.payload.start), self.o.valid.eq(1)]
        with m.Elif(self.o.valid & self.o.ready):
            m.d.sync += self.o.valid.eq(0)
            with m.Switch(value[:2]):
                with m.Case(3):
                    m.d.sync += value.eq(Mux(self.cfg_never, value, 0))
                with m.Default():
                    m.d.sync += value.eq(Mux(self.i.payload.even, 0, Mux(value == 9, 1, 0)))
        with m.Elif(self.cfg_never):
            m.d.sync += value.eq(value - 1)
        return ResetInserter(self.cfg_never)(m)  # Amaranth generates this arm without a source location


SOURCE, FIRST = inspect.getsourcelines(Steps)


def line_of(text):
    return next(FIRST + number for number, line in enumerate(SOURCE) if text in line)


def column_of(text):
    return next(line.index(text) + 1 for line in SOURCE if text in line)


def test_arms_and_mux_sides_have_source_locations():
    """Executed arms have hits, other arms have zero hits; two Muxes of one line are separate points."""
    beats = {"start": np.array([5, 4]), "even": np.array([0, 0])}
    record = simulate(Steps(), "steps", {"i": beats}, {"o": 2}, coverage=True)
    units = merge([record.folder / "coverage.dat"])
    points, file = total(units.values()), source_map.relative(__file__)
    lines = {
        (location.split(".")[-2].split(":")[-1], detail): hits > 0
        for (location, detail), hits in points["line"].items()
    }
    for text, detail, reached in (
        ("m.If(", "taken", True),
        ("m.If(", "else", True),
        ("m.Elif(self.o", "taken", True),
        ("m.Elif(self.cfg", "taken", False),
        ("m.Case(3)", "taken", False),
        ("m.Case(3)", "else", True),
    ):
        assert lines[str(line_of(text)), detail] is reached, (text, detail)
    for text, detail, reached in (
        ("Mux(self.cfg_never", "then", False),
        ("Mux(self.i.payload", "then", False),
        ("Mux(self.i.payload", "else", True),
        ("Mux(value == 9", "then", False),
        ("Mux(value == 9", "else", True),
    ):
        hits = points["branch"][f"{file}:{line_of(text)}.{column_of(text)}", detail]
        assert (hits > 0) is reached, (text, detail)
    rises = {
        detail: hits > 0 for (location, detail), hits in points["toggle"].items() if location.startswith(f"{file}:")
    }
    assert rises["value[0] 0->1"] and rises["value[2] 1->0"] and not rises["value[3] 0->1"]
    assert list(units) == ["steps"]


def test_merge_accepts_builds_from_another_root(tmp_path):
    """A compiler cache returns objects of equal sources that contain the folder names of the first build."""
    beats = {"start": np.array([5, 4]), "even": np.array([0, 0])}
    record = simulate(Steps(), "steps", {"i": beats}, {"o": 2}, coverage=True)
    text = (record.folder / "coverage.dat").read_text("latin1")
    moved = tmp_path / "coverage.dat"
    moved.write_text(text.replace(str(build_root()), "/somewhere/build/sim"), "latin1")
    assert "/somewhere/" in moved.read_text("latin1")
    assert merge([moved]) == merge([record.folder / "coverage.dat"])


def test_verilator_ranges_and_names_are_decoded():
    assert list(coverage._lines("3,5-7")) == [3, 5, 6, 7]
    assert coverage._plain("U__02464__02eC") == "U$64.C" and coverage._plain("o___05Fready") == "o__ready"


def test_bins_cross_boundaries_with_back_pressure():
    cover = Cover({"mode": ("one", "two")}, lambda run: run.more)
    unit = Steps()
    run = Run(unit, {}, {}, {}, {}, stall={"i": 0.5, "o": 0.0}, more=[("mode", "two", 70)])
    assert cover.met(run) == {"mode: two | source"}
    assert len(list(cover.all())) == 8
    for stall, pressure in (
        ({"i": 0.1, "o": 0.1}, "both"),
        ({"i": 0.0, "o": 0.1}, "sink"),
        ({}, "none"),
        ({"i": (0.1, 64, 0), "o": (0.1, 64, 0)}, "source"),
        ({"i": (0.1, 64, 1), "o": (0.1, 64, 1)}, "sink"),
    ):
        assert dataclasses.replace(run, stall=stall).pressure(70) == pressure
    with pytest.raises(KeyError, match="mode: three is not declared"):
        cover.met(dataclasses.replace(run, more=[("mode", "three", 0)]))


def test_merge_adds_bins_of_several_runs(tmp_path):
    """Two runs of the DPE: both hit one bin, the second also hits a reset."""
    name = next(iter(bins.covers()["dpe"].all()))
    for folder, met in (("one", [name]), ("two", [name, "reset: in mid-flight | both"])):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "bins.json").write_text(json.dumps({"unit": "dpe", "met": met}))
    counts = bins.merge(tmp_path.glob("*/bins.json"))["dpe"]
    assert counts[name] == 2 and counts["reset: in mid-flight | both"] == 1 and sum(counts.values()) == 3


def test_every_unit_has_bins():
    units = {name.split(",")[0] for name in bins.covers()}
    assert units == set(UNITS) - {"wtu_sweep"}  # a design point of the WTU
    for name, cover in bins.covers().items():
        names = list(cover.all())
        assert len(names) == len(set(names)), name
