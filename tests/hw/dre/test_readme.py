"""The README of the DRE names all ports and the cycle formulas."""

import re
from pathlib import Path

import pytest

from hw.config import Config
from hw.dre.hcu import HCU
from hw.dre.wtu.wtu import WTU, WtuDesign

README = (Path(__file__).parents[3] / "hw/dre/README.md").read_text()


def section(name):
    """Text of the README section of one unit."""
    return re.search(rf"^## {name}:.*?(?=^## |\Z)", README, re.M | re.S).group()


@pytest.mark.parametrize("unit", [HCU, WTU])
def test_every_port_is_explained(unit):
    text = section(unit.__name__)
    ports = set(unit.from_config(Config.preset("tiny")).signature.members) - {"stat_clear"}
    assert not [name for name in ports if f"`{name}`" not in text]
    assert set(re.findall(r"`((?:cfg|stat|o)_\w+)`", text)) <= ports


@pytest.mark.parametrize("design", WtuDesign)
def test_cycle_formulas_are_the_units(design):
    formula = WTU.from_config(Config.preset("tiny"), design).timing["cycles_per_row"]
    row = next(line for line in section("WTU").splitlines() if line.startswith(f"| `{design}`"))
    assert f"`{formula}`" in row
