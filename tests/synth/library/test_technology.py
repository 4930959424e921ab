import pytest

from synth.library.cells import cells
from synth.library.technology import Technology

# widths of the NanGate 45 nm Open Cell Library in gate pitches: printed cell width over 0.19 um
NANGATE = {"INV": 2, "NAND2": 3, "NAND3": 4, "NAND4": 5, "NOR2": 3, "AOI21": 4, "AOI22": 5, "AND2": 4, "OR2": 4}
NANGATE |= {"XOR2": 6, "XNOR2": 6, "MUX2": 7, "HA": 10, "FA": 16, "DFF": 17, "DFFR": 20, "DFFS": 20, "LATCH": 10}


@pytest.mark.parametrize("name", NANGATE)
def test_width_rule_gives_published_widths(name):
    widths = {cell.name: cell.columns for cell in cells()}
    assert widths[f"{name}_X1"] == NANGATE[name]


def test_placed_gate_density():
    """A NAND2 needs about 0.2 um2 of layout area at 14 nm."""
    technology = Technology()
    assert technology.area_um2(3) / technology.utilisation == pytest.approx(0.2, rel=0.1)


def test_bigger_devices_are_faster_and_leak_more():
    slow, fast = Technology(fins=2), Technology(fins=4)
    assert fast.ps_per_ff < slow.ps_per_ff
    assert fast.leakage_nw(1) == pytest.approx(2 * slow.leakage_nw(1))
    assert fast.leakage_nw(1, stack=2) < fast.leakage_nw(1)


def test_stacks_resist_less_than_their_height():
    technology = Technology()
    factors = [technology.stack_resistance(height) for height in range(1, 5)]
    assert factors[0] == pytest.approx(1)
    assert all(
        after / before > 1 and height > after
        for before, after, height in zip(factors[:-1], factors[1:], (2, 3, 4), strict=True)
    )


def test_linear_devices_in_series_add_up():
    """Without velocity saturation (alpha 2, saturation at the full overdrive) the square law gives exactly n."""
    square = Technology(alpha=2.0, threshold_v=0.2, saturation_ratio=0.75)
    assert [square.stack_resistance(n) for n in (2, 3, 4)] == pytest.approx([2, 3, 4], rel=1e-6)
