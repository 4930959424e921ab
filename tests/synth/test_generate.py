import hashlib
import json
import re

import pytest

from hw import emit, registry
from hw.config import Config
from synth.generate import generate, memories


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
