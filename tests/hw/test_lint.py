"""Verilator's -Wall on the generated Verilog of every unit and preset; a multi-core contains the core."""

import shutil
import subprocess

import pytest

from hw import registry
from hw.config import PRESETS, Config
from hw.emit import LINT_WAIVERS
from sim.bench.build import cached_verilog, use_verilator
from synth.elaborate import rtlil


@pytest.mark.parametrize("preset", [pytest.param(p, marks=[pytest.mark.heavy] * (p != "tiny")) for p in PRESETS])
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.heavy] * (n == "core")) for n in registry.UNITS])
def test_lint_clean(name, preset, tmp_path):
    use_verilator()
    (tmp_path / f"{name}.v").write_text(cached_verilog(rtlil(name, Config.preset(preset)), name))
    command = [shutil.which("verilator"), "--lint-only", "-Wall", *(f"-Wno-{kind}" for kind in LINT_WAIVERS)]
    done = subprocess.run(
        [*command, "--top-module", name, f"{name}.v"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
