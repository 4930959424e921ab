"""The documentation site builds without warnings, describes all units and commands, and loads no remote files."""

import logging
import re
from html import unescape
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

import vrex
from hw.config import PRESETS
from hw.core import isa
from hw.registry import UNITS
from tests.browser import browser

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    warnings_logged = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings_logged.append(record.getMessage())
    logging.getLogger("mkdocs").addHandler(handler)
    try:
        build(load_config(str(ROOT / "docs" / "mkdocs.yml"), site_dir=str(folder)))
    finally:
        logging.getLogger("mkdocs").removeHandler(handler)
    assert not warnings_logged  # dead links, pages outside the table of contents
    return folder


def text(page: Path) -> str:
    """The text of a page without tags."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", page.read_text())).split())


def test_unit_pages_have_ports_cycles_counters_and_sizes(site):
    for unit in UNITS.values():
        component, content = unit.build(PRESETS["paper"]), text(site / "docs/units" / f"{unit.name}.html")
        assert unit.summary in content
        for name in component.signature.members:
            assert f" {name} " in content or name == "stat_clear", (unit.name, name)
        for value in getattr(component, "timing", {}).values():
            assert isinstance(value, dict) or value is None or str(value) in content, (unit.name, value)
    hcu = text(site / "docs/units/hcu.html")
    assert f"hash_bits {' '.join(str(preset.hash_bits) for preset in PRESETS.values())} " in hcu
    assert "stat_opened 32 clusters that tokens opened" in hcu
    assert "BEGIN 1 start an empty table" in hcu and "max_pages" not in hcu


def test_instructions_registers_commands(site):
    content = text(site / "docs/instructions.html")
    assert all(f" {op.name} " in content for op in isa.OPCODES)
    registers, core = text(site / "docs/registers.html"), UNITS["core"].build(PRESETS["paper"])
    assert all(f"0x{offset:03x} {name} " in registers for name, offset in core.map.offsets.items())
    commands = text(site / "docs/commands.html")
    assert all(f"usage: vrex {name}" in commands for name in vrex.parser()._subparsers._group_actions[0].choices)


def test_folders_and_tutorials(site):
    for folder in ("golden", "hw", "sim", "synth", "sw_model"):
        assert 150 < len((ROOT / folder / "README.md").read_text().split()) < 1500  # one page
        assert (site / folder / "index.html").exists()
    front = (site / "index.html").read_text()
    for name in ("generate", "verify", "streams", "policy", "system", "figure"):
        assert f'href="docs/tutorials/{name}.html"' in front


def test_pages_load_nothing_from_other_hosts(site):
    for page in site.rglob("*.html"):
        fetched = re.findall(r'<(?:script|img|link)[^>]+(?:src|href)="(https?:[^"]+)"', page.read_text())
        assert not fetched, page


def test_pages_in_a_browser(site):
    with browser() as chromium:
        for page in ("index", "docs/tutorials/generate", "docs/units/kvmu", "docs/registers"):
            for width in (1280, 390):
                chromium.observe(site / f"{page}.html", width).check(width)
