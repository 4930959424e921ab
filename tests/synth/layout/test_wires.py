import pytest

from synth.layout.wires import Segment, Via, read


def test_segments_and_vias(pair):
    wires = read(pair.routed(pair.text, "- n\n+ ROUTED metal1 400 ( 6000 9400 ) ( * 9800 ) ;\n"), pair.lef)
    assert wires.vias == (Via("a", "M2_M1", 4400, 9500), Via("y", "M2_M1", 9200, 9500))
    assert [segment.net for segment in wires.segments] == ["a", "n", "y", "n"]
    assert wires.segments[1].box == (5050, 9350, 8550, 9650) and wires.segments[1].length == 3200
    assert wires.segments[3].box == (5800, 9400, 6200, 9800)  # special wires do not extend
    assert wires.length_um == pytest.approx(9 + 3.2 + 9 + 0.4)
    assert wires.vias[0].shapes(pair.lef)[0] == ("metal1", (4200, 9300, 4600, 9700))


def test_a_path_of_several_points(pair):
    text = "- n\n+ ROUTED metal1 ( 0 500 ) ( 800 * ) M2_M1\n  NEW metal2 ( 800 500 ) ( * 1500 ) ( * 2500 ) ;\n"
    wires = read(pair.routed(text), pair.lef)
    assert wires.segments[0] == Segment("n", "metal1", 0, 500, 800, 500, 300, 150)
    assert [segment.length for segment in wires.segments] == [800, 1000, 1000] and len(wires.vias) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- n\n+ ROUTED metal9 ( 0 0 ) ( 1 * ) ;\n", "net n: layer must be one of metal1, metal2, metal3, got metal9"),
        ("- n\n+ ROUTED metal1 ( 0 0 ) M9_M8 ;\n", "net n: via must be one of M2_M1 at a point, got M9_M8"),
        ("- n\n+ ROUTED metal1 ( 0 0 ) ( 5 5 ) ;\n", "wire must be horizontal or vertical, got "),
        ("- n\n+ ROUTED metal1 ( * 0 ) ( 5 0 ) ;\n", "first point must have two coordinates"),
    ],
)
def test_damaged_text(pair, text, message):
    with pytest.raises(ValueError, match=message):
        read(pair.routed(text), pair.lef)


def test_other_units(pair):
    with pytest.raises(ValueError, match="DEF: units per micron must be 1000, got 100"):
        read(pair.routed(pair.text).replace("1000 ;", "100 ;", 1), pair.lef)
