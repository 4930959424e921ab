"""Verilator's -Wall on the generated Verilog of every unit and preset."""

import shutil
import subprocess

import pytest

from hw import registry
from hw.config import PRESETS, Config
from hw.emit import LINT_WAIVERS
from sim.bench.build import use_verilator, verilog


@pytest.mark.parametrize("preset", [pytest.param(p, marks=[pytest.mark.heavy] * (p != "tiny")) for p in PRESETS])
@pytest.mark.parametrize("name", registry.UNITS)
def test_lint_clean(name, preset, tmp_path):
    use_verilator()
    (tmp_path / f"{name}.v").write_text(verilog(registry.unit(name).build(Config.preset(preset)), name))
    command = [shutil.which("verilator"), "--lint-only", "-Wall", *(f"-Wno-{kind}" for kind in LINT_WAIVERS)]
    done = subprocess.run(
        [*command, "--top-module", name, f"{name}.v"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
