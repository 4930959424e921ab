"""Floating-point addition and multiplication in Verilog against the golden ones, bit for bit."""

import numpy as np
import pytest
from amaranth import ClockSignal, Module, ResetSignal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from golden import bf16
from hw.arith.floats import FloatAdd, FloatMultiply
from hw.arith.formats import BF16, FP32
from hw.common.parts import place
from hw.common.pipeline import CreditGate, delay
from sim.run import simulate

OPERATIONS = {"add": (FloatAdd, bf16.add), "multiply": (FloatMultiply, bf16.multiply)}
FORMATS = {"bf16": (BF16, bf16.BF16), "fp32": (FP32, bf16.FP32)}
LANES = 16


class Lanes(wiring.Component):
    """`LANES` equal units behind streams."""

    def __init__(self, unit):
        self.unit = unit
        row = data.ArrayLayout(unit.layout.size, LANES)
        pair = data.StructLayout({"a": row, "b": row})
        super().__init__({"i": In(stream.Signature(pair)), "o": Out(stream.Signature(row))})

    @property
    def parts(self):
        return {"lane": self.unit}

    def elaborate(self, platform):
        m = Module()
        m.submodules.gate = gate = CreditGate(self.o.payload.shape(), stages=self.unit.latency)
        clock = {"clk": ClockSignal(), "rst": ResetSignal()} if self.unit.latency else {}
        for k in range(LANES):
            ports = dict(self.unit.signature.members)
            y = place(m, "lane", f"lane{k}", ports, a=self.i.payload.a[k], b=self.i.payload.b[k], **clock)["y"]
            m.d.comb += gate.result[k].eq(y)
        m.d.comb += [
            self.i.ready.eq(gate.ready),
            gate.take.eq(self.i.valid & gate.ready),
            gate.done.eq(delay(m, "done", gate.take, self.unit.latency)),
        ]
        wiring.connect(m, wiring.flipped(self.o), gate.o)
        return m


def check(operation, fmt, a, b, cuts=(), **options):
    """Both operands through the Verilog, `LANES` pairs a beat; all results equal the golden ones."""
    unit_type, reference = OPERATIONS[operation]
    layout, golden_format = FORMATS[fmt]
    unit = Lanes(unit_type(layout, cuts=cuts))
    a, b = (np.resize(v, (-(-len(v) // LANES), LANES)).astype(golden_format.dtype) for v in (a, b))
    record = simulate(unit, "lanes", {"i": {"a": a, "b": b}}, {"o": len(a)}, **options)
    np.testing.assert_array_equal(record.outputs["o"], reference(a, b, golden_format))
    assert options.get("stall") or np.all(record.cycles["o"] - record.cycles["i"] == unit.unit.latency + 2)


def boundary_fields(fraction_bits):
    """Fractions at the ends, the middle and around it; exponent fields of every class."""
    ones = (1 << fraction_bits) - 1
    half = 1 << (fraction_bits - 1)
    fractions = [0, 1, 2, 3, half - 1, half, half + 1, ones - 2, ones - 1, ones]
    return fractions, [0, 1, 2, 3, 64, 126, 127, 128, 190, 252, 253, 254, 255]


def boundary_pairs(fmt):
    """Every pair of the codes that these fields and both signs make."""
    bits = FORMATS[fmt][1].fraction_bits
    fractions, exponents = (np.array(values, np.uint32) for values in boundary_fields(bits))
    magnitudes = (exponents[:, None] << bits | fractions).ravel()
    codes = np.concatenate([magnitudes, magnitudes | 1 << (8 + bits)])
    return (side.ravel() for side in np.meshgrid(codes, codes))


def random_pairs(rng, fmt, count):
    """Any bits; in every second pair the exponents are close enough to interact."""
    golden_format = FORMATS[fmt][1]
    a, b = (rng.integers(0, 1 << golden_format.width, count, dtype=np.uint32) for _ in range(2))
    bits = golden_format.fraction_bits
    near = ((a >> bits & 0xFF).astype(np.int64) + rng.integers(-bits - 4, bits + 5, count)).clip(0, 255)
    b = np.where(np.arange(count) % 2, b, b & ~np.uint32(0xFF << bits) | near.astype(np.uint32) << bits)
    return a, b


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_random_pairs(rng, seed, operation, fmt):
    check(operation, fmt, *random_pairs(rng, fmt, 30_000))


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_boundaries(operation, fmt):
    check(operation, fmt, *boundary_pairs(fmt))


@pytest.mark.parametrize(
    ("operation", "cuts"),
    [("add", FloatAdd.CUTS), ("multiply", ("result",))],
    ids=str,
)
def test_registers_change_nothing_but_the_latency(rng, seed, operation, cuts):
    a, b = random_pairs(rng, "bf16", 1000)
    check(operation, "bf16", a, b, cuts)
    check(operation, "bf16", a, b, cuts, stall=0.4, seed=seed)
    assert OPERATIONS[operation][0](BF16, cuts=cuts).latency == len(cuts)


@pytest.mark.heavy
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_million_pairs(rng, operation, fmt):
    check(operation, fmt, *random_pairs(rng, fmt, 1_000_000))


@pytest.mark.heavy
@pytest.mark.parametrize("distance", [*range(11), 40])
def test_add_every_significand_pair(distance):
    a, b = (side.ravel() for side in np.meshgrid(np.arange(128), np.arange(128)))
    top = np.array([1, 2, 9, 127, 254]).repeat(a.size)
    a, b = np.tile(a, 5), np.tile(b, 5)
    codes = (top << 7 | a, (top - distance).clip(0) << 7 | b)
    check("add", "bf16", np.tile(codes[0], 2), np.concatenate([codes[1], codes[1] | 0x8000]))


@pytest.mark.heavy
def test_multiply_every_significand_pair():
    a, b = (side.ravel() for side in np.meshgrid(np.arange(128), np.arange(128)))
    pairs = [(1, 125), (1, 126), (1, 127), (127, 127), (127, 254), (128, 254), (254, 126), (254, 254)]
    codes = [np.concatenate([pair[side] << 7 | v for pair in pairs]) for side, v in ((0, a), (1, b))]
    check("multiply", "bf16", *codes)


def test_bad_parameters():
    with pytest.raises(ValueError, match="cuts has 'products': must be of product, result"):
        FloatMultiply(FP32, cuts=("products",))
