"""Table III beside the project's own units: what is recorded is what the synthesis makes, and what follows from it."""

import json

import pytest

import vrex
from sw_model.model import Assumptions
from sw_model.published_synthesis import APART, areas, mapped, memory, powers, record, same_order
from synth.area import PREDICTIVE


def test_areas_by_hand():
    """64 trees of 64 make the DPE; V-Rex's own 0.34 mm2 are 384 KB of the memory estimate."""
    mm2 = areas()
    assert mm2["DPE"] == pytest.approx(5.46e6 * 0.1925e-6, rel=0.01)
    assert mm2["LXE_mem"] == pytest.approx(0.34, rel=0.02)
    logic = mm2["HCU"] - memory("HCU").area_um2(PREDICTIVE) / 1e6
    assert logic == pytest.approx(mapped()["nand2"]["hcu"] * 0.1925e-6, rel=0.01)
    assert memory("WTU").bits + memory("HCU").bits == 20.125 * 8192  # the 20.125 KB of section VI-F


def test_powers_by_hand():
    tree = mapped()["dot_tree"]
    assert powers()["DPE"] == pytest.approx(tree["random_mw"] * mapped()["nand2"]["dpe"] / tree["nand2"])
    assert Assumptions().idle_share == pytest.approx(tree["idle_mw"] / tree["random_mw"], abs=5e-4)


def test_order():
    paper = {"a": 4.0, "b": 2.0, "c": 1.5}
    assert APART == 2 and same_order({"a": 3.0, "b": 1.0, "c": 2.0}, paper)  # b and c are not apart
    assert not same_order({"a": 1.0, "b": 3.0, "c": 0.5}, paper)


def test_reports_without_a_unit_are_refused():
    with pytest.raises(ValueError, match="no report of dot_tree, dpe, kvmu, vpe, wtu_sweep"):
        record([{"unit": "hcu"}])


def test_a_record_by_hand():
    tools = {"point": "balanced", "library": {}, "tools": {}, "git": None}
    units = [
        {"unit": name, "nand2": 10.4, "memory_bits": 8, **tools} for name in ("dpe", "hcu", "kvmu", "vpe", "wtu_sweep")
    ]
    power = [
        {"stimulus": name, "total_mw": mw, "cycles": n}
        for name, mw, n in (("idle", 1.0, 5), ("random", 2.5, 5), ("guess", 9.0, 0))
    ]
    units.append(
        {"unit": "dot_tree", "nand2": 5.6, "memory_bits": 0, "config": {"dpe_inputs": 4}, "power": power, **tools}
    )
    told = record(units)
    assert told["nand2"]["hcu"] == 10 and told["memory_bits"]["dpe"] == 8 and set(told["made by"]["hcu"]) == set(tools)
    assert told["dot_tree"] == {"inputs": 4, "nand2": 6, "idle_mw": 1.0, "random_mw": 2.5}


@pytest.mark.heavy
def test_the_record_is_what_the_synthesis_makes(tmp_path, monkeypatch):
    """The smallest unit, mapped again."""
    monkeypatch.chdir(tmp_path)
    assert vrex.main(["synth", "hcu", "--preset", "paper", "--point", "area", "--out", "out"]) == 0
    unit = json.loads((tmp_path / "out" / "synth.json").read_text())["units"][0]
    assert unit["nand2"] == pytest.approx(mapped()["nand2"]["hcu"], rel=0.03)
    assert unit["memory_bits"] == mapped()["memory_bits"]["hcu"]
