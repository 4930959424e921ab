import json
import re
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
from amaranth import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw import emit
from hw.common.memory import Ram
from synth.area import area_of_rtlil
from synth.blocks import partition
from synth.library.parser import LibraryError
from synth.library.reader import Library
from synth.netlist import Netlist
from synth.timing.analysis import MACRO_OUT_FO4, MACRO_ROW_FO4, Analysis
from synth.timing.static_timing import timing


class Ripple(wiring.Component):
    """A register, an adder, a register: the path from the lowest bit to the highest is the longest."""

    a: In(1)
    y: Out(1)

    def __init__(self, width):
        self.width = width
        super().__init__()

    def elaborate(self, platform):
        m = Module()
        one, two = Signal(self.width), Signal(self.width)
        m.d.sync += [one.eq(one + self.a), two.eq(one * 3)]
        m.d.comb += self.y.eq(two[-1])
        return m


class Lookup(wiring.Component):
    def __init__(self, depth):
        self.depth = depth
        super().__init__({"a": In(range(depth)), "y": Out(16)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.ram = ram = Ram(depth=self.depth, width=16, bypass=False)
        m.d.comb += [ram.r_addr.eq(self.a), ram.r_en.eq(1), self.y.eq(ram.r_data[0])]
        m.d.comb += [ram.w_addr.eq(self.a), ram.w_mask.eq(1), ram.w_data[0].eq(self.a * 1021)]
        return m


def measure(component, library, **options):
    design = area_of_rtlil(emit.to_rtlil(component, "dut"), "dut", library, **options)
    return design, timing(design, library)


@pytest.fixture(scope="module")
def ripple(predictive):
    return measure(Ripple(12), predictive)


def test_arrivals_add_up(ripple):
    _, result = ripple
    for path in result.paths:
        ends = [step.arrival_ps for step in path.cells]
        starts = [ends[0] - path.cells[0].delay_ps, *ends[:-1]]
        assert [s + step.delay_ps for s, step in zip(starts, path.cells, strict=True)] == pytest.approx(ends)
        assert path.delay_ps == pytest.approx(ends[-1] + path.setup_ps)
        assert all(step.delay_ps > 0 for step in path.cells)
    assert result.critical.delay_ps == max(path.delay_ps for path in result.paths)
    assert result.fmax_mhz == pytest.approx(1e6 / result.critical.delay_ps)
    later = replace(result, uncertainty_ps=100.0)
    assert later.fmax_mhz == pytest.approx(1e6 / (result.critical.delay_ps + 100))
    assert later.slow_mhz == pytest.approx(1e6 / (result.critical.delay_ps * 500 / 360 + 100))
    assert "clock uncertainty 100 ps" in later.table() and later.json()["clock_uncertainty_ps"] == 100


def test_path_is_a_chain_of_the_netlist(ripple, predictive):
    design, result = ripple
    module = design.mapped["dut"].module
    path = result.critical
    assert path.kind == "register to register"
    previous = None
    for step in path.cells:
        cell = module["cells"][step.instance]
        source, target = step.through.split(" ")[0], step.through.split(" ")[2]
        assert cell["type"] == step.cell
        if previous is not None:
            assert cell["connections"][source] == previous
        previous = cell["connections"][target]
    assert predictive.cell(path.cells[0].cell).state is not None


def test_one_gate_by_hand(predictive):
    """The delay from the flip-flop's table at the load of its net."""
    design, result = measure(Ripple(2), predictive)
    netlist = Netlist(design.mapped["dut"], predictive)
    step = result.critical.cells[0]
    names = {netlist.net_name(n): n for n in range(netlist.size)}
    edge = step.through.split()[-1]
    arc = predictive.cell(step.cell).pins["Q"].arcs[0]
    load = netlist.loads[names[step.net]]
    slew = arc.tables["rise_transition"](0.0, 4 * predictive.cell("INV_X1").pins["A"].capacitance)
    assert step.delay_ps == pytest.approx(float(arc.tables[f"cell_{edge}"](slew, load)))


def test_wider_ripples_are_slower(ripple, predictive):
    _, narrow = measure(Ripple(4), predictive)
    assert narrow.critical.delay_ps < ripple[1].critical.delay_ps


def test_balanced_point_is_faster_than_the_area_point(ripple, predictive):
    _, balanced = measure(Ripple(12), predictive, point="balanced")
    assert balanced.critical.delay_ps < ripple[1].critical.delay_ps


def test_memory_paths_start_at_the_estimate(predictive):
    """A memory of 16 times as many rows is slower by the delay of four address bits."""
    ends = []
    for depth in (64, 1024):
        _, result = measure(Lookup(depth), predictive)
        ends.append(next(path for path in result.paths if path.kind == "register to output"))
        assert ends[-1].start.endswith("RD_DATA")
    fast, slow = (end.delay_ps / result.fo4_ps for end in ends)
    assert 0 <= fast - (MACRO_OUT_FO4 + 6 * MACRO_ROW_FO4) < 1.5  # a buffer drives the output
    assert slow - fast == pytest.approx(4 * MACRO_ROW_FO4)


class Stage(wiring.Component):
    """An adder, a register, an adder: both ports have logic, one input has more."""

    a: In(12)
    b: In(12)
    y: Out(12)

    def elaborate(self, platform):
        m = Module()
        held = Signal(12)
        m.d.sync += held.eq(self.a * 5 + self.b)
        m.d.comb += self.y.eq(held + (held << 3))
        return m


class Stages(wiring.Component):
    """Three register stages with logic between them."""

    a: In(12)
    y: Out(12)

    def elaborate(self, platform):
        m = Module()
        value = self.a
        for k in range(3):
            m.submodules[f"stage{k}"] = stage = Stage()
            m.d.comb += [stage.a.eq(value ^ (value >> 5)), stage.b.eq(value)]
            value = stage.y
        m.d.comb += self.y.eq(value)
        return m


@pytest.fixture(scope="module")
def stages(predictive):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("synth.area.partition", partial(partition, flat_bytes=1, min_bytes=1))
        return measure(Stages(), predictive)


def test_paths_continue_in_blocks(stages):
    """A path leads from the register of one stage to that of the next and names every cell."""
    design, result = stages
    assert [block.count for block in design.blocks] == [3, 1]
    path = next(path for path in result.paths if path.kind == "register to register")
    assert path.start.startswith("stage") and path.end.startswith("stage") and path.start[:6] != path.end[:6]
    blocks = [step.instance.split(".")[0] for step in path.cells]
    first, last = path.start[:6], path.end[:6]
    outside = [block for block in blocks if block not in (first, last)]
    assert outside and blocks == [first] * blocks.count(first) + outside + [last] * blocks.count(last)
    ends = [step.arrival_ps for step in path.cells]
    assert all(a < b for a, b in pairwise(ends)) and path.cells[0].cell.startswith("DFF")
    assert path.delay_ps == pytest.approx(ends[-1] + path.setup_ps)


def test_needs_of_a_blocks_inputs(stages, predictive):
    """The slowest input has the largest required time; `a` requires more than `b`."""
    design, _ = stages
    netlist = Netlist(design.mapped[design.blocks[0].name], predictive)
    analysis = Analysis(netlist, {}, registers=False)
    needs = analysis.required_times()
    worst = max(end.delay for end in analysis.ends() if end.kind != "output")
    data = [need for name in "ab" for need in needs[name]]
    assert max(data) == pytest.approx(worst - analysis.port_delay)
    for name in "ab":
        for net, need in zip(netlist.inputs[name], needs[name], strict=True):
            alone = Analysis(netlist, {}, registers=False, inputs={net})
            slowest = max(end.delay for end in alone.ends() if end.kind != "output")
            assert 0.9 * need < slowest - alone.port_delay <= need * (1 + 1e-9)
    assert max(needs["a"]) > max(needs["b"])


class Half(wiring.Component):
    """Logic without registers: one half of the path in the lower bits, one in the upper bits."""

    a: In(12)
    y: Out(12)

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.y.eq(Cat((self.a[:6] * 5 + 3)[:6], (self.a[6:] * 5 + 1)[:6]))
        return m


class Halves(wiring.Component):
    """A register, two halves in series, a register; ports, not bits, can form a loop."""

    a: In(12)
    y: Out(12)

    def __init__(self, *, circle=False):
        self.circle = circle
        super().__init__()

    def elaborate(self, platform):
        m = Module()
        m.submodules.one, m.submodules.two = one, two = Half(), Half()
        before, after = Signal(12, name="before"), Signal(12, name="after")
        back = two.y[:6] if self.circle else before[6:]
        m.d.sync += [before.eq(self.a), after.eq(Cat(one.y[6:], two.y[:6]))]
        m.d.comb += [one.a.eq(Cat(before[:6], back)), two.a.eq(Cat(one.y[:6] ^ before[6:], before[6:]))]
        m.d.comb += self.y.eq(after)
        return m


def split(patch, component, library):
    patch.setattr("synth.area.partition", partial(partition, flat_bytes=1, min_bytes=1))
    return measure(component, library)


def test_paths_go_through_blocks_without_registers(predictive, monkeypatch):
    _, flat = measure(Halves(), predictive)
    _, result = split(monkeypatch, Halves(), predictive)
    path = result.critical
    blocks = list(dict.fromkeys(step.instance.split(".")[0] for step in path.cells if "." in step.instance))
    assert path.kind == "register to register" and blocks == ["one", "two"]
    assert path.start.startswith("register ") and path.end.startswith("register ")
    ends = [step.arrival_ps for step in path.cells]
    assert all(a < b for a, b in pairwise(ends))
    assert path.delay_ps == pytest.approx(ends[-1] + path.setup_ps)
    assert flat.critical.delay_ps < path.delay_ps < 1.7 * flat.critical.delay_ps


class Through(wiring.Component):
    """Two halves in series."""

    a: In(12)
    y: Out(12)

    def elaborate(self, platform):
        m = Module()
        m.submodules.one, m.submodules.two = one, two = Half(), Half()
        m.d.comb += [one.a.eq(self.a), two.a.eq(one.y ^ 5), self.y.eq(two.y)]
        return m


class Around(wiring.Component):
    """A register, a block with two halves, a register."""

    a: In(12)
    y: Out(12)

    def elaborate(self, platform):
        m = Module()
        m.submodules.through = through = Through()
        m.d.sync += [through.a.eq(self.a), self.y.eq(through.y)]
        return m


def test_paths_go_through_blocks_in_blocks(predictive, monkeypatch):
    _, flat = measure(Around(), predictive)
    design, result = split(monkeypatch, Around(), predictive)
    assert len(design.blocks) > 2
    assert result.critical.kind == "register to register"
    assert flat.critical.delay_ps < result.critical.delay_ps < 1.7 * flat.critical.delay_ps


class Inside(wiring.Component):
    """The slow path lies in a block; its output is only wired to a register."""

    a: In(1)
    y: Out(1)

    def elaborate(self, platform):
        m = Module()
        m.submodules.ripple = ripple = Ripple(12)
        m.d.comb += ripple.a.eq(self.a)
        m.d.sync += self.y.eq(ripple.y)
        return m


def test_worst_path_can_be_in_a_block(ripple, predictive, monkeypatch):
    _, result = split(monkeypatch, Inside(), predictive)
    assert result.critical.kind == "register to register"
    assert result.critical.delay_ps == pytest.approx(ripple[1].critical.delay_ps, rel=0.2)


def test_arcs_by_edge_and_arcs_without_delays_change_nothing(ripple, predictive):
    """Real libraries have such arcs; the inverter and the flip-flop keep theirs, because they model the environment."""
    start, end = (predictive.text.index(f"  cell ({name})") for name in ("NAND2_X1", "DFF_X1"))
    rise, fall = (rf"((?: +(?:cell_{edge}|{edge}_tr).*\n)+)" for edge in ("rise", "fall"))
    arcs = rf"(timing \(\) {{.*\n(?: +timing_.*\n)*){rise}{fall}( +}}\n)"
    text, count = re.subn(arcs, r"\1\2\4\1\3\4", predictive.text[start:end])
    assert count > 50
    text = predictive.text[:start] + text + predictive.text[end:]
    text = text.replace("max_capacitance", 'timing () { related_pin : "Z"; } max_capacitance')
    result = timing(ripple[0], Library([("some.lib", text)], "user"))
    assert [path.delay_ps for path in result.paths] == [path.delay_ps for path in ripple[1].paths]


def test_the_largest_capacitance_of_a_range_loads_the_nets(ripple, predictive):
    """Timing takes the worst edge and range of a pin, power takes its nominal capacitance."""
    ranges = r"\1 rise_capacitance : \2; fall_capacitance_range (0.1, 1\2);"
    text, count = re.subn(r"(direction : input; capacitance : ([\d.]+);)", ranges, predictive.text)
    assert count > 50
    library = Library([("some.lib", text)], "user")
    pins = [pin for cell in library.cells() for pin in cell.pins.values() if pin.direction == "input"]
    assert all(pin.largest_capacitance == float(f"1{pin.capacitance:.4f}") for pin in pins)
    netlist, wide = (Netlist(ripple[0].mapped["dut"], lib) for lib in (predictive, library))
    assert (wide.loads >= netlist.loads).all() and wide.loads.sum() > 2 * netlist.loads.sum()
    nominal = [one.capacitance(outputs=False, inner=()) for one in (netlist, wide)]
    assert (nominal[0] == nominal[1]).all()
    assert timing(ripple[0], library).critical.delay_ps > 1.5 * ripple[1].critical.delay_ps


class Nothing(wiring.Component):
    y: Out(1)

    def elaborate(self, platform):
        return Module()


def test_a_unit_without_paths(predictive):
    with pytest.raises(ValueError, match="unit dut must have a register, memory or port path, got none"):
        measure(Nothing(), predictive)


@pytest.mark.parametrize("uncertainty", [-1.0, float("inf"), float("nan")])
def test_rejects_clock_uncertainty(uncertainty, ripple, predictive):
    with pytest.raises(ValueError, match="clock uncertainty must be at least 0 ps, got"):
        timing(ripple[0], predictive, uncertainty_ps=uncertainty)


def test_loop_of_ports_is_cut(predictive, monkeypatch):
    """The longest possible path passes both halves and then the first half again."""
    _, straight = split(monkeypatch, Halves(), predictive)
    _, result = split(monkeypatch, Halves(circle=True), predictive)
    assert straight.critical.delay_ps < result.critical.delay_ps < 2 * straight.critical.delay_ps


def test_cell_without_delays_raises(ripple, predictive):
    """Without the error, the report would omit the paths of this cell."""
    design, _ = ripple
    used = next(name for name in design.cell_types if name.startswith("XNOR"))
    start = predictive.text.index(f"  cell ({used})")
    end = predictive.text.index("\n  }\n", start)
    cell = predictive.text[start:end].replace("timing ()", "nothing ()")
    library = Library([("some.lib", predictive.text[:start] + cell + predictive.text[end:])], "user")
    with pytest.raises(LibraryError, match=f"cell {used} has no delay tables"):
        timing(design, library)


def test_report(ripple):
    report = json.loads(json.dumps(ripple[1].json()))
    assert report["paths"][0]["delay_ps"] == pytest.approx(1e6 / report["fmax_mhz"], rel=1e-3)
    assert "fmax" in ripple[1].table() and report["paths"][0]["end"] in ripple[1].table()
