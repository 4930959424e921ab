import gzip
from pathlib import Path

import numpy as np
import pytest

from synth.library import reader as library
from synth.library.liberty import library_text
from synth.library.parser import LibraryError
from synth.library.reader import OSU018, Library, choose, load
from synth.library.records import LookupTable
from synth.library.technology import Technology

TEXT = library_text()


def without(text: str, start: str, end: str) -> str:
    """Return `text` without every section from `start` to the next `end`."""
    parts = text.split(start)
    return parts[0] + "".join(part.split(end, 1)[1] for part in parts[1:])


@pytest.fixture
def written(tmp_path):
    def write(text: str | bytes, name: str = "some.lib") -> Path:
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "file must not be empty"),
        ("   \n", "file must not be empty"),
        (TEXT[: len(TEXT) // 2], "braces must match, got a file that ends inside"),
        (TEXT[:-3], "got a file that ends inside library"),
        ("not a library at all", "one library group, got 0"),
        (TEXT + "}", "got an extra closing brace"),
        (TEXT + TEXT, "one library group, got 2"),
        ("library (x) { nom_voltage : 1; }", "library must have cells, got none"),
        ("library (x) { { } }", "group at byte 14 must have a name"),
        (
            TEXT.replace("nom_temperature : 25", "nom_temperature : nan"),
            "nom_temperature and wire load must be numbers",
        ),
        (TEXT.replace('time_unit : "1ps"', 'time_unit : "fast"'), "time_unit must be a number with a unit, got 'fast'"),
        (TEXT.replace("capacitive_load_unit (1, ff)", "capacitive_load_unit (1, cats)"), "capacitive_load_unit"),
    ],
)
def test_damaged_files_get_one_line(written, text, reason):
    with pytest.raises(LibraryError, match=reason) as error:
        load([written(text)])
    message = str(error.value)
    assert "\n" not in message and any(f"library {name}" in message for name in ("some.lib", "x", "predictive14"))


def test_missing_file(tmp_path):
    with pytest.raises(LibraryError, match="No such file"):
        load([tmp_path / "nothing.lib"])
    with pytest.raises(LibraryError, match="Is a directory"):
        load([tmp_path])
    with pytest.raises(LibraryError, match="liberty files must not be empty, got none"):
        load([])


def test_gzip_and_its_damage(written):
    packed = gzip.compress(TEXT.encode())
    assert load([written(packed, "a.lib.gz")]).nand2.name == "NAND2_X1"
    with pytest.raises(LibraryError, match="file must be complete gzip data, got a damaged or truncated file"):
        load([written(packed[: len(packed) // 2], "b.lib.gz")])
    with pytest.raises(LibraryError, match="file must be complete gzip data, got a damaged or truncated file"):
        load([written(packed[:50] + b"\0\1\2\3" * 20 + packed[130:], "c.lib.gz")])


def test_huge_file(written, monkeypatch):
    monkeypatch.setattr(library, "MAX_BYTES", 1 << 20)
    with pytest.raises(LibraryError, match="file must be at most 1 MiB, got a larger one"):
        load([written(gzip.compress(b" " * (2 << 20)), "bomb.lib.gz")])


def test_require_checks_cells_and_tables(written):
    def library_of(text: str) -> Library:
        return load([written(text)])

    no_nand = TEXT.replace('function : "!(A * B)"', 'function : "!(A + B)"')
    with pytest.raises(LibraryError, match="2-input NAND, the unit of area, is missing"):
        library_of(no_nand).require()
    no_flop = without(without(TEXT, "  cell (DFF", "\n  }\n"), "  cell (LATCH", "\n  }\n")
    with pytest.raises(LibraryError, match="flip-flop is missing"):
        library_of(no_flop).require()
    no_timing = TEXT.replace("cell_rise", "some_rise").replace("cell_fall", "some_fall")
    library_of(no_timing).require(power=True)
    with pytest.raises(LibraryError, match="NAND2_X1 has no delay tables"):
        library_of(no_timing).require(timing=True)
    no_power = TEXT.replace("internal_power", "other_power")
    library_of(no_power).require(timing=True)
    with pytest.raises(LibraryError, match="NAND2_X1 has no power tables"):
        library_of(no_power).require(power=True)
    with pytest.raises(LibraryError, match="nom_voltage is missing; power cannot be computed"):
        library_of(TEXT.replace("nom_voltage : 0.8;", "")).require(power=True)
    with pytest.raises(LibraryError, match="area of cell NAND2_X1 must be above 0, got 0"):
        library_of(TEXT.replace("area : 0.134784;", "area : 0;")).require()
    with pytest.raises(LibraryError, match="inverter is missing"):
        _ = library_of(TEXT.replace('function : "!A"', 'function : "A"')).inverter
    with pytest.raises(LibraryError, match="cell INV_X1 must have an arc with cell_fall, cell_rise, fall_transition"):
        _ = library_of(TEXT.replace("fall_transition", "other")).fo4_ps


@pytest.mark.parametrize(
    ("good", "bad", "reason"),
    [
        ('index_1 ("2, 6, 15', 'index_1 ("2, 6, 6', "index_1 of cell_rise must ascend, got 2, 6, 6"),
        ('values ("2.8203, 4.8072, ', 'values ("', "cell_rise must have 6 x 6 values, got 34"),
        ("capacitance : 0.6720", "capacitance : much", "could not convert string to float: 'much'"),
    ],
)
def test_damaged_cell_is_named(good, bad, reason, written):
    assert good in TEXT
    with pytest.raises(LibraryError, match=f"cell INV_X1 is invalid: {reason}"):
        load([written(TEXT.replace(good, bad))]).cell("INV_X1")
    with pytest.raises(LibraryError, match="cell NOTHING_X1 is missing"):
        choose().cell("NOTHING_X1")


def test_syntax_of_real_libraries_is_read(written):
    """The text has leakage by state and by rail, power groups without tables, inner nodes and two wire loads."""
    states = "pg_pin (VSS) { pg_type : primary_ground; } leakage_power () { value : 900; related_pg_pin : VSS; }"
    states += "leakage_power () { value : 2; } leakage_power () { value : 4; }"
    powers = 'internal_power () { related_pin : "A"; } internal_power () { passive (scalar) { values ("9"); } }'
    text = TEXT.replace("cell_leakage_power : 0.2688;", states, 1).replace("max_cap", f"{powers} max_cap", 1)
    text = text.replace("capacitive_load_unit (1, ff);", "capacitive_load_unit (1, ff)")
    text = text.replace("  wire_load (", "  wire_load (other) { capacitance : 9; }\n  wire_load (")
    text = text.replace('function : "!(A * B)"', 'function : "node"').replace('"!(A + B)"', '"!(A * B)"')
    library_read, plain = load([written(text)]), choose()
    assert library_read.cell("INV_X1").leakage_w == pytest.approx(3e-9)
    assert len(library_read.cell("INV_X1").pins["Y"].energies) == len(plain.cell("INV_X1").pins["Y"].energies)
    assert library_read.farads == plain.farads and library_read.wire_farads == plain.wire_farads
    assert library_read.cell("NAND2_X1").table("Y") is None and library_read.nand2.name == "NOR2_X1"


@pytest.mark.parametrize(
    ("group", "tables", "flow"), [("timing", "delay", "timing"), ("internal_power", "power", "power")]
)
def test_used_cell_without_tables_is_named(written, group, tables, flow):
    """Without the error, the sum would omit the cell."""
    start = TEXT.index("  cell (XOR2_X1)")
    end = TEXT.index("\n  }\n", start)
    some = load([written(TEXT[:start] + TEXT[start:end].replace(f"{group} ()", "nothing ()") + TEXT[end:])])
    some.require(timing=True, power=True, cells=["NAND2_X1", "DFF_X1"])
    with pytest.raises(LibraryError, match=f"cell XOR2_X1 has no {tables} tables; {flow} cannot be computed"):
        some.require(timing=flow == "timing", power=flow == "power", cells=["NAND2_X1", "XOR2_X1"])


def test_forgotten_semicolon_and_comments(written):
    text = TEXT.replace("area : 0.134784;", "area : 0.134784\n", 1).replace("delay_model", "/* a } */ delay_model")
    assert load([written(text)]).nand2.area == pytest.approx(0.134784)


def test_several_files_are_one_library(written):
    start = TEXT.index("  cell (HA_X1)")
    end = TEXT.index("  cell (FA_X1)")
    head = TEXT[: TEXT.index("  cell (")]
    first, second = TEXT[:start] + TEXT[end:], head + TEXT[start:end] + "}\n"
    complete, merged = Library([("a", TEXT)], "user"), load([written(first, "1.lib"), written(second, "2.lib")])
    assert set(merged.names) == set(complete.names)
    assert Library([("m", merged.text)], "user").cell("HA_X1").area == complete.cell("HA_X1").area
    with pytest.raises(LibraryError, match=r"2.lib: units and voltage must be those of 1.lib"):
        load([written(first, "1.lib"), written(second.replace('"1ps"', '"1ns"'), "2.lib")])


def test_table_is_linear_between_and_beyond_its_points(rng):
    axes = np.array([1.0, 2.0, 4.0]), np.array([0.0, 3.0])
    a, b, c, d = rng.normal(size=4)
    values = a + b * axes[0][:, None] + c * axes[1][None] + d * axes[0][:, None] * axes[1][None]
    table, swapped = LookupTable(axes, values), LookupTable(axes[::-1], values.T, load_first=True)
    for slew, load_ in rng.uniform(-1, 8, (20, 2)):
        expected = a + b * slew + c * load_ + d * slew * load_
        assert table(slew, load_) == pytest.approx(expected)
        assert swapped(slew, load_) == pytest.approx(expected)
        assert LookupTable((axes[0][:1], axes[1]), values[:1])(slew, load_) == pytest.approx(table(axes[0][0], load_))


def test_adders_are_found_by_function(predictive):
    match = predictive.find({"s": "a ^ b ^ c", "co": "a * b + b * c + a * c"}, 3)
    assert match is not None and match[0].name == "FA_X1" and match[1] == {"s": "S", "co": "CO"}
    assert predictive.find({"y": "a ^ b ^ c"}, 3) is None


def test_pins_carry_their_wires_where_a_tool_knows_no_wire_load(predictive):
    wire = predictive.wire_farads / predictive.farads
    loaded = Library([("loaded", predictive.loaded_path.read_text())], "user")
    for cell in predictive.cells():
        for name in cell.inputs:
            assert loaded.cell(cell.name).pins[name].capacitance == pytest.approx(
                cell.pins[name].capacitance + wire, rel=1e-4
            )
    bare = Library([("bare", library_text(Technology(wire_pitches=0.0)))], "embedded")
    assert bare.loaded_path == bare.path


def test_choose(written, tmp_path, monkeypatch):
    assert choose().tier == "embedded" and choose([written(TEXT)]).tier == "user"
    if OSU018.exists():
        osu018 = choose(["osu018"])
        assert osu018.tier == "osu018" and osu018.nand2.name == "NAND2X1"
        assert 90 < osu018.fo4_ps < 110
    monkeypatch.setattr(library, "OSU018", tmp_path / "nothing.lib")
    with pytest.raises(LibraryError, match="apt install qflow-tech-osu018"):
        choose(["osu018"])


def test_wire_load_depends_on_the_area_of_the_block(written):
    """Selections with and without quotes; without a default selection, every block has the default load."""
    load_of = "  wire_load ({}) {{ capacitance : {}; fanout_length (1, 2); }}\n"
    loads = load_of.format("a", 3) + load_of.format("b", 5)
    ranges = 'wire_load_from_area (100, 1000, "b"); wire_load_from_area (0, 100, a);'
    selection = f"  wire_load_selection (chosen) {{ {ranges} }}\n"
    default = "  default_wire_load_selection : chosen;\n"
    text = TEXT.replace("  wire_load (", f"{default}{loads}{selection}  wire_load (", 1)
    library = load([written(text)])
    assert [library.wire_farads_of(area) / library.farads for area in (0, 99, 100, 5000)] == [6, 6, 10, 10]
    assert library.wire_farads == choose().wire_farads
    plain = load([written(text.replace(default, ""))])
    assert plain.wire_farads_of(5000) == plain.wire_farads
