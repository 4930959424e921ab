"""Preset files: systems, memories, drives and sweeps have one form of error that names file, key and value."""

import re

import pytest

from sw_model.memory.spec import load_memory
from sw_model.memory.ssd import load_ssd
from sw_model.preset_file import PRESETS
from sw_model.sweep import load_sweep
from sw_model.systems import load_system

KINDS = {"system": load_system, "memory": load_memory, "drive": load_ssd, "sweep": load_sweep}
GOOD = {
    "system": PRESETS / "vrex8.toml",
    "memory": PRESETS / "memory" / "ddr4-3200-8ch.toml",
    "drive": PRESETS / "ssd" / "bg6-like.toml",
}


@pytest.mark.parametrize("what", KINDS)
def test_files_that_cannot_be_read(what, tmp_path):
    file = tmp_path / "x.toml"
    with pytest.raises(ValueError, match=f"{what} file {file}: No such file"):
        KINDS[what](file)
    file.write_text("name = ")
    with pytest.raises(ValueError, match=f"{what} file {file} is not TOML"):
        KINDS[what](file)
    file.write_bytes(b"name = '\xff'")
    with pytest.raises(ValueError, match=f"{what} file {file} is not TOML"):
        KINDS[what](file)
    file.write_text('colour = "red"')
    with pytest.raises(ValueError, match=rf"{file}.*(colour|channels)"):
        KINDS[what](file)


@pytest.mark.parametrize("what", GOOD)
def test_own_files(what, tmp_path):
    """A preset works from any path, and an error in it names the file."""
    text, file = GOOD[what].read_text(), tmp_path / "own.toml"
    file.write_text(text)
    assert KINDS[what](file) == KINDS[what](GOOD[what].stem)
    with pytest.raises(ValueError, match=f"{what} must be one of .*{GOOD[what].stem}.*, got 'abacus'"):
        KINDS[what]("abacus")
    first = re.search(r"^\w+ = (\{ value = )?\d.*", text, re.M).group()
    file.write_text(
        text.replace(first, first.split(" =")[0] + (' = { value = -1, source = "x" }' if "{" in first else " = -1"))
    )
    with pytest.raises(ValueError, match="must be positive, got -1"):
        KINDS[what](file)
    file.write_text(text.replace(first, ""))
    key = first.split(" =")[0]
    with pytest.raises(ValueError, match=f"{file}.*(missing.*{key}|{key} is missing)"):
        KINDS[what](file)


def test_a_missing_table_is_named(tmp_path):
    file = tmp_path / "own.toml"
    file.write_text(GOOD["memory"].read_text().replace("[mapping]", "[other.mapping]"))
    with pytest.raises(ValueError, match="unknown key 'other'"):
        load_memory(file)
    file.write_text(GOOD["memory"].read_text().split("[mapping]")[0])
    with pytest.raises(ValueError, match=r"table \[mapping\] is missing"):
        load_memory(file)
