"""Conversion to RTLIL and Verilog, and the yosys runner."""

import pytest
from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw import emit, yosys
from hw.config import PRESETS
from hw.registry import UNITS, unit


class Adder(wiring.Component):
    def __init__(self):
        super().__init__({"a": In(4), "b": In(4), "o": Out(5)})

    def elaborate(self, platform):
        m = Module()
        m.d.sync += self.o.eq(self.a + self.b)
        return m


def test_verilog_has_the_ports_and_no_processes():
    text = emit.to_verilog(Adder(), "adder")
    assert text.startswith("module adder(")
    for port in ("a", "b", "o", "clk", "rst"):
        assert f" {port};" in text
    assert "always @*" not in text


def test_equal_designs_give_equal_text():
    assert emit.to_rtlil(Adder(), "adder") == emit.to_rtlil(Adder(), "adder")


@pytest.mark.parametrize("name", ["Adder", "2add", "add-er", ""])
def test_bad_module_names(name):
    with pytest.raises(ValueError, match="module name must be lower-case letters"):
        emit.to_rtlil(Adder(), name)


def test_yosys_errors_come_back_in_one_line():
    with pytest.raises(yosys.YosysError, match="yosys: ERROR: No such command: frobnicate") as caught:
        yosys.run(["frobnicate"])
    assert "\n" not in str(caught.value)


def test_yosys_sees_files_below_tmp(tmp_path):
    (tmp_path / "a.v").write_text("module a(input x, output y); assign y = ~x; endmodule\n")
    assert "1 cells" in " ".join(yosys.run([f"read_verilog {tmp_path}/a.v", "proc", "stat"]).split())


def test_unknown_yosys_build():
    with pytest.raises(ValueError, match="yosys build must be one of yowasp, pyosys, got 'vivado'"):
        yosys.run(["stat"], tool="vivado")


def test_unknown_unit():
    with pytest.raises(ValueError, match=r"unit must be one of .*hcu.*, got 'gpu'"):
        unit("gpu")


@pytest.mark.parametrize("name", UNITS)
def test_every_unit_builds_at_every_preset(name):
    for config in PRESETS.values():
        component = UNITS[name].build(config)
        assert isinstance(component, wiring.Component)
        assert component.__doc__, name
