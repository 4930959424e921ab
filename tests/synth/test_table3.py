import json

import pytest

from synth.table3 import NAND2_UM2_14NM, PUBLISHED, UNITS, by_stimulus, table3


def unit(name, nand2, memories_um2, mw=None, memories_mw=0.0):
    measured = {"stimulus": "generator", "cycles": 100, "total_mw": mw, "memories_mw_estimated": memories_mw}
    guess = {"stimulus": "guess 0.1", "cycles": 0, "total_mw": 1e9, "memories_mw_estimated": 1e9}
    return {
        "unit": name,
        "library": {"name": "predictive14"},
        "nand2": nand2,
        "macro_um2_estimated": memories_um2,
        "power": [measured, guess] if mw is not None else [],
    }


def core():
    """Each unit has 10**6 NANDs, 10**4 um2 and a memory of 1 mW; unit number k uses k mW."""
    return [unit(name, 1e6, 1e4, float(k), 1.0) for k, name in enumerate(UNITS, start=1)]


def test_rows_and_shares_by_hand():
    comparison = table3([*core(), unit("dma", 1e9, 1e9, 1e9)])
    rows = {row.name: row for row in comparison.rows}
    each = NAND2_UM2_14NM
    assert list(rows) == list(PUBLISHED) and comparison.missing == ()
    assert rows["DPE"].mm2 == pytest.approx(each) and rows["DPE"].memories_mm2 == 0
    assert rows["LXE memories"].mm2 == pytest.approx(each + 0.03)
    assert rows["LXE memories"].mw == pytest.approx(3 + 3)  # the operand memory's logic, three memories
    assert rows["HCU"].mw == pytest.approx(4 + 1)
    total_mm2, total_mw = 6 * (each + 0.01), sum(range(1, 7)) + 6
    shares = comparison.shares()
    assert shares["area"] == pytest.approx(100 * 3 * (each + 0.01) / total_mm2)
    assert shares["logic area"] == pytest.approx(100 * 3 / 6)
    assert shares["power"] == pytest.approx(100 * (4 + 5 + 6 + 3) / total_mw)
    assert comparison.values()[-1][3] == pytest.approx(total_mm2) and f"{total_mm2:.4f}" in comparison.table()


def test_rest_of_the_core():
    """Area of the core without its units; the power of the rest is unknown and not part of the sum."""
    units = [*core(), unit("core", 8e6, 9e4)]
    comparison = table3(units)
    rest = comparison.rows[-1]
    assert rest.name == "rest of the core" and rest.published_mm2 is None and rest.mw is None
    assert (rest.logic_mm2, rest.memories_mm2) == pytest.approx((2 * NAND2_UM2_14NM, 0.03))
    assert comparison.values()[-1][3] == pytest.approx(8 * NAND2_UM2_14NM + 0.09)
    assert comparison.shares()["power"] == table3(core()).shares()["power"]
    assert "rest of the core: its power is not measured" in comparison.table()
    assert "rest of the core" not in {row.name for row in table3(units[1:]).rows}  # a unit is missing


def test_published_table_adds_up():
    """The total is 1.89 mm2 and 2609.43 mW; DRE has 2.0 and 2.2 per cent."""
    area, power = (sum(pair[k] for pair in PUBLISHED.values() if pair) for k in (0, 1))
    assert area == pytest.approx(1.89) and power == pytest.approx(2609.43)
    dre = [PUBLISHED[name] for name in ("HCU", "WTU", "KVMU")]
    assert sum(pair[0] for pair in dre) / area == pytest.approx(0.02, abs=0.002)
    assert sum(pair[1] for pair in dre) / power == pytest.approx(0.022, abs=0.001)


def test_unmeasured_power_gives_no_sum():
    units = [unit("dpe", 1e6, 0.0, 5.0), unit("hcu", 1e3, 0.0)]
    comparison = table3(units)
    assert comparison.shares()["power"] is None and comparison.shares()["area"] == pytest.approx(100 / 1001)
    assert set(comparison.missing) == set(UNITS) - {"dpe", "hcu"} and "not in this run: vpe" in comparison.table()
    assert json.loads(json.dumps(comparison.json()))["rows"][0]["mw"] == 5.0
    assert table3([unit("dma", 1.0, 1.0)]) is None


def two_stimuli():
    """The units of `core` with a second stimulus: idle units take 0.25 mW and no power in memories, the WTU 0.5."""
    units = core()
    for each in units:
        mw = 0.5 if each["unit"] == "wtu" else 0.25
        entry = {"stimulus": "idle", "cycles": 5, "total_mw": mw, "memories_mw_estimated": 0.0}
        each["power"].insert(0, entry)
    return units


def test_a_table_for_every_stimulus():
    """Areas are equal, power is that of the stimulus; the last one is that of the plain table."""
    units = [*two_stimuli(), unit("dma", 1.0, 1.0, 1.0)]
    tables = by_stimulus(units)
    assert list(tables) == ["idle", "generator"] and tables["generator"] == table3(units)
    assert tables["idle"].powers()["mw"]["WTU"] == 0.5 and tables["idle"].total.mw == pytest.approx(5 * 0.25 + 0.5)
    assert tables["idle"].total.mm2 == tables["generator"].total.mm2
    assert tables["idle"].powers()["mw"]["total"] == pytest.approx(1.75)
    assert tables["idle"].json()["total"]["mw"] == pytest.approx(1.75)
    assert tables["idle"].powers()["dre_percent"] == pytest.approx(100 * 1.0 / 1.75)
    units[0]["power"].pop(0)  # a stimulus that one unit does not have
    assert list(by_stimulus(units)) == ["generator"] and by_stimulus([unit("dma", 1.0, 1.0, 1.0)]) == {}
