"""The wrapper that skips idle modules changes no result, and would be noticed if it did."""

import numpy as np
import pytest

from golden.dot import matmul
from hw.lxe.dpe import DPE, MacRow
from sim.bench import build, idle_blocks
from tests.hw.lxe.dpe_cases import operands, run

SIZES = {"trees": 4, "inputs": 4, "load_rows": 2, "accumulators": 8}


@pytest.fixture
def small_blocks(monkeypatch):
    """Build every repeated module separately, as at the size `paper`."""
    monkeypatch.setattr(build, "BLOCK_SIZE", 0)


@pytest.mark.parametrize("depth", [1, pytest.param(3, marks=pytest.mark.heavy), 5])
def test_equals_golden_with_pauses(small_blocks, rng, seed, depth):
    unit = DPE(**SIZES, depth=depth)
    x, w = operands(rng, 9, 21, 5)
    y, _ = run(unit, x, w, stall={"i": 0.8, "i_weights": 0.8, "o": 0.5}, seed=seed)
    np.testing.assert_array_equal(y, matmul(x.T, w, unit.inputs, unit.align_bits))


def test_module_that_settles_later_gives_other_results(small_blocks, rng, seed, monkeypatch):
    unit = DPE(**SIZES)
    monkeypatch.setattr(unit.modules["dpe_row"], "settling", 1)
    x, w = operands(rng, 9, 21, 5)
    y, _ = run(unit, x, w, stall={"i": 0.8, "i_weights": 0.8}, seed=seed)
    assert np.any(y != matmul(x.T, w, unit.inputs, unit.align_bits))


def test_inputs_of_the_module_are_checked():
    row = MacRow(inputs=4, align_bits=24, registers=("result",))
    row.enables = {"weights": "enable"}
    text = "module dpe_row(weights, clk);\n  input [63:0] weights;\n  input clk;\nendmodule\n"
    with pytest.raises(ValueError, match=r"^module dpe_row has no input enable$"):
        idle_blocks.wrapper(text, "dpe_row", row)
    with pytest.raises(ValueError, match=r"^the Verilog has no module row$"):
        idle_blocks.wrapper(text, "row", row)
