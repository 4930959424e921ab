"""The check finds every fault of a layout that was correct."""

from dataclasses import replace

import pytest

from synth.layout import wires
from synth.layout.connectivity import check


def result(pair, text, special=""):
    return check(pair.design, pair.lef, pair.placement, wires.read(pair.routed(text, special), pair.lef))


def test_a_clean_layout(pair):
    done = result(pair, pair.text)
    assert done.clean and done.errors() == "" and done.close == 0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("( 5200 9500 ) ( 8400 * )", "( 5200 9500 ) ( 8000 * )"),  # the wire ends before the pin
        ("( 4400 9500 ) M2_M1", "( 4400 9500 ) ( 4400 9500 )"),  # no via
        ("( 9200 9500 ) ( * 500 )", "( 9200 9500 ) ( * 2500 )"),  # the pin of the unit has no wire
    ],
)
def test_an_open_net(pair, old, new):
    assert old in pair.text
    done = result(pair, pair.text.replace(old, new))
    assert len(done.open_nets) == 1 and not done.shorts and not done.clean and "1 open nets" in done.errors()


def test_a_gap_in_the_middle_of_a_wire(pair):
    old = "metal2 ( 4400 9500 ) ( * 500 )"
    broken = "metal2 ( 4400 9500 ) ( * 6500 )\n  NEW metal2 ( 4400 5500 ) ( * 500 )"
    assert result(pair, pair.text.replace(old, broken)).open_nets == ("a",)
    whole = broken.replace("5500", "6200")  # both ends extend by half a width
    assert result(pair, pair.text.replace(old, whole)).clean


def test_a_short(pair):
    done = result(pair, pair.text.replace("( 8400 * )", "( 8400 * )\n  NEW metal2 ( 4400 5500 ) ( * 6500 )"))
    assert done.shorts == (("a", "n"),) and not done.open_nets and done.errors() == "1 shorts (a-n)"


def test_a_short_by_a_special_wire(pair):
    done = result(pair, pair.text, "- y\n+ ROUTED metal1 400 ( 6000 9400 ) ( * 9800 ) ;\n")
    assert done.shorts == (("n", "y"),)


def test_a_short_with_a_rail(pair):
    done = result(pair, pair.text.replace("( 8400 * )", "( 8400 * )\n  NEW metal1 ( 4400 5500 ) ( 5200 * )"))
    assert done.clean and done.close == 1  # 50 nm above the rail
    done = result(pair, pair.text.replace("( 8400 * )", "( 8400 * )\n  NEW metal1 ( 4400 5400 ) ( 5200 * )"))
    assert done.shorts == (("gnd", "n"),)


def test_a_wire_on_an_obstruction(pair):
    done = result(pair, pair.text.replace("( 8400 * )", "( 8400 * )\n  NEW metal1 ( 4800 11500 ) ( 5600 * )"))
    assert done.obstructed == ("n",) and done.errors() == "1 nets on obstructions (n)"


def test_wires_that_are_too_close(pair):
    done = result(pair, pair.text.replace("( 8400 * )", "( 8400 * )\n  NEW metal2 ( 4800 5500 ) ( * 6500 )"))
    assert done.clean and done.close == 1


def test_a_via_connects_its_layers_only(pair):
    """A wire of another net on metal3 above a via is no short."""
    done = result(pair, pair.text.replace("( 8400 * )", "( 8400 * )\n  NEW metal3 ( 4400 9500 ) ( 9200 * )"))
    assert done.clean


def test_cells_that_overlap(pair):
    cells = {**pair.placement.cells, "u1": replace(pair.placement.cells["u1"], x=4200)}
    placement = replace(pair.placement, cells=cells)
    done = check(pair.design, pair.lef, placement, wires.read(pair.routed(pair.text), pair.lef))
    assert ("a", "n") in done.shorts


def test_a_constant_input(pair):
    """An input that is tied to gnd is one piece with a rail; without a wire it is open."""
    pins = {**pair.design.pins, "u1": {"A": "gnd", "Y": "y"}}
    design = replace(pair.design, pins=pins)
    text = pair.text.replace("- n\n+ ROUTED metal1 ( 5200 9500 ) ( 8400 * ) ;", "- gnd\n+ ROUTED {} ;")
    tied = "metal1 ( 8400 9500 ) M2_M1\n  NEW metal2 ( 8400 9500 ) ( * 5000 ) M2_M1"
    for wire, open_nets in ((tied, ()), ("metal1 ( 8400 9500 ) M2_M1", ("gnd",))):
        metal = wires.read(pair.routed(text.format(wire)), pair.lef)
        done = check(design, pair.lef, pair.placement, metal)
        assert done.open_nets == open_nets and not done.shorts
