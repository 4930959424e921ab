"""The glossary agrees with the code: every quantity exists under its one name, and old names do not occur."""

import ast
import dataclasses
import re
import warnings
from pathlib import Path

import pytest
from amaranth.hdl import UnusedElaboratable

from hw.config import PRESETS, Config
from hw.core.register_map import SETTINGS
from hw.registry import UNITS

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY = ROOT / "docs" / "GLOSSARY.md"
FOLDERS = ("cli", "compiler", "docs", "golden", "hw", "sim", "sw_model", "synth", "tests", "util")
HEAD = ["name", "golden", "hardware", "register", "unit", "meaning"]
# ports of the unit `dma` alone; the core sets them from the registers of its regions
REGIONS = {"device_base", "device_words", "host_base", "host_words"}
OLD_NAMES = {
    "n_hp",
    "th_hd",
    "hd_compare",
    "assign_rule",
    "recent_capacity_tokens",
    "tc_max",
    "n_buckets",
    "ratio_q16",
    "cfg_threshold",
    "cfg_inclusive",
    "cfg_window",
    "cfg_count_max",
    "cfg_target",
    "cfg_mode",
    "cfg_order",
    "cfg_refine",
    "cfg_capacity",
    "cfg_staging_units",
    "cfg_spill_storage",
    "cfg_burst_bytes",
    "cfg_retain",
    "hcu_clusters",
    "hcu_tokens",
    "kvmu_pages",
    "kvmu_frames",
    "wtu_cores",
    "dpe_slots",
    "capacity_tokens",
    "staging_units",
    "unit_bytes",
    "spill_storage",
    "hold_limit",
}


def rows() -> dict[str, list[str]]:
    """The table of quantities: name -> golden, hardware, register, unit, meaning."""
    text = GLOSSARY.read_text().split("## Quantities", 1)[1].split("## ", 1)[0]
    table = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")
    ]
    assert table[0] == HEAD
    assert all(len(row) == len(HEAD) for row in table), [row for row in table if len(row) != len(HEAD)]
    return {row[0].strip("`"): row[1:] for row in table[2:]}


def fields() -> dict[str, set[str]]:
    """The annotated fields of every class of the golden models."""
    classes: dict[str, set[str]] = {}
    for path in (ROOT / "golden").rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                assigned = (item.target for item in node.body if isinstance(item, ast.AnnAssign))
                classes.setdefault(node.name, set()).update(t.id for t in assigned if isinstance(t, ast.Name))
    return classes


@pytest.fixture(scope="module")
def ports() -> set[str]:
    """Names of all configuration ports without `cfg_`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnusedElaboratable)
        components = [unit.build(PRESETS["tiny"]) for unit in UNITS.values()]
    names = {name for component in components for name in component.signature.members}
    return {name.removeprefix("cfg_") for name in names if name.startswith("cfg_")}


def test_golden_classes_have_the_fields():
    known = fields()
    for name, (golden, *_) in rows().items():
        for kind in filter(None, golden.split(", ")):
            assert name in known[kind], f"{kind} has no field {name}"


def test_hardware_has_the_names(ports):
    parameters = {field.name for field in dataclasses.fields(Config)}
    for name, (_, hardware, *_) in rows().items():
        assert hardware in ("", "cfg", "Config"), (name, hardware)
        assert hardware != "cfg" or name in ports, f"no unit has a port cfg_{name}"
        assert hardware != "Config" or name in parameters, f"Config has no field {name}"


def test_registers_have_the_names():
    registers = {name for name, (_, _, register, *_) in rows().items() if register == "yes"}
    assert registers == set(SETTINGS)
    assert registers <= set(UNITS["core"].build(PRESETS["tiny"]).map.offsets)


def test_glossary_has_every_parameter_and_port(ports):
    listed = {kind: {name for name, row in rows().items() if row[1] == kind} for kind in ("cfg", "Config")}
    assert listed["Config"] == {field.name for field in dataclasses.fields(Config)}
    assert listed["cfg"] == ports - REGIONS


def test_every_quantity_has_unit_and_meaning():
    for name, (_, _, _, _, meaning) in rows().items():
        assert re.fullmatch("[a-z][a-z0-9_]*", name) and len(meaning.split()) > 2, name


def test_terms_are_sorted_and_unique():
    text = GLOSSARY.read_text().split("## Terms", 1)[1].split("## ", 1)[0]
    terms = re.findall(r"^\| ([^|]+) \|", text, re.M)[1:]
    assert terms == sorted(set(terms), key=str.lower)


def test_old_names_do_not_occur():
    """Except in the changelog, which tells users what to replace, and in this list."""
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    pattern = re.compile(rf"\b({'|'.join(sorted(OLD_NAMES))})\b")
    for path in [*files, ROOT / "README.md", ROOT / "vrex.py"]:
        if path.suffix in {".py", ".md", ".toml", ".json", ".j2"} and path.name not in {
            "CHANGELOG.md",
            Path(__file__).name,
        }:
            found = pattern.search(path.read_text())
            assert not found, f"{path.relative_to(ROOT)}: {found}"
