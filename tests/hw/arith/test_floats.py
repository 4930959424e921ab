"""Floating-point addition and multiplication in Verilog against the golden ones, bit for bit."""

import numpy as np
import pytest
from amaranth import ClockSignal, Module, ResetSignal, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from golden import bf16
from hw.arith.floats import FloatAdd, FloatMultiply
from hw.arith.formats import BF16, FP32
from hw.common.instances import instantiate
from hw.common.pipeline import CreditGate, delay
from sim.bench.run import simulate

OPERATIONS = {"add": (FloatAdd, bf16.add), "multiply": (FloatMultiply, bf16.multiply)}
FORMATS = {"bf16": (BF16, bf16.BF16), "fp32": (FP32, bf16.FP32)}
LANES = 16


class Units(wiring.Component):
    """`LANES` of every operation on every format with stream ports; all have the latency of the slowest operation."""

    def __init__(self, registers):
        self.units = {
            f"{operation}_{fmt}": unit(layout, registers=registers.get(operation, ()))
            for operation, (unit, _) in OPERATIONS.items()
            for fmt, (layout, _) in FORMATS.items()
        }
        self.latency = max(unit.latency for unit in self.units.values())
        rows = {fmt: data.ArrayLayout(layout.size, LANES) for fmt, (layout, _) in FORMATS.items()}
        operands = {f"{fmt}_{side}": row for fmt, row in rows.items() for side in "ab"}
        results = {name: rows[name.split("_")[1]] for name in self.units}
        ports = {"i": In(stream.Signature(data.StructLayout(operands)))}
        super().__init__(ports | {"o": Out(stream.Signature(data.StructLayout(results)))})

    @property
    def modules(self):
        return self.units

    def elaborate(self, platform):
        m = Module()
        m.submodules.gate = gate = CreditGate(self.o.payload.shape(), stages=self.latency)
        for name, unit in self.units.items():
            ports, fmt = dict(unit.signature.members), name.split("_")[1]
            clock = {"clk": ClockSignal(), "rst": ResetSignal()} if unit.latency else {}
            for k in range(LANES):
                a, b = (self.i.payload[f"{fmt}_{side}"][k] for side in "ab")
                y = instantiate(m, name, f"{name}{k}", ports, a=a, b=b, **clock)["y"]
                for cycle in range(unit.latency, self.latency):
                    later = Signal(len(y), name=f"{name}{k}_{cycle}", reset_less=True)
                    m.d.sync += later.eq(y)
                    y = later
                m.d.comb += gate.result[name][k].eq(y)
        m.d.comb += [
            self.i.ready.eq(gate.ready),
            gate.take.eq(self.i.valid & gate.ready),
            gate.done.eq(delay(m, "done", gate.take, self.latency)),
        ]
        wiring.connect(m, wiring.flipped(self.o), gate.o)
        return m


def check(pairs, registers=None, **options):
    """The operands of each format through every operation, `LANES` pairs a beat; all results equal the golden ones."""
    unit = Units(registers or {})
    beats = -(-max(len(a) for a, _ in pairs.values()) // LANES)
    rows = {
        fmt: [np.resize(side, (beats, LANES)).astype(golden.dtype) for side in pairs[fmt]]
        for fmt, (_, golden) in FORMATS.items()
    }
    operands = {f"{fmt}_{side}": codes for fmt in rows for side, codes in zip("ab", rows[fmt], strict=True)}
    record = simulate(unit, "floats", {"i": operands}, {"o": beats}, **options)
    for operation, (_, reference) in OPERATIONS.items():
        for fmt, (_, golden) in FORMATS.items():
            name = f"{operation}_{fmt}"
            np.testing.assert_array_equal(record.outputs["o"][name], reference(*rows[fmt], golden), err_msg=name)
    assert options.get("stall") or np.all(record.cycles["o"] - record.cycles["i"] == unit.latency + 2)


def in_both(a, b):
    """Pairs of BF16 codes for both formats."""
    return {"bf16": (a, b), "fp32": (a.astype(np.uint32) << 16, b.astype(np.uint32) << 16)}


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
    return tuple(side.ravel() for side in np.meshgrid(codes, codes))


def random_pairs(rng, fmt, count):
    """Any bits; in every second pair the exponents are close enough to interact."""
    golden_format = FORMATS[fmt][1]
    a, b = (rng.integers(0, 1 << golden_format.width, count, dtype=np.uint32) for _ in range(2))
    bits = golden_format.fraction_bits
    near = ((a >> bits & 0xFF).astype(np.int64) + rng.integers(-bits - 4, bits + 5, count)).clip(0, 255)
    b = np.where(np.arange(count) % 2, b, b & ~np.uint32(0xFF << bits) | near.astype(np.uint32) << bits)
    return a, b


def test_random_pairs(rng):
    check({fmt: random_pairs(rng, fmt, 30_000) for fmt in FORMATS})


def test_boundaries():
    check({fmt: boundary_pairs(fmt) for fmt in FORMATS})


@pytest.mark.heavy
def test_registers_change_nothing_but_the_latency(rng, seed):
    registers = {"add": FloatAdd.POSITIONS, "multiply": ("result",)}
    pairs = {fmt: random_pairs(rng, fmt, 1000) for fmt in FORMATS}
    check(pairs, registers)
    check(pairs, registers, stall=0.4, seed=seed)
    for operation, positions in registers.items():
        assert OPERATIONS[operation][0](BF16, registers=positions).latency == len(positions)


@pytest.mark.heavy
def test_a_million_pairs(rng):
    check({fmt: random_pairs(rng, fmt, 1_000_000) for fmt in FORMATS})


@pytest.mark.heavy
@pytest.mark.parametrize("top", [1, 2, 9, 127, 254])
def test_every_significand_pair_at_every_distance(top):
    """Both signs of the smaller operand, sums at all relevant exponent distances, products over the full range."""
    fractions = [side.ravel() for side in np.meshgrid(np.arange(128), np.arange(128))]
    fields = [field for field in (top - d for d in (*range(11), 40)) if field >= 0]
    a = np.tile(top << 7 | fractions[0], len(fields))
    b = np.concatenate([field << 7 | fractions[1] for field in fields])
    check(in_both(np.tile(a, 2), np.concatenate([b, b | 0x8000])))


@pytest.mark.heavy
def test_every_significand_pair_around_underflow_and_overflow():
    a, b = (side.ravel() for side in np.meshgrid(np.arange(128), np.arange(128)))
    pairs = [(1, 125), (1, 126), (1, 127), (127, 127), (127, 254), (128, 254), (254, 126), (254, 254)]
    check(in_both(*(np.concatenate([pair[k] << 7 | v for pair in pairs]) for k, v in ((0, a), (1, b)))))


def test_bad_parameters():
    with pytest.raises(ValueError, match="register position must be one of product, result, got 'products'"):
        FloatMultiply(FP32, registers=("products",))
