"""A failed mapping raises one error and leaves no files."""

import re
import shutil

import pytest

from hw import yosys
from synth import mapping
from synth.area import area_of_rtlil
from synth.library.reader import Library
from synth.mapping import MappingError

XOR = r"""attribute \top 1
module \dut
  wire input 1 \a
  wire input 2 \b
  wire output 3 \y
  cell $xor $1
    parameter \A_SIGNED 0
    parameter \A_WIDTH 1
    parameter \B_SIGNED 0
    parameter \B_WIDTH 1
    parameter \Y_WIDTH 1
    connect \A \a
    connect \B \b
    connect \Y \y
  end
end
"""
LATCH = r"""attribute \top 1
module \dut
  wire input 1 \a
  wire input 2 \b
  wire output 3 \y
  cell $dlatch $1
    parameter \EN_POLARITY 1'1
    parameter \WIDTH 1
    connect \EN \a
    connect \D \b
    connect \Q \y
  end
end
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VREX_BUILD", str(tmp_path))
    return tmp_path / "synth" / "mapped"


@pytest.mark.parametrize("survives", [0, 1], ids=["elaborating", "mapping"])
def test_a_killed_tool_leaves_nothing(survives, cache, predictive, monkeypatch):
    """If one of the two yosys runs is killed: an error with the signal, an empty cache, and a correct next run."""
    real, runs = yosys.run, []

    def run(commands, **options):
        runs.append(commands)
        if len(runs) > survives:
            monkeypatch.setattr(yosys, "_YOWASP", "import os; os.kill(os.getpid(), 9)")
        return real(commands, **options)

    with monkeypatch.context() as patch:
        patch.setattr(yosys, "_YOWASP", yosys._YOWASP)
        patch.setattr(yosys, "run", run)
        with pytest.raises(MappingError, match="dut: mapping to predictive14 failed: yosys: killed by signal 9"):
            area_of_rtlil(XOR, "dut", predictive)
    assert list(cache.iterdir()) == []
    monkeypatch.undo()
    monkeypatch.setenv("VREX_BUILD", str(cache.parent.parent))
    assert area_of_rtlil(XOR, "dut", predictive).cells == 1


def test_unmappable_cell_is_named(cache, predictive):
    text, count = re.subn(r"  cell \(LATCH.*?\n  }\n", "", predictive.text, flags=re.S)
    assert count == 1
    with pytest.raises(MappingError, match=r"dut: .* \(type \$_DLATCH_P_\) cannot be legalized: D latches are not"):
        area_of_rtlil(LATCH, "dut", Library([("plain.lib", text)], "user"))
    assert list(cache.iterdir()) == []


def test_an_unknown_point(predictive):
    with pytest.raises(ValueError, match="point must be one of area, balanced, fast, got 'slow'"):
        area_of_rtlil(XOR, "dut", predictive, point="slow")


TRISTATE = r"""attribute \top 1
module \dut
  wire input 1 \a
  wire input 2 \b
  wire output 3 \y
  cell $tribuf $1
    parameter \WIDTH 1
    connect \EN \a
    connect \A \b
    connect \Y \y
  end
end
"""


def test_cell_missing_in_the_library_is_named(cache, predictive):
    with pytest.raises(MappingError, match=r"dut: library predictive14 has no cell for \$_TBUF_"):
        area_of_rtlil(TRISTATE, "dut", predictive)
    assert list(cache.iterdir()) == []


def test_result_of_a_faster_process_is_used(cache, predictive, monkeypatch):
    folder = area_of_rtlil(XOR, "dut", predictive).mapped["dut"].folder
    theirs = shutil.move(folder, cache.parent / "theirs")
    real = mapping._buffer

    def buffer(*arguments):
        shutil.copytree(theirs, folder)
        real(*arguments)

    monkeypatch.setattr(mapping, "_buffer", buffer)
    assert area_of_rtlil(XOR, "dut", predictive).mapped["dut"].from_cache is False
    assert [path.name for path in cache.iterdir()] == [folder.name]


def adders(text, full, half):
    """The text of a library with other functions of its full and half adders."""
    for name, functions in (("FA_X1", full), ("HA_X1", half)):
        start = text.index(f"  cell ({name})")
        end = text.index("\n  }\n", start)
        cell = text[start:end]
        for old, new in zip(re.findall(r'function : "[^"]*"', cell), functions, strict=True):
            cell = cell.replace(old, f'function : "{new}"', 1)
        text = text[:start] + cell + text[end:]
    return Library([("some.lib", text)], "user")


def test_adders_as_libraries_have_them(predictive):
    """Full adders can be inverted or missing, half adders missing."""
    plain, none = ("A ^ B ^ CI", "(A * B) + (A * CI) + (B * CI)"), ("A", "B")
    inverted = tuple(f"!({text})" for text in plain)
    verilog = mapping._adder_map(adders(predictive.text, inverted, none))
    assert "assign Y[i] = ~y; assign X[i] = ~x;" in verilog and "HA_X1" not in verilog
    assert "assign Y[i] = y;" in mapping._adder_map(predictive) and "HA_X1" in mapping._adder_map(predictive)
    assert mapping._adder_map(adders(predictive.text, none, none)) == ""


def test_a_tool_that_gives_up_is_quoted(cache, predictive):
    with pytest.raises(MappingError, match=r"failed: yosys: .*ERROR"):
        area_of_rtlil(XOR.replace("$xor", "$nothing"), "dut", predictive)
    assert list(cache.iterdir()) == []
