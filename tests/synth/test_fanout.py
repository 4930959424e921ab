"""Buffer trees: loads are bounded, the function does not change, and wide enables become fast."""

import re

import numpy as np
import pytest
from amaranth import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw import emit
from synth import fanout
from synth.area import area_of_rtlil
from synth.equivalence import prove
from synth.fanout import LIMIT, PORT_INVERTERS, Buffers, Load, size
from synth.gates import sources
from synth.library.reader import Library
from synth.netlist import CLOCK, Netlist
from synth.timing.static_timing import timing
from tests.synth.shared_ports import SharedPorts

WIDTH = 300


class Wide(wiring.Component):
    """One gate enables all flip-flops."""

    d: In(WIDTH)
    a: In(2)
    q: Out(WIDTH)

    def elaborate(self, platform):
        m = Module()
        held = Signal(WIDTH, reset_less=True)
        with m.If(self.a[0] ^ self.a[1]):
            m.d.sync += held.eq(self.d)
        m.d.comb += self.q.eq(held)
        return m


def mapped(library):
    return area_of_rtlil(emit.to_rtlil(Wide(), "wide"), "wide", library, point="balanced", gated=0)


@pytest.fixture(scope="module")
def wide(predictive):
    return mapped(predictive)


@pytest.fixture
def plain(predictive, tmp_path, monkeypatch):
    """The same netlist without buffer trees."""
    monkeypatch.setenv("VREX_BUILD", str(tmp_path))
    monkeypatch.setattr(fanout, "buffer", lambda *args, **options: 0)
    return mapped(predictive)


def most(area, library):
    """The largest load of any net except the clock, in inverters with their wires."""
    netlist = Netlist(area.mapped["wide"], library)
    loads = np.delete(netlist.loads, netlist.inputs[CLOCK])
    return loads.max() / Buffers(library).inverter


def test_no_net_drives_more_than_the_limit(wide, plain, predictive):
    assert most(wide, predictive) <= LIMIT < most(plain, predictive)


def test_only_buffers_are_added(wide, plain, predictive):
    names = {cell.name for cell in predictive.buffers}
    counts = [{k: n for k, n in area.cell_types.items() if k not in names} for area in (wide, plain)]
    assert counts[0] == counts[1]
    added = sum(wide.cell_types.get(name, 0) for name in names)
    assert wide.cells == plain.cells + added and 300 / 16 < added < 300 / 8
    assert wide.area_um2 > plain.area_um2
    assert prove(wide, predictive).blocks[0].outputs == 2 * WIDTH  # register inputs and output ports
    assert "".join(sources(wide, predictive).values()).count("fan") > added


def test_the_path_through_the_enable_is_short(wide, plain, predictive):
    paths = [timing(area, predictive) for area in (wide, plain)]
    assert paths[0].critical.delay_ps < paths[1].critical.delay_ps / 4
    assert any(cell.instance.startswith("fan") for cell in paths[0].critical.cells)


def test_a_library_without_buffers_stays_as_it_is(wide, predictive):
    text, count = re.subn(r"  cell \(BUF_.*?\n  }\n", "", predictive.text, flags=re.S)
    bare = Library([("bare.lib", text)], "user")
    assert count == len(predictive.buffers)
    assert bare.buffers == ()
    assert fanout.buffer(wide.mapped["wide"].module, bare, blocks=(), inner=False) == 0


def block(pins, *, port=True):
    """A netlist in which one net, a port or a gate's output, leads to `pins` registers, a gate and a block."""
    gate = {"A": "input", "Y": "output"}
    register = {"CK": "input", "D": "input", "Q": "output"}
    cells = {
        f"r{k}": {"type": "DFF_X1", "port_directions": register, "connections": {"CK": [2], "D": [3], "Q": [10 + k]}}
        for k in range(pins)
    }
    cells["g"] = {"type": "INV_X1", "port_directions": gate, "connections": {"A": [3], "Y": [4]}}
    cells["inside"] = {"type": "row", "port_directions": {"x": "input"}, "connections": {"x": [3, "0", 3]}}
    ports = {CLOCK: {"direction": "input", "bits": [2]}}
    if port:
        ports["a"] = {"direction": "input", "bits": [3]}
    else:
        cells["d"] = {"type": "INV_X1", "port_directions": gate, "connections": {"A": ["0"], "Y": [3]}}
    return {"ports": ports, "cells": cells, "netnames": {"fan": {"bits": [3]}}}


def driven_by(module, net):
    """Pins that a net drives: (cell, pin)."""
    return {
        (name, pin)
        for name, cell in module["cells"].items()
        for pin, bits in cell["connections"].items()
        if net in bits and cell["port_directions"][pin] == "input"
    }


def test_limit_is_lower_without_library_driver(predictive):
    """A port of an inner block drives at most the load of an input pin; gates and ports of a unit drive more."""
    for inner, port, trees in ((True, True, True), (False, True, False), (True, False, False)):
        module = block(4, port=port)
        assert bool(fanout.buffer(module, predictive, blocks={"row"}, inner=inner)) == trees


def test_gates_stay_at_the_root_and_pins_of_blocks_move_as_a_whole(predictive):
    module = block(60, port=False)
    buffer_count = fanout.buffer(module, predictive, blocks={"row"}, inner=False)
    assert ("g", "A") in driven_by(module, 3) and not any(name.startswith("r") for name, _ in driven_by(module, 3))
    first, zero, second = module["cells"]["inside"]["connections"]["x"]
    assert first == second != 3 and zero == "0"
    new = [name for name in module["cells"] if name.startswith("fan_")]
    assert len(new) == buffer_count and len(driven_by(module, 2)) == 60
    buffers = Buffers(predictive)
    for name in new:
        cell = module["cells"][name]
        pins = driven_by(module, cell["connections"]["Y"][0])
        load = sum(
            buffers.pin(predictive.cell(module["cells"][c]["type"]), p) if c != "inside" else 4 * buffers.inverter
            for c, p in pins
        )
        assert 0 < load <= buffers.goal[0] * 1.1
    roots = [buffers.pin(predictive.cell(module["cells"][n]["type"])) for n, _ in driven_by(module, 3) if n != "g"]
    assert sum(roots) <= PORT_INVERTERS * buffers.inverter


def test_smaller_groups_take_smaller_buffers(predictive):
    buffers = Buffers(predictive)
    most, _ = buffers.goal
    chosen = [buffers.choose(share * most) for share in (0.05, 0.3, 1.0)]
    areas = [cell.area for cell in chosen]
    assert areas == sorted(areas) and areas[0] < areas[-1] == max(cell.area for cell in predictive.buffers)
    loads = [Load(f"c{k}", "A", 1.0 + k % 3, False) for k in range(100)]
    groups = list(buffers.groups(loads))
    assert [load for group in groups for load in group] == loads
    assert max(map(size, groups)) <= min(map(size, groups)) + 2 * 3.0


def test_isolated_ports(predictive):
    """No net has two ports, the netlist is proved, and its paths go through the buffers."""
    text = emit.to_rtlil(SharedPorts(2), "shared")
    plain, design = (
        area_of_rtlil(text, "shared", predictive, point="balanced", isolated=isolated) for isolated in (False, True)
    )
    for each, expected in ((plain, 4), (design, 0)):
        ports = each.mapped["shared"].module["ports"].values()
        bits = [bit for port in ports for bit in port["bits"] if isinstance(bit, int)]
        assert len(bits) - len(set(bits)) == expected
    assert design.cells == plain.cells + 4 and design.area_um2 > plain.area_um2
    assert design.mapped["shared"].module["ports"]["second"]["bits"][1] == "1"
    assert prove(design, predictive).blocks[0].outputs == prove(plain, predictive).blocks[0].outputs
    assert "fan0" in (design.mapped["shared"].folder / "netlist.v").read_text()


def test_isolated_ports_need_a_buffer(predictive):
    text = re.sub(r"  cell \(BUF_.*?\n  }\n", "", predictive.text, flags=re.S)
    library = Library([("plain.lib", text)], "user")
    assert not library.buffers
    with pytest.raises(ValueError, match=r"library .* must have a buffer for two ports on one net, got none"):
        area_of_rtlil(emit.to_rtlil(SharedPorts(2), "shared"), "shared", library, isolated=True)
