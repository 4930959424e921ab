"""Verilator's -Wall on the generated Verilog of every unit and preset; a multi-core contains the core.

At the preset `tiny` all instances of all modules are checked together. At the larger presets one instance of a repeated
module has content, see `hw.emit.lint_text`: the core takes less than 1 GB instead of 9 GB.
"""

import re
import shutil
import subprocess

import pytest

from hw import registry
from hw.config import PRESETS, Config
from hw.emit import LINT_WAIVERS, lint_text
from sim.bench.build import cached_verilog, use_verilator
from synth.elaborate import rtlil

MOST_KIB = 4 << 20  # memory of a run; beyond it, Verilator ends with an error


def lint(name, text, folder):
    """Exit status and messages of Verilator for the top module `name`."""
    use_verilator()
    (folder / f"{name}.v").write_text(text)
    command = [shutil.which("verilator"), "--lint-only", "-Wall", *(f"-Wno-{kind}" for kind in LINT_WAIVERS)]
    limited = ["sh", "-c", f'ulimit -v {MOST_KIB} && exec "$@"', "sh", *command, "--top-module", name, f"{name}.v"]
    done = subprocess.run(limited, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize("preset", [pytest.param(p, marks=[pytest.mark.heavy] * (p != "tiny")) for p in PRESETS])
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.heavy] * (n == "core")) for n in registry.UNITS])
def test_lint_clean(name, preset, tmp_path):
    config = Config.preset(preset)
    text = cached_verilog(rtlil(name, config), name)
    if preset != "tiny":
        text = lint_text(text, registry.unit(name).build(config))
    assert lint(name, text, tmp_path) == (0, "")


@pytest.mark.heavy
@pytest.mark.parametrize("preset, kv_bits", [("tiny", 4), ("tiny", 8), ("small", 8)])
def test_core_with_kv_codec_is_lint_clean(preset, kv_bits, tmp_path):
    config = Config.preset(preset).replace(kv_bits=kv_bits)
    text = cached_verilog(rtlil("core", config), "core")
    if preset != "tiny":
        text = lint_text(text, registry.unit("core").build(config))
    assert lint("core", text, tmp_path) == (0, "")


DAMAGES = {  # pattern in the Verilog of the matrix engine, its replacement, warning
    "pin of the first row": (r"(?<=  dpe_row row0 \()(.*?)\s*\.load\([^\n]*,", r"\1", "PINMISSING"),
    "pin of the last row": (r"(?<=  dpe_row row3 \()(.*?)\s*\.load\([^\n]*,", r"\1", "PINMISSING"),
    "unknown pin of the last row": (r"(?<=  dpe_row row3 \()(.*?)\.load\(", r"\1.loads(", "PINNOTFOUND"),
    "loop inside a row": (
        r"^module dpe_row\(.*?;\n",
        r"\g<0>  wire loop_a, loop_b /* verilator public */; assign loop_a = ~loop_b; assign loop_b = loop_a;\n",
        "UNOPTFLAT",
    ),
    "implicit signal inside a row": (r"^module dpe_row\(.*?;\n", r"\g<0>  assign missing = load;\n", "IMPLICIT"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_lint_text_keeps_warnings(damage, tmp_path):
    """Mistakes inside a repeated module and at the ports of any instance are found in the reduced text."""
    pattern, replacement, warning = DAMAGES[damage]
    config = Config.preset("tiny")
    text, count = re.subn(pattern, replacement, cached_verilog(rtlil("dpe", config), "dpe"), count=1, flags=re.M | re.S)
    assert count == 1
    reduced = lint_text(text, registry.unit("dpe").build(config))
    assert reduced.count("  dpe_row_box ") == config.dpe_trees - 1
    status, messages = lint("dpe", reduced, tmp_path)
    assert status != 0 and f"-{warning}" in messages, messages


def test_lint_text_needs_the_module():
    with pytest.raises(ValueError, match=r"^text must contain the module dpe_row, got 0 characters without it$"):
        lint_text("", registry.unit("dpe").build(Config.preset("tiny")))
