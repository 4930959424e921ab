"""The whole flow: errors before the tools start, and the layout of a small module where the tools are installed."""

import json
import shutil

import pytest

from hw import emit
from hw.config import Config
from hw.yosys import ToolError
from synth.blocks import partition
from synth.layout import flow, opensta, placement, report, routing, tools
from synth.library.reader import Library, choose
from tests.synth.shared_ports import SharedPorts

TINY = Config.preset("tiny")
installed = pytest.mark.skipif(bool(tools.missing()), reason="layout tools are not installed")


def test_missing_tools(monkeypatch, tmp_path):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(tools, "QROUTER", tmp_path / "qrouter")
    with pytest.raises(ToolError, match=r"layout needs graywolf, qrouter.* \(Debian: apt install graywolf "):
        flow.layout("hcu", TINY)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"utilisation": 1.2}, r"utilisation must be in \[0\.3, 0\.95\], got 1\.2"),
        ({"seconds": 0}, r"timeout must be finite and at least 1, got 0\.0"),
        ({"module": "hcu.nothing"}, r"module must be one of \d+ of hcu such as hcu.*, got 'hcu\.nothing'"),
    ],
)
def test_invalid_options(monkeypatch, options, message):
    monkeypatch.setattr(tools, "require", lambda: None)
    with pytest.raises(ValueError, match=message):
        flow.layout("hcu", TINY, **options)


def test_a_unit_that_is_too_large(monkeypatch):
    monkeypatch.setattr(tools, "require", lambda: None)
    with pytest.raises(ValueError, match="layout of operand_memory must have at most 40000 cells, got 27648 bits of"):
        flow.layout("operand_memory", TINY)
    with pytest.raises(ValueError, match="layout of vpe must have at most 40000 cells, got a design of several blocks"):
        flow.layout("vpe", TINY)


def test_a_unit_of_several_blocks_is_mapped_as_one(monkeypatch):
    """Four equal rows of a dpe are blocks of their own in an area report; a layout has one block of all cells."""
    texts = []

    def stop(text, name, *arguments, flat_bytes, **options):
        assert len(partition(text, name)) == 2
        texts.extend(partition(text, name, flat_bytes=flat_bytes))
        raise ToolError("stop")

    monkeypatch.setattr(tools, "require", lambda: None)
    monkeypatch.setattr(flow, "area_of_rtlil", stop)
    with pytest.raises(ToolError, match="stop"):
        flow.layout("dpe", TINY)
    assert [block.name for block in texts] == ["dpe"] and not texts[0].children


def test_a_program_that_fails(tmp_path):
    with pytest.raises(ToolError, match="sh failed with status 3: no space left"):
        command = ["sh", "-c", "echo begin; echo no space left; echo -----; exit 3"]
        tools.run(command, tmp_path, tmp_path / "x.log", seconds=10)
    with pytest.raises(ToolError, match="sleep must end within 0 s, got no result"):
        tools.run(["sleep", "30"], tmp_path, tmp_path / "x.log", seconds=0)


@pytest.mark.heavy
@installed
def test_a_routed_module(tmp_path, monkeypatch):
    """Open nets and shorts are 0, OpenSTA agrees, and a second run takes placement and wires from the cache."""
    monkeypatch.setenv("VREX_BUILD", str(tmp_path))
    result = flow.layout("wtu", TINY, module="wtu.reporter.list")
    values = result.json()
    assert result.connectivity.clean and values["open_nets"] == values["shorts"] == values["obstructed"] == 0
    assert values["cells"] == len(result.placement.cells) - len(result.placement.fillers) > 50
    assert values["layout_mw"] > 0 and values["wire_pf"] > 0
    assert {network.net for network in result.extraction.networks.values()} == set(result.design.nets)
    if opensta.available():
        assert values["opensta_ps"] == pytest.approx(values["layout_ps"], rel=0.03)

    def refuse(*arguments, **options):
        raise AssertionError("the cache must have the result")

    monkeypatch.setattr(placement, "place", refuse)
    monkeypatch.setattr(routing, "route", refuse)
    assert flow.layout("wtu", TINY, module="wtu.reporter.list").routed == result.routed
    page = report.write(tmp_path / "out", result, "vrex layout wtu")
    assert {"unit.def", "unit.gds", "unit.png", "unit.spef", "unit.v", "layout.json"} <= {
        path.name for path in page.parent.iterdir()
    }
    assert json.loads((page.parent / "layout.json").read_text())["unit"] == "wtu.reporter.list"


@installed
@pytest.mark.parametrize("utilisation", [0.8, 0.5])
def test_ports_on_one_net_are_routed(tmp_path, monkeypatch, utilisation):
    monkeypatch.setenv("VREX_BUILD", str(tmp_path))
    monkeypatch.setattr(flow, "rtlil", lambda unit, config: emit.to_rtlil(SharedPorts(12), unit))
    result = flow.layout("hcu", TINY, utilisation=utilisation)
    values = result.json()
    assert (
        result.connectivity.clean and values["too_close"] == 0 and values["ports"] == 2 + 12 + 12 + 1 + 2
    )  # the constant has no net
    assert len({port.net for port in result.design.ports}) == len(result.design.ports)
    assert {port.net for port in result.design.ports} - {"rst"} <= set(result.design.nets)
    assert values["wire_pf"] > 0 and values["layout_mw"] > 0


@installed
def test_wire_load_of_osu018():
    library = choose(["osu018"])
    assert isinstance(library, Library) and library.wire_farads == pytest.approx(2.4e-15)
    small, large = (library.wire_farads_of(area) for area in (5e3, 5e5))
    assert small == pytest.approx(2.4e-15 * 0.05**0.105, rel=0.04)
    assert large == pytest.approx(2.4e-15 * 5**0.105, rel=0.04)
