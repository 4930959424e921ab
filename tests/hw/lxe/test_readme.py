"""The README of the LXE names all ports and steps, and its numbers equal those of the units."""

import re
from pathlib import Path

from compiler import vector_programs as programs
from hw.config import Config
from hw.lxe.dpe import DPE
from hw.lxe.microcode import Function, Post, Pre, Source, Times
from hw.lxe.vpe import VPE

README = (Path(__file__).parents[3] / "hw/lxe/README.md").read_text()
UNIT = VPE.from_config(Config.preset("paper"))
LANES = UNIT.lanes
PROGRAMS = {
    "exponentials of 1,250 scores": programs.exponentials(1250, LANES, 128),
    "softmax of 1,250 scores": programs.softmax(1250, LANES, 128),
    "softmax of 4,096 scores": programs.softmax(4096, LANES, 128),
    "exponentials of 32,768 scores": programs.long_exponentials(32768, LANES, 128),
    "division of 32,768 exponentials by their sum": programs.divide_by_sum(32768, LANES),
    "RMSNorm of 10 vectors of 2,048, factors": programs.rms_factor(2048, LANES) * 10,
    "RMSNorm of 10 vectors of 2,048, products": programs.rms_scale(2048, LANES, 10),
    "RoPE of 40 heads of 128": programs.rope(128, LANES, 40),
    "hash bits of 10 tokens of 32": programs.hash_bits(32, LANES, 10),
    "squared norms of 10 keys of 1,024": programs.key_norms(1024, LANES, 10),
    "running mean of 1,024, 10 members": programs.running_mean(1024, LANES, 32, 10),
    "SiLU(gate) * up of 4,096": programs.gated(4096, LANES),
}


def test_cycles_of_the_programs():
    for name, program in PROGRAMS.items():
        beats = sum(op.rows * op.beats for op in program if op.a is Source.STREAM)
        row = f"| {name} | {beats:,}, {sum(op.results for op in program):,} | {UNIT.cycles(program):,} |"
        assert row in README


def test_every_port_and_step_is_explained():
    ports = set(UNIT.signature.members)
    assert not [name for name in ports if f"`{name}`" not in README]
    others = set(DPE.from_config(Config.preset("paper")).signature.members)
    assert set(re.findall(r"`(stat_\w+)`", README)) <= ports | others
    for steps in (Pre, Times, Function, Post):
        assert not [step.name for step in steps if f"`{step.name}`" not in README]
