"""The register file's Verilog: every kind of access, and the documents generated from its table."""

import re

import numpy as np
import pytest
from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.axi.ports import axi4_lite
from hw.axi.registers import Access, Register, RegisterFile, RegisterMap
from hw.config import Config
from hw.core.core import Core as CoreHardware
from sim.bench.axi_run import simulate

MAP = RegisterMap(
    "sample",
    (
        Register("plain", 32, Access.RW, "a word", reset=0x1234),
        Register("wide", 48, Access.RW, "two words"),
        Register("status", 12, Access.RO, "what comes from outside"),
        Register("start", 2, Access.PULSE, "acts once"),
        Register("causes", 9, Access.CLEAR, "sticky", bits=(("low", 0, 4, "four"), ("high", 4, 5, "five"))),
    ),
)


class Bench(wiring.Component):
    """The file with `start` looped back: each pulse is counted, and sets bits of `causes`."""

    def __init__(self):
        super().__init__({"axi": In(axi4_lite(address_bits=MAP.address_bits)), "stat_pulses": Out(8)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.file = file = RegisterFile(MAP)
        wiring.connect(m, wiring.flipped(self.axi), file.axi)
        m.d.comb += [file.input_status.eq(file.value_wide[36:48]), file.set_causes.eq(file.pulse_start * 0x101)]
        m.d.sync += self.stat_pulses.eq(self.stat_pulses + file.pulse_start)
        return m


@pytest.mark.parametrize("stall", [0.0, 0.5])
def test_accesses(stall, seed):
    at, good, bad = MAP.offsets, 0, 2
    steps = [
        (["read", at["plain"]], [0x1234, good]),
        (["write", at["plain"], 0xDEADBEEF], good),
        (["read", at["plain"]], [0xDEADBEEF, good]),
        (["write", at["wide"], 0xFFFFFFFF], good),
        (["write", at["wide"] + 4, 0xABCDEF01], good),
        (["read", at["wide"] + 4], [0xEF01, good]),  # sixteen bits of it exist
        (["read", at["status"]], [0xEF0, good]),
        (["write", at["status"], 1], bad),
        (["read", at["start"]], [0, good]),
        (["write", at["start"], 2], good),
        (["write", at["start"], 1], good),
        (["read", at["causes"]], [0x303 & 0x1FF, good]),
        (["write", at["causes"], 0x3], good),
        (["read", at["causes"]], [0x100, good]),
        (["read", MAP.offsets["causes"] + 4], [0, bad]),
        (["write", MAP.offsets["causes"] + 4, 7], bad),
    ]
    record = simulate(Bench(), "bench", {}, script=[step for step, _ in steps], lite="axi", stall=stall, seed=seed)
    assert record.answers == [want for _, want in steps]
    assert record.status["stat_pulses"] == 3


def test_random_writes_keep_other_bytes(rng, seed):
    """Any bytes of the words of the two writable registers against a dictionary, at random addresses."""
    held, steps, wanted = {0: 0x1234, 4: 0, 8: 0}, [], []
    for _ in range(60):
        address = int(rng.choice([0, 4, 8]))
        if rng.random() < 0.5:
            value, strobe = int(rng.integers(0, 1 << 32, dtype=np.uint64)), int(rng.integers(16))
            mask = sum(255 << 8 * byte for byte in range(4) if strobe >> byte & 1)
            held[address] = (held[address] & ~mask | value & mask) & (0xFFFF if address == 8 else 0xFFFFFFFF)
            steps.append(["write", address, value, strobe])
            wanted.append(0)
        else:
            steps.append(["read", address])
            wanted.append([held[address], 0])
    assert simulate(Bench(), "bench", {}, script=steps, lite="axi", stall=0.3, seed=seed).answers == wanted


def test_documents_follow_the_table():
    table, header = MAP.markdown(), MAP.c_header()
    rows = re.findall(r"^\| 0x(\w+) \| `(\w+)` \|", table, re.M)
    assert {name: int(offset, 16) for offset, name in rows} == MAP.offsets
    macros = dict(re.findall(r"#define SAMPLE_(\w+) 0x(\w+)u", header))
    for name, offset in MAP.offsets.items():
        assert int(macros[name.upper()], 16) == offset
    assert int(macros["CAUSES_HIGH_MASK"], 16) == 31
    assert "#define SAMPLE_CAUSES_HIGH_SHIFT 4" in header


def test_rejects_bad_tables():
    with pytest.raises(ValueError, match="width of register x must be 1 to 64, got 65"):
        Register("x", 65, Access.RW, "")
    with pytest.raises(ValueError, match="register names must be unique, got x twice"):
        RegisterMap("m", (Register("x", 1, Access.RW, ""),) * 2)


class Core(wiring.Component):
    """The file of a core's map, whose read-only words show the highest word that was written to."""

    def __init__(self, map):
        self.map = map
        super().__init__({"axi": In(axi4_lite(address_bits=map.address_bits))})

    def elaborate(self, platform):
        m = Module()
        m.submodules.file = file = RegisterFile(self.map)
        wiring.connect(m, wiring.flipped(self.axi), file.axi)
        for r in self.map.registers:
            if r.access is Access.RO:
                m.d.comb += getattr(file, f"input_{r.name}").eq(file.value_host_words)
        return m


def test_every_register_of_a_core(rng, seed):
    """Writable words read back what was written, read-only words show their input, and no word aliases another."""
    map = CoreHardware.from_config(Config.preset("tiny")).map
    host_words, written, steps, expected = int(rng.integers(0, 1 << 32, dtype=np.uint64)), {}, [], []
    words = [(r, half) for r in map.registers for half in range(r.words)]
    for r, half in words:
        if r.access is Access.RW:
            written[r.name, half] = (
                host_words if r.name == "host_words" else int(rng.integers(0, 1 << 32, dtype=np.uint64))
            )
            steps.append(["write", map.offsets[r.name] + 4 * half, written[r.name, half]])
            expected.append(0)
    for r, half in words:
        mask = (1 << min(32, r.width - 32 * half)) - 1
        value = written.get((r.name, half), 0) if r.access is Access.RW else 0
        if r.access is Access.RO:
            value = written["host_words", half] & (1 << 36) - 1 if ("host_words", half) in written else 0
        steps.append(["read", map.offsets[r.name] + 4 * half])
        expected.append([value & mask, 0])
    answers = simulate(Core(map), "core_registers", {}, script=steps, lite="axi", seed=seed).answers
    for step, got, want in zip(steps, answers, expected, strict=True):
        assert got == want, step
