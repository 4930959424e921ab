"""V-Rex's Table III and the project's units: the recorded synthesis results, and the values computed from them."""

import json

import pytest

import vrex
from sw_model.assumptions import Assumptions
from sw_model.papers.synthesis import MIN_RATIO, areas, mapped, powers, same_order


def test_areas_follow_from_the_record():
    """The DPE has 64 trees of 64 inputs; the memory estimate gives V-Rex's 0.34 mm2 for 384 KB."""
    mm2 = areas()
    assert mm2["DPE"] == pytest.approx(5.46e6 * 0.1925e-6, rel=0.01)
    assert mm2["LXE_mem"] == pytest.approx(0.34, rel=0.02)
    logic = mm2["HCU"] - mapped()["memories"]["HCU"]["area_um2"] / 1e6
    assert logic == pytest.approx(mapped()["nand2"]["hcu"] * 0.1925e-6, rel=0.01)
    assert (
        sum(mapped()["memories"][name]["bits"] for name in ("WTU", "HCU")) == 20.125 * 8192
    )  # the 20.125 KB of section VI-F


def test_powers_follow_from_the_record():
    tree = mapped()["dot_tree"]
    assert powers()["DPE"] == pytest.approx(tree["random_mw"] * mapped()["nand2"]["dpe"] / tree["nand2"])
    assert Assumptions().idle_share == pytest.approx(tree["idle_mw"] / tree["random_mw"], abs=5e-4)


def test_order_of_parts_needs_a_minimum_ratio():
    paper = {"a": 4.0, "b": 2.0, "c": 1.5}
    assert MIN_RATIO == 2 and same_order({"a": 3.0, "b": 1.0, "c": 2.0}, paper)  # the ratio of b and c is too small
    assert not same_order({"a": 1.0, "b": 3.0, "c": 0.5}, paper)


@pytest.mark.heavy
def test_record_matches_the_synthesis(tmp_path, monkeypatch):
    """The smallest unit, synthesised again."""
    monkeypatch.chdir(tmp_path)
    assert vrex.main(["synth", "hcu", "--preset", "paper", "--point", "area", "--out", "out"]) == 0
    unit = json.loads((tmp_path / "out" / "synth.json").read_text())["units"][0]
    assert unit["nand2"] == pytest.approx(mapped()["nand2"]["hcu"], rel=0.03)
    assert unit["memory_bits"] == mapped()["memory_bits"]["hcu"]
