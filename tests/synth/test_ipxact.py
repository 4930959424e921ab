"""Register maps as SystemRDL and IP-XACT: offsets, widths, accesses and fields as in the `RegisterMap`."""

import xml.etree.ElementTree as ET

import pytest
from systemrdl import RDLCompileError, RDLCompiler
from systemrdl.node import FieldNode, RegNode
from systemrdl.rdltypes import AccessType, OnWriteType

from hw.axi.registers import Access, Register, RegisterMap
from hw.config import Config
from hw.core.core import Core
from hw.core.multicore import MultiCore
from synth import ipxact
from synth.generate import generate

SAMPLE = RegisterMap(
    "sample",
    (
        Register("plain", 32, Access.RW, 'a "word" with \\', reset=0x1234),
        Register("wide", 48, Access.RW, "two words", reset=0xABCD_0000_0001),
        Register("status", 12, Access.RO, "from hardware"),
        Register("start", 2, Access.PULSE, "acts once"),
        Register("causes", 9, Access.CLEAR, "sticky", bits=(("low", 0, 4, "four"), ("field", 4, 5, "five"))),
    ),
)
SOFTWARE = {
    Access.RW: (AccessType.rw, None),
    Access.RO: (AccessType.r, None),
    Access.PULSE: (AccessType.w, None),
    Access.CLEAR: (AccessType.rw, OnWriteType.woclr),
}
HARDWARE = {
    Access.RW: AccessType.r,
    Access.RO: AccessType.w,
    Access.PULSE: AccessType.r,
    Access.CLEAR: AccessType.rw,
}
KEYS = ("bitOffset", "bitWidth")
SPACE = {"": "http://www.accellera.org/XMLSchema/IPXACT/1685-2014"}


def compiled(text, folder):
    (folder / "map.rdl").write_text(text)
    compiler = RDLCompiler()
    compiler.compile_file(str(folder / "map.rdl"))
    return compiler.elaborate().top


def core_map():
    return Core.from_config(Config.preset("tiny")).map


def check(map, top):
    """Every register and field of a compiled address map against the `RegisterMap`."""
    nodes = [node for node in top.children() if isinstance(node, RegNode)]
    assert [node.inst_name for node in nodes] == [register.name for register in map.registers]
    for register, node in zip(map.registers, nodes, strict=True):
        assert node.address_offset == map.offsets[register.name], register.name
        assert node.get_property("regwidth") == 32 * register.words and node.get_property("accesswidth") == 32
        assert node.get_property("desc") == register.text
        fields = [field for field in node.children() if isinstance(field, FieldNode)]
        expected = register.bits or (("value", 0, register.width, register.text),)
        assert [(field.inst_name, field.low, field.width, field.get_property("desc")) for field in fields] == [
            *expected
        ]
        for field in fields:
            assert (field.get_property("sw"), field.get_property("onwrite")) == SOFTWARE[register.access]
            assert field.get_property("hw") is HARDWARE[register.access]
            reset = None if register.access is Access.RO else register.reset >> field.low & (1 << field.width) - 1
            assert field.get_property("reset") == reset
            assert field.get_property("singlepulse") == (register.access is Access.PULSE and field.width == 1)


@pytest.mark.parametrize("map", [SAMPLE, core_map()], ids=["sample", "core"])
def test_systemrdl_equals_the_register_map(map, tmp_path):
    top = compiled(map.to_systemrdl(), tmp_path)
    assert top.inst_name == map.name
    check(map, top)


@pytest.mark.parametrize("map", [SAMPLE, core_map()], ids=["sample", "core"])
def test_ipxact_lists_every_register_and_field(map):
    component = ET.fromstring(ipxact.ipxact(map.to_systemrdl(), "1.2"))
    assert [component.findtext(name, None, SPACE) for name in ("vendor", "name", "version")] == [
        "vrex",
        map.name,
        "1.2",
    ]
    registers = {
        register.findtext("name", None, SPACE): (
            int(register.findtext("addressOffset", None, SPACE).removeprefix("'h"), 16),
            [
                (field.findtext("name", None, SPACE), *(int(field.findtext(key, None, SPACE)) for key in KEYS))
                for field in register.findall("field", SPACE)
            ],
        )
        for register in component.iter(f"{{{SPACE['']}}}register")
    }
    assert registers == {
        register.name: (
            map.offsets[register.name],
            [field[:3] for field in register.bits] or [("value", 0, register.width)],
        )
        for register in map.registers
    }


def test_multicore_is_an_array_of_core_maps(tmp_path):
    multicore = MultiCore.from_config(Config.preset("tiny").replace(cores=2))
    top = compiled(multicore.documents["multicore.rdl"], tmp_path)
    (array,) = top.children()
    assert (top.inst_name, array.inst_name, array.array_dimensions) == ("multicore", "core", [2])
    assert array.array_stride == multicore.stride
    check(multicore.core.map, array)
    assert "core" in ipxact.ipxact(multicore.documents["multicore.rdl"], "1")


def test_generate_writes_systemrdl_and_ipxact(tmp_path, monkeypatch):
    map = core_map()
    generated = generate("core", Config.preset("tiny"), tmp_path / "all")
    assert {"core.rdl", "core.ipxact.xml"} < set(generated.files)
    check(map, compiled((tmp_path / "all" / "core.rdl").read_text(), tmp_path))
    ET.parse(tmp_path / "all" / "core.ipxact.xml")
    verilog = (tmp_path / "all" / "core.v").read_text()  # the conversion takes 10 s
    monkeypatch.setattr("synth.generate.unit_verilog", lambda component, name, tool: verilog)
    monkeypatch.setattr(ipxact, "PACKAGE", "no_such_package")
    generated = generate("core", Config.preset("tiny"), tmp_path / "plain")
    assert "core.rdl" in generated.files and "core.ipxact.xml" not in generated.files


def test_invalid_systemrdl_raises():
    with pytest.raises(RDLCompileError):
        ipxact.ipxact("addrmap broken {", "1")
