import re
from collections import Counter
from types import SimpleNamespace

import pytest

from synth.layout.design import design


def mapped(**changes):
    """A block with an inverter behind a port with a strange name, and a constant output."""
    module = {
        "ports": {
            "i.data": {"direction": "input", "bits": [2, 5]},
            "o": {"direction": "output", "bits": [3, "1"]},
        },
        "netnames": {"i.data": {"hide_name": 0, "bits": [2, 5]}},
        "cells": {
            "g$1": {
                "type": "INV_X1",
                "port_directions": {"A": "input", "Y": "output"},
                "connections": {"A": [2], "Y": [3]},
            }
        },
    }
    values = {"name": "dut.part", "module": module, "macros": (), "children": {}, "cells": Counter({"INV_X1": 1})}
    return SimpleNamespace(**{**values, **changes})


def test_names_ports_and_constants(pair):
    result = design(mapped(), pair.lef)
    assert result.name == "dut_part" and result.cells == {"g_1": "INV_X1"} and result.sources == {"g_1": "g$1"}
    assert [(port.name, port.bit, port.output) for port in result.ports] == [
        ("i_data_0", ("i.data", 0), False),
        ("i_data_1", ("i.data", 1), False),
        ("o_0", ("o", 0), True),
    ]
    assert result.constants == {"o_1": "1"} and result.bits["o_0"] == 3
    assert result.nets == {"i_data_0": [("PIN", "i_data_0"), ("g_1", "A")], "o_0": [("PIN", "o_0"), ("g_1", "Y")]}
    assert re.search(r"INV_X1 g_1 \(\.A\(i_data_0\), \.Y\(o_0\)\);", result.verilog())
    assert "assign o_1 = 1'b1;" in result.verilog()


def test_blocks_that_have_no_layout(pair):
    with pytest.raises(ValueError, match=r"dut\.part: layout must be one block of library cells, got memories"):
        design(mapped(macros=("memory",)), pair.lef)
    with pytest.raises(ValueError, match=r"dut\.part: every cell must be in the LEF file, got DFF_X1"):
        design(mapped(cells=Counter({"DFF_X1": 1})), pair.lef)


def test_constant_inputs_are_tied_to_a_supply(pair):
    module = mapped().module
    module["cells"]["g$1"]["connections"]["A"] = ["1"]
    result = design(mapped(module=module), pair.lef)
    assert result.pins["g_1"]["A"] == "vdd" and result.ties == {"vdd": [("g_1", "A")]} and "vdd" not in result.nets
    assert ".A(1'b1)" in result.verilog() and "vdd" not in result.bits


def test_reserved_words(pair):
    """graywolf stops at a net with the name `signal`."""
    module = mapped().module
    module["ports"]["signal"] = module["ports"].pop("o")
    module["ports"]["signal"]["bits"] = [3]
    assert design(mapped(module=module), pair.lef).ports[-1].name == "signal_2"
