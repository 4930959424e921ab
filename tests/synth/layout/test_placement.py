"""Legal placements of results of graywolf, and the files for the tools."""

from dataclasses import replace

import numpy as np
import pytest

from hw.yosys import ToolError
from synth.layout.design import Port
from synth.layout.placement import Place, cell_file, legal, transform
from synth.layout.routing import script, unrouted_def

RESULT = """\
u0 0 0 160 1000 0 1
u1 0 1000 160 2000 0 2
twfeed1 160 0 240 1000 0 1
twpin_a -100 400 -20 600 0 -1
twpin_y 300 400 380 600 0 -2
"""


@pytest.mark.parametrize(("utilisation", "count", "used"), [(0.8, 2, [0, 1]), (0.5, 4, [1, 3]), (0.35, 5, [1, 3])])
def test_cells_on_rows_and_sites(pair, utilisation, count, used):
    """At a low utilisation there are more rows, not longer ones."""
    placement = legal(pair.design, pair.lef, RESULT, utilisation)
    assert len(placement.rows) == count
    assert [placement.rows[k][1] for k in used] == [placement.cells[name].y for name in ("u0", "u1")]
    assert placement.rows[0][2] <= legal(pair.design, pair.lef, RESULT, 0.8).rows[0][2] == 3
    for k, (x, y, sites, orient) in enumerate(placement.rows):
        inside = [at for at in placement.cells.values() if at.y == y]
        assert {at.orient for at in inside} == {orient} and orient == ("FS" if k % 2 else "N")
        widths = {"u0": 2, "u1": 2} | dict.fromkeys(placement.fillers, 1)
        used = [site for name, at in placement.cells.items() if at.y == y
                for site in range((at.x - x) // 800, (at.x - x) // 800 + widths[name])]  # fmt: skip
        assert sorted(used) == list(range(sites))  # no gap in the rails, no overlap
        assert all((at.x - x) % 800 == 0 for at in inside)
    assert placement.utilisation == pytest.approx(4 / (count * placement.rows[0][2]))
    assert placement.utilisation <= utilisation


def test_pins_on_tracks_of_the_edges(pair):
    placement = legal(pair.design, pair.lef, RESULT, 0.5)
    left, right = placement.pins["a"], placement.pins["y"]
    assert left.layer == right.layer == "metal3" and left.x == 400 and right.x == placement.width - 400
    assert all((pin.y - 500) % 1000 == 0 and 0 < pin.y < placement.height for pin in (left, right))


@pytest.mark.parametrize("side", [-1, -2, -3, -4])
def test_many_pins_on_one_edge(pair, side):
    """The die grows, neighbouring pins have a free track between them, and no pin is near a corner."""
    names = [f"p{k}" for k in range(60)]
    design = replace(pair.design, ports=tuple(Port(name, name, False, (name, 0)) for name in names))
    cells = "\n".join(RESULT.splitlines()[:3])
    pads = "\n".join(f"twpin_{name} {10 * k} {10 * k} {10 * k} {10 * k} 0 {side}" for k, name in enumerate(names))
    placement = legal(design, pair.lef, f"{cells}\n{pads}\n", 0.5)
    upright = side in (-3, -4)
    pitch, length = (800, placement.width) if upright else (1000, placement.height)
    along = sorted((pin.x if upright else pin.y) for pin in placement.pins.values())
    assert min(np.diff(along)) >= 2 * pitch and all((at - pitch // 2) % pitch == 0 for at in along)
    assert along[0] >= 3 * pitch and along[-1] <= length - 3 * pitch
    order = sorted(names, key=lambda name: (placement.pins[name].x, placement.pins[name].y))
    assert order == names  # as graywolf placed them


def test_a_cell_that_is_missing(pair):
    with pytest.raises(ToolError, match="pair: graywolf must place every cell and pin once, got 1 and 2"):
        legal(pair.design, pair.lef, RESULT.replace("u0 0 0 160 1000 0 1\n", ""), 0.5)


@pytest.mark.parametrize(
    ("orient", "expected"),
    [
        ("N", (10, 20, 12, 23)),
        ("FS", (10, 27, 12, 30)),
        ("FN", (14, 20, 16, 23)),
        ("S", (14, 27, 16, 30)),
    ],
)
def test_orientations(orient, expected):
    assert transform((0, 0, 2, 3), Place(10, 20, orient), 6, 10) == expected


def test_input_of_the_tools(pair):
    text = cell_file(pair.design, pair.lef)
    assert "cell 1 u0\nleft -80 right 80 bottom -500 top 500\npin name A signal a layer 1 -40 -50\n" in text
    assert "pad 2 name twpin_y\n" in text
    placed = unrouted_def(pair.design, pair.lef, pair.placement)
    assert "TRACKS X 400 DO 20 STEP 800 LAYER metal2 ;" in placed  # the offset is half a pitch
    assert "- n\n  ( u0 Y )\n  ( u1 A )\n;\n" in placed
    assert "stage3" not in script(pair.lef, "two.lef")
