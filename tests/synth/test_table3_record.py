"""The record of one core: what it takes from two reports."""

import copy
import json

import pytest

from synth.table3 import UNITS
from synth.table3_record import STIMULI, record, tables


def report(gates):
    """A report as `vrex synth --out` writes it; unit number k takes k mW under stimulus 0, 10 k under the next."""
    units = []
    for k, name in enumerate((*UNITS, "dma"), start=1):
        parts = dict.fromkeys(("clock_mw", "registers_mw", "logic_mw", "leakage_mw"), 0.123456789)
        power = [
            {"stimulus": stimulus, "cycles": 9, "clock_mhz": 800.0, "measured_on": "", "total_mw": k * 10.0**n,
             "memories_mw_estimated": 0.5, "blocks": [], "mean_toggles": 0.1, **parts}
            for n, stimulus in enumerate(STIMULI)
        ]  # fmt: skip
        power.append({**power[0], "stimulus": "guess 0.1", "cycles": 0})
        units.append(
            {"unit": name, "cells": 5, "flip_flops": 3, "clock_gates": gates, "nand2": 1e6, "memory_bits": 64,
             "macro_um2_estimated": 1e4, "library": {"name": "predictive14", "tier": "x"}, "point": "balanced",
             "timing": {"fmax_mhz": 801.0, "paths": [1]}, "power": power, "git": "abc", "tools": {"yosys": "pyosys 1"},
             "config": {"lanes": 4}, "blocks": [1]}
        )  # fmt: skip
    return {"units": units, "run": {"seconds": 61.0, "peak_mb": 900.0, "blocks": 8, "blocks_kept": 2}}


def test_a_record_by_hand():
    runs = record(report(4), report(0))
    assert json.loads(json.dumps(runs)) == runs
    units = runs["gated"]["units"]
    assert [unit["unit"] for unit in units] == list(UNITS) and units[0]["clock_gates"] == 4
    assert [entry["stimulus"] for entry in units[0]["power"]] == list(STIMULI)  # no guess
    assert units[0]["power"][0]["clock_mw"] == 0.12346 and "blocks" not in units[0]
    assert runs["ungated"]["command"].endswith("--clock-gating 0 --out OUT")
    by_stimulus = tables(runs["gated"])
    assert list(by_stimulus) == list(STIMULI)
    assert by_stimulus["random"].total.mw == pytest.approx(10 * sum(range(1, 7)) + 6 * 0.5)


def test_reports_that_do_not_fit():
    good, plain = report(4), report(0)
    few = {**good, "units": good["units"][1:]}
    with pytest.raises(ValueError, match=r"gated report must have the units dpe, .*, got no dpe"):
        record(few, plain)
    quiet = copy.deepcopy(plain)
    del quiet["units"][2]["power"][1]
    with pytest.raises(ValueError, match=r"ungated report of operand_memory must have power under .*, got no random"):
        record(good, quiet)
    with pytest.raises(ValueError, match="ungated report must have no clock gates, got 24"):
        record(good, report(4))
    with pytest.raises(ValueError, match=r"^gated report must have clock gates, got 0"):
        record(plain, plain)
    other = copy.deepcopy(plain)
    other["units"][0]["config"] = {"lanes": 8}
    with pytest.raises(ValueError, match="reports must have one configuration, got two"):
        record(good, other)
