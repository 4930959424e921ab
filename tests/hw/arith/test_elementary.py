"""The elementary functions' Verilog against the golden ones: all inputs, bit for bit, in one build."""

import numpy as np
import pytest
from amaranth import ClockSignal, Module, ResetSignal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from golden import exp
from golden.bf16 import FP32
from golden.elementary import reciprocal, rsqrt, silu
from hw.arith.elementary import Exp, Reciprocal, Rsqrt, Silu
from hw.common.instances import instantiate
from hw.common.pipeline import CreditGate, delay
from sim.bench.run import simulate

LANES = 4
ALL = np.arange(1 << 16, dtype=np.uint16)
BF16_FUNCTIONS = {"reciprocal": (Reciprocal, reciprocal), "rsqrt": (Rsqrt, rsqrt), "silu": (Silu, silu)}


class Functions(wiring.Component):
    """`LANES` of every function with stream ports; all have the latency of the slowest function."""

    modules = {name: unit() for name, (unit, _) in BF16_FUNCTIONS.items()} | {"exp": Exp()}

    def __init__(self):
        rows = {16: data.ArrayLayout(16, LANES), 32: data.ArrayLayout(32, LANES)}
        super().__init__(
            {
                "i": In(stream.Signature(data.StructLayout({"bf16": rows[16], "fp32": rows[32]}))),
                "o": Out(stream.Signature(data.StructLayout(dict.fromkeys(self.modules, rows[16])))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.gate = gate = CreditGate(self.o.payload.shape(), stages=Silu.latency)
        for name, unit in self.modules.items():
            source = self.i.payload.fp32 if name == "exp" else self.i.payload.bf16
            registered = name == "silu"
            clock = {"clk": ClockSignal(), "rst": ResetSignal()} if registered else {}
            for k in range(LANES):
                y = instantiate(m, name, f"{name}{k}", dict(unit.signature.members), x=source[k], **clock)["y"]
                m.d["comb" if registered else "sync"] += gate.result[name][k].eq(y)
        m.d.comb += [
            self.i.ready.eq(gate.ready),
            gate.take.eq(self.i.valid & gate.ready),
            gate.done.eq(delay(m, "done", gate.take, Silu.latency)),
        ]
        wiring.connect(m, wiring.flipped(self.o), gate.o)
        return m


@pytest.mark.heavy
def test_every_input(rng):
    """All BF16 codes; for exp every upper half of an FP32 code, and from below and above every value of floor(x) up to
    where the result is 0."""
    steps = np.arange(1 << 15).astype(np.float32)
    below = np.nextafter(steps, np.float32(0))
    upper = (ALL.astype(np.uint32) << 16) | rng.integers(0, 1 << 16, len(ALL)).astype(np.uint32)
    specials = np.array([0, 1 << 31, 1, FP32.infinity, FP32.infinity | 1 << 31, FP32.nan, 0x7F800001, 0], np.uint32)
    fp32 = np.concatenate([steps.view(np.uint32), below.view(np.uint32), upper, specials])
    bf16 = np.resize(ALL, len(fp32))
    operands = {"bf16": bf16.reshape(-1, LANES), "fp32": fp32.reshape(-1, LANES)}
    result = simulate(Functions(), "functions", {"i": operands}, {"o": len(fp32) // LANES}).outputs["o"]
    for name, (_, golden) in BF16_FUNCTIONS.items():
        np.testing.assert_array_equal(result[name].reshape(-1), golden(bf16), err_msg=name)
    np.testing.assert_array_equal(result["exp"].reshape(-1), exp.power(fp32))
