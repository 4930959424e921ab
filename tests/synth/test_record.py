"""The record of synthesis results: values from reports, and memory estimates of the committed file."""

import json

import pytest

from synth import table3
from synth.record import FOLDER, NAME, memories, record


def test_the_committed_file_agrees_with_the_memory_estimates():
    committed = json.loads((FOLDER / NAME).read_text())
    assert committed["memories"] == memories()
    assert committed["nand2_um2"] == pytest.approx(table3.NAND2_UM2_14NM, abs=1e-6)


def test_reports_without_a_unit_raise():
    with pytest.raises(ValueError, match=r"reports must have the units .*, got no dot_tree, dpe, kvmu, vpe, wtu_sweep"):
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
    result = record(units)
    assert (
        result["nand2"]["hcu"] == 10
        and result["memory_bits"]["dpe"] == 8
        and set(result["made by"]["hcu"]) == set(tools)
    )
    assert result["dot_tree"] == {"inputs": 4, "nand2": 6, "idle_mw": 1.0, "random_mw": 2.5}
