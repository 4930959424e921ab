"""Netlists by hand: errors for cells and clocks that are not allowed."""

from types import SimpleNamespace

import pytest

from synth.library.reader import Library
from synth.netlist import Netlist

PORTS = {"clk": [2], "a": [3], "b": [4]}


def netlist(library, cells, y=5):
    """A block of `cells`, (type, pin -> net or constant) each, whose port `y` is net 5."""
    module = {
        "ports": {
            **{name: {"direction": "input", "bits": bits} for name, bits in PORTS.items()},
            "y": {"direction": "output", "bits": [y]},
        },
        "cells": {
            f"cell{k}": {"type": kind, "connections": {pin: [bit] for pin, bit in pins.items()}}
            for k, (kind, pins) in enumerate(cells)
        },
        "netnames": {},
    }
    return Netlist(SimpleNamespace(name="dut", module=module, macros=(), children={}, parasitics=None), library)


def changed(library, name, old, new):
    """Return the library with one text in one cell replaced."""
    start = library.text.index(f"  cell ({name})")
    end = library.text.index("\n  }\n", start)
    assert old in library.text[start:end]
    return Library(
        [("some.lib", library.text[:start] + library.text[start:end].replace(old, new) + library.text[end:])], "user"
    )


def test_a_loop(predictive):
    ring = [("INV_X1", {"A": 5, "Y": 6}), ("INV_X1", {"A": 6, "Y": 5})]
    with pytest.raises(ValueError, match="netlist dut: logic must be acyclic, got a combinational loop"):
        netlist(predictive, ring)


def test_pins_without_a_net(predictive):
    """An unconnected output has a net; an undriven input is 0."""
    result = netlist(predictive, [("NAND2_X1", {"A": 3}), ("DFF_X1", {"CK": 2, "Q": 5})])
    (gate,), (flop,) = result.logic, result.registers
    assert set(gate.pins) == {"A", "Y"} and result.net_name(gate.pins["Y"][0]).startswith("net ")
    assert result.flip_flop(flop).data == ("D",) and result.size == 7
    assert result.loads[gate.pins["A"][0]] > result.loads[gate.pins["Y"][0]] == 0


FLOP = ("DFF_X1", {"CK": 2, "D": 3, "Q": 5})


@pytest.mark.parametrize(
    ("cell", "old", "new", "reason"),
    [
        (("LATCH_X1", {"G": 3, "D": 4, "Q": 5}), "", "", "cell LATCH_X1 must be a flip-flop, got a latch"),
        (FLOP, 'clocked_on : "CK"', 'clocked_on : "!CK"', "cell DFF_X1: clocked_on must be a pin, got '!CK'"),
        (FLOP, 'function : "IQ"', 'function : "1"', "output Q must be its state or the inverse, got '1'"),
        (
            ("DFF_X1", {"CK": 3, "D": 3, "Q": 5}),
            "",
            "",
            "clock must be the port 'clk' or a gated clock, got another net",
        ),
        (("DFFR_X1", {"CK": 2, "D": 3, "RN": 4, "Q": 5}), "", "", "must be inactive, got an asynchronous clear in use"),
        (
            ("DFFR_X1", {"CK": 2, "D": 3, "RN": "0", "Q": 5}),
            "",
            "",
            "must be inactive, got an asynchronous clear in use",
        ),
        (
            ("DFFS_X1", {"CK": 2, "D": 3, "SN": 4, "Q": 5}),
            "",
            "",
            "must be inactive, got an asynchronous preset in use",
        ),
    ],
)
def test_registers_that_do_not_follow_the_clock(cell, old, new, reason, predictive):
    library = changed(predictive, cell[0], old, new) if old else predictive
    result = netlist(library, [cell])
    with pytest.raises(ValueError, match=f"netlist dut: cell {cell[0]}.*{reason}|{reason}"):
        result.flip_flop(result.registers[0])


def test_a_reset_that_is_never_used_does_no_harm(predictive):
    result = netlist(predictive, [("DFFR_X1", {"CK": 2, "D": 3, "RN": "1", "Q": 5})])
    assert result.flip_flop(result.registers[0]).outputs == {"Q": False}
