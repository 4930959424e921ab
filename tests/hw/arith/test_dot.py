"""The fused dot product's Verilog against the golden one, bit for bit."""

import numpy as np
import pytest

from golden.dot import dot
from hw.arith.dot import DotTree
from hw.config import PRESETS, Config
from hw.emit import to_rtlil
from sim.bench.run import InTurns, simulate
from tests.golden.dot_cases import adversarial

SIZES = {  # inputs, alignment width, pipeline depth
    "tiny": (4, 24, 4),
    "one input": (1, 16, 1),
    "narrow": (8, 16, 2),
    "odd width": (2, 21, 3),
    "wide": (4, 30, 5),
}
LATER = ("wide", "narrow")  # with --heavy: each size is a build


def sized(name):
    inputs, width, depth = SIZES[name]
    return DotTree(inputs=inputs, align_bits=width, depth=depth)


def run(unit, a, b, **options):
    return simulate(unit, "dot_tree", {"i": {"a": a, "b": b}}, {"o": len(a)}, **options)


def cases(rng, inputs, rows):
    """Vectors of every kind in mixed order, so that each kind occurs in every phase of back-pressure."""
    pairs = adversarial(rng, inputs, rows).values()
    a, b = (np.concatenate(side) for side in zip(*pairs, strict=True))
    order = rng.permutation(len(a))
    return a[order], b[order]


@pytest.mark.parametrize("stall", [0.0, InTurns(0.4)], ids=["streaming", "stalled"])
@pytest.mark.parametrize("size", [pytest.param(name, marks=[pytest.mark.heavy] * (name in LATER)) for name in SIZES])
def test_equals_golden(rng, seed, size, stall):
    """Under stalls too; without them every result has the exact latency, one every cycle."""
    unit = sized(size)
    a, b = cases(rng, unit.inputs, 40)
    record = run(unit, a, b, stall=stall, seed=seed)
    np.testing.assert_array_equal(record.outputs["o"], dot(a, b, unit.align_bits))
    assert unit.timing == {"latency": unit.depth + 2, "results_per_cycle": 1}
    if not stall:
        assert np.all(np.diff(record.cycles["i"]) == 1)
        assert np.all(record.cycles["o"] - record.cycles["i"] == unit.latency)


def test_a_stalled_output_loses_nothing(rng, seed):
    unit = sized("odd width")
    a, b = cases(rng, unit.inputs, 20)
    record = run(unit, a, b, stall={"i": 0.0, "o": 0.9}, seed=seed)
    np.testing.assert_array_equal(record.outputs["o"], dot(a, b, unit.align_bits))
    assert record.cycles["i"][-1] > len(a)  # the input was held back


def test_reset_in_mid_flight(rng, seed):
    unit = sized("odd width")
    a, b = cases(rng, unit.inputs, 5)
    record = run(unit, a, b, stall=0.3, seed=seed, reset_after=20)
    np.testing.assert_array_equal(record.outputs["o"], dot(a, b, unit.align_bits))


@pytest.mark.heavy
@pytest.mark.parametrize("preset", ["small", "paper"])
def test_presets_equal_golden(rng, seed, preset):
    unit = DotTree.from_config(Config.preset(preset))
    a, b = cases(rng, unit.inputs, 200)
    np.testing.assert_array_equal(run(unit, a, b, stall=0.2, seed=seed).outputs["o"], dot(a, b))


@pytest.mark.heavy
def test_a_million_dot_products_of_64(rng):
    unit = DotTree.from_config(Config.preset("paper"))
    for _ in range(10):
        a, b = cases(rng, unit.inputs, 10_000)  # of each of the thirteen kinds
        np.testing.assert_array_equal(run(unit, a, b).outputs["o"], dot(a, b))


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_elaborates(preset):
    config = Config.preset(preset)
    tree = DotTree.from_config(config)
    assert tree.inputs == config.dpe_inputs
    assert "module \\dot_tree" in to_rtlil(tree, "dot_tree")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"inputs": 3}, "inputs must be a power of two, got 3"),
        ({"inputs": 0}, "inputs must be a power of two, got 0"),
        ({"inputs": 4, "align_bits": 31}, "align_bits must be 16 to 30, got 31"),
        ({"inputs": 4, "depth": 6}, "depth must be 1 to 5, got 6"),
    ],
)
def test_bad_parameters(arguments, message):
    with pytest.raises(ValueError, match=message):
        DotTree(**arguments)
