import hashlib
import json
import re
import shutil
import subprocess

import pytest
from amaranth import Module
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw import emit, registry, yosys
from hw.arith.adders import Addend, add_all
from hw.config import Config
from sim.bench.build import use_verilator
from synth.area import area_of_rtlil
from synth.generate import generate, memories
from synth.verilog import verilog


@pytest.fixture(scope="module")
def hcu(tmp_path_factory):
    return generate("hcu", Config.preset("tiny"), tmp_path_factory.mktemp("hcu"))


def test_files_belong_together(hcu):
    assert sorted(path.name for path in hcu.folder.iterdir()) == sorted(hcu.files)
    description = json.loads((hcu.folder / "hcu.json").read_text())
    assert description == json.loads(json.dumps(hcu.json()))
    verilog = (hcu.folder / "hcu.v").read_bytes()
    assert description["verilog"]["sha256"] == hashlib.sha256(verilog).hexdigest()
    assert description["config"] == Config.preset("tiny").asdict()
    assert (hcu.folder / "hcu.f").read_text().split() == ["hcu.v"]


def test_ports_are_those_of_the_component(hcu):
    component = registry.unit("hcu").build(Config.preset("tiny"))
    emit.to_rtlil(component, "hcu")
    ports = {port["name"]: port for port in hcu.json()["ports"]}
    assert {"clk", "rst"} < set(ports)
    for path, member, _ in component.signature.flatten(component):
        port = ports.pop("__".join(path))
        width = member.shape if isinstance(member.shape, int) else None
        assert port["direction"] == {"In": "input", "Out": "output"}[member.flow.name]
        assert width is None or port["width"] == width
        if "fields" in port:
            assert sum(field["width"] for field in port["fields"]) == port["width"]
    assert set(ports) == {"clk", "rst"}


def test_verilog_for_other_flows(hcu):
    """Docstring at the head, lines of the source without folders of the machine, memories that a loop sets to zero."""
    text = (hcu.folder / "hcu.v").read_text()
    assert text.startswith(f"// {registry.unit('hcu').build(Config.preset('tiny')).__doc__.splitlines()[0]}\n//\n")
    sources = re.findall(r'src = "([^"]*)"', text)
    assert any(source.startswith("hw/dre/hcu.py:") for source in sources) and not any(s[0] == "/" for s in sources)
    assert not re.search(r"\[1\] = \d+'h0+;", text)
    loops = re.findall(r"row < (\d+); row = row \+ 1\) \S+?\[row\] = (\d+)'h0+;", text)
    assert sorted((int(depth), int(width)) for depth, width in loops) == sorted(
        (memory["depth"], memory["width"]) for memory in hcu.json()["memories"]
    )


@pytest.mark.parametrize("name", ["hcu", "dot_tree", pytest.param("dpe", marks=pytest.mark.heavy)])
def test_lint_of_the_files(name, tmp_path):
    """With the waivers of the FuseSoC core file, which are those of `tests/hw/test_lint.py`."""
    use_verilator()
    generate(name, Config.preset("tiny"), tmp_path)
    waivers = [f"-Wno-{kind}" for kind in emit.LINT_WAIVERS]
    command = [shutil.which("verilator"), "--lint-only", "-Wall", *waivers, "--top-module", name, f"{name}.v"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr


class Sum(wiring.Component):
    """Sum of five numbers."""

    a: In(data.ArrayLayout(4, 5))
    y: Out(7)

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.y.eq(add_all(m, [Addend(self.a[k]) for k in range(5)], 7))
        return m


def test_adders_are_modules(predictive, tmp_path):
    """As many as the project's own path maps to adder cells; the Verilog has the function of the RTL."""
    text = verilog(Sum(), "sum")
    cells = area_of_rtlil(emit.to_rtlil(Sum(), "sum"), "sum", predictive).cell_types
    for module, cell in (("vrex_full_adder", "FA_X1"), ("vrex_half_adder", "HA_X1")):
        assert text.count(f"  {module} ") == cells.get(cell, 0) and f"module {module}(" in text
    (tmp_path / "sum.v").write_text(text)
    (tmp_path / "rtl.il").write_text(emit.to_rtlil(Sum(), "rtl"))
    commands = [f"read_verilog {tmp_path}/sum.v", f"read_rtlil {tmp_path}/rtl.il", "proc", "techmap t:$fa"]
    log = yosys.run([*commands, "miter -equiv -flatten sum rtl miter", "sat -verify -prove trigger 0 miter"])
    assert "SUCCESS" in log


def test_constraints_name_every_port_once(hcu):
    text = (hcu.folder / "hcu.sdc").read_text()
    named = re.findall(r"get_ports \{?([^\]}]*)", text)
    assert sorted(" ".join(named).split()) == sorted(port["name"] for port in hcu.json()["ports"])
    assert "-period 1.2500" in text


def test_timing_is_the_components_own(hcu):
    config = Config.preset("tiny")
    assert hcu.json()["timing"]["slices"] == -(-config.hash_bits // config.hcu_lanes)


def test_memories():
    config = Config.preset("tiny")
    by_name = {m["name"]: m for m in memories(emit.to_rtlil(registry.unit("hcu").build(config), "hcu"))}
    assert by_name["hcu.hashes.array"]["bits"] == config.max_candidates * config.hash_bits


@pytest.mark.parametrize("clock", [0, -1, float("nan"), 1e9])
def test_rejects_bad_clock(tmp_path, clock):
    with pytest.raises(ValueError, match="clock_mhz"):
        generate("hcu", Config.preset("tiny"), tmp_path / "out", clock_mhz=clock)
    assert not (tmp_path / "out").exists()


def test_rejects_unknown_unit_and_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match=r"unit must be one of .*, got 'hcux'"):
        generate("hcux", Config.preset("tiny"), tmp_path / "out")
    assert not (tmp_path / "out").exists()
