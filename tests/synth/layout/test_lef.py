import pytest

from synth.layout.lef import OSU018, load, parse
from tests.synth.layout.conftest import LEF


def test_layers_vias_and_cells(pair):
    lef = pair.lef
    assert list(lef.layers) == ["metal1", "metal2", "metal3"] and lef.cuts == ("via", "via2") and lef.site == 800
    metal1 = lef.layers["metal1"]
    assert metal1.horizontal and not lef.layers["metal2"].horizontal
    assert (metal1.pitch, metal1.width, metal1.spacing, metal1.ohms) == (1000, 300, 300, 0.08)
    assert metal1.area_ff == pytest.approx(0.04) and metal1.edge_ff == pytest.approx(0.08)
    assert lef.vias["M2_M1"][1] == ("via", (-100, -100, 100, 100))
    cell = lef.cells["INV_X1"]
    assert (cell.width, cell.height) == (1600, 10000) and cell.pins["gnd"].use == "GROUND"
    assert cell.pins["A"].shapes == (("metal1", (200, 4300, 600, 4700)),)
    assert cell.obstructions == (("metal1", (700, 6000, 900, 8000)),)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("END LIBRARY", "MACRO X\n", "LEF x.lef: section must end with END X, got the end of the file"),
        ("  RESISTANCE RPERSQ 0.08 ;\n", "", "LEF x.lef: layer metal1 must have RESISTANCE, got none"),
        ("RECT 0.7 6.0 0.9 8.0", "POLYGON 0 0 1 1 2 2", "LEF x.lef: shapes must be rectangles, got POLYGON"),
        ("SIZE 0.800 BY 10.000", "SIZE", "LEF x.lef: statement must be complete, got "),
    ],
)
def test_damaged_files(old, new, message):
    assert old in LEF
    with pytest.raises(ValueError, match=message):
        parse(LEF.replace(old, new), "x.lef")


def test_a_file_without_cells():
    with pytest.raises(ValueError, match=r"LEF x\.lef: file must have routing layers, a site and cells"):
        parse("VERSION 5.4 ;\n", "x.lef")


@pytest.mark.skipif(not OSU018.exists(), reason="qflow-tech-osu018 is not installed")
def test_osu018():
    lef = load()
    assert len(lef.layers) == 6 and lef.site == 800 and lef.cells["DFFPOSX1"].width == 9600
    assert {pin.use for pin in lef.cells["NAND2X1"].pins.values()} == {"SIGNAL", "POWER", "GROUND"}
