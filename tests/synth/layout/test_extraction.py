"""Resistance, capacitance and delay of the wires of two inverters, computed by hand."""

import re
from types import SimpleNamespace

import pytest

from synth.layout import wires
from synth.layout.connectivity import check
from synth.layout.extraction import Network, extract, port_farads
from synth.netlist import Netlist

METAL1_FF, METAL2_FF = 0.04 * 0.3 + 2 * 0.08, 0.02 * 0.3 + 2 * 0.06  # per um


@pytest.fixture(scope="module")
def extraction(pair, predictive):
    done = check(pair.design, pair.lef, pair.placement, wires.read(pair.routed(pair.text), pair.lef))
    return extract(pair.design, pair.lef, predictive, done)


def test_capacitance_and_resistance(extraction):
    network = extraction.networks["n"]
    assert network.farads == pytest.approx(3.2 * METAL1_FF * 1e-15) and network.length == 3200
    assert network.ohms == pytest.approx(0.08 * 3200 / 300)
    assert network.driver == ("u0", "Y") and network.sinks == (("u1", "A"),)
    assert extraction.networks["a"].farads == pytest.approx(9 * METAL2_FF * 1e-15)
    assert extraction.farads == pytest.approx((3.2 * METAL1_FF + 18 * METAL2_FF) * 1e-15)


def test_delay(pair, predictive, extraction):
    parasitics = extraction.parasitics(pair.design, predictive)
    pin = predictive.cell("INV_X1").pins["A"].largest_capacitance * predictive.farads
    # The wire meets each pin 25 nm from its end, so that 3150 nm lie between the pins, and 25 nm behind the second.
    ohms = 0.08 * 3150 / 300
    expected = ohms * (pin + (3.15 / 2 + 0.025) * METAL1_FF * 1e-15)
    assert parasitics.cells["second", "A"] == pytest.approx(expected)
    assert parasitics.farads == pytest.approx({2: 9 * METAL2_FF * 1e-15, 4: 3.2 * METAL1_FF * 1e-15,
                                               3: 9 * METAL2_FF * 1e-15})  # fmt: skip
    assert parasitics.outputs["y", 0] == pytest.approx(0.06 * 30 * (port_farads(predictive) + 4.5 * METAL2_FF * 1e-15))


def test_elmore_delay_of_a_tree():
    """A driver, a branch to each of two sinks: each sees its own branch and, at the shared part, everything."""
    driver, left, right = ("d", "Y"), ("l", "A"), ("r", "A")
    network = Network(
        "t", driver, (left, right), 0, {0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0}, {driver: 0, left: 2, right: 3},
        ((0, 1, 10.0), (1, 2, 20.0), (3, 1, 30.0)),
    )  # fmt: skip
    delays = network.elmore(lambda terminal: {"l": 5.0, "r": 6.0}[terminal[0]])
    assert delays == {left: 10 * 20 + 20 * 8, right: 10 * 20 + 30 * 10}


def test_an_open_net_has_no_parasitics(pair, predictive):
    text = pair.text.replace("( 8400 * )", "( 8000 * )")
    done = check(pair.design, pair.lef, pair.placement, wires.read(pair.routed(text), pair.lef))
    with pytest.raises(ValueError, match="layout must have no open net, got n"):
        extract(pair.design, pair.lef, predictive, done)


def test_spef(pair, extraction):
    text = extraction.spef(pair.design)
    total = {name: float(value) for name, value in re.findall(r"^\*D_NET (\S+) (\S+)$", text, re.M)}
    assert total == pytest.approx({"a": 9 * METAL2_FF, "n": 3.2 * METAL1_FF, "y": 9 * METAL2_FF}, abs=1e-5)
    net = text[text.index("*D_NET n") :]
    net = net[: net.index("*END")]
    assert "*I u0:Y O\n*I u1:A I\n" in net
    caps = [float(value) for value in re.findall(r"^\d+ \S+ ([\d.]+)$", net, re.M)]
    assert sum(caps) == pytest.approx(3.2 * METAL1_FF, abs=1e-4)
    ohms = [float(value) for value in re.findall(r"^\d+ \S+ \S+ ([\d.]+)$", net, re.M)]
    assert sum(ohms) == pytest.approx(0.08 * 3200 / 300, abs=1e-4)
    assert "*P a I" in text and "*P y O" in text


def test_timing_and_power_use_the_wires(pair, predictive, extraction):
    """A netlist with parasitics has their capacitance instead of the wire load, and their delays."""
    cells = {
        name: {"type": "INV_X1", "connections": {"A": [source], "Y": [target]}}
        for name, source, target in (("first", 2, 4), ("second", 4, 3))
    }
    ports = {"a": {"direction": "input", "bits": [2]}, "y": {"direction": "output", "bits": [3]}}
    module = {"ports": ports, "cells": cells, "netnames": {}}
    parasitics = extraction.parasitics(pair.design, predictive)
    plain, real = (
        Netlist(SimpleNamespace(name="pair", module=module, macros=(), children={}, parasitics=each), predictive)
        for each in (None, parasitics)
    )
    difference = (real.loads - plain.loads) * predictive.farads
    net = int(real.logic[0].pins["Y"][0])
    assert difference[net] == pytest.approx(3.2 * METAL1_FF * 1e-15 - predictive.wire_farads)
    assert difference[real.outputs["y"][0]] == pytest.approx(9 * METAL2_FF * 1e-15)
    seconds = real.wire_delay(real.logic[1], "A")[0] * predictive.seconds
    assert seconds == pytest.approx(parasitics.cells["second", "A"])
    assert plain.wire_delay(plain.logic[1], "A")[0] == 0 == plain.output_delay("y", 0)
