"""Cycle-by-cycle simulation of mapped circuits, compared with plain Python."""

import functools

import numpy as np
import pytest
from amaranth import ClockDomain, ClockSignal, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

import synth.area
from hw import emit
from hw.common.memory import LatchRam, Ram
from synth.area import area_of_rtlil
from synth.blocks import partition
from synth.power.circuit import Circuit


class Counter(wiring.Component):
    """Counts cycles of `en`."""

    en: In(1)
    q: Out(4)

    def elaborate(self, platform):
        m = Module()
        with m.If(self.en):
            m.d.sync += self.q.eq(self.q + 1)
        return m


class Few(wiring.Component):
    """Adds `a` to the row `to` of a memory of latches; the rows of two consecutive cycles can be equal."""

    to: In(3)
    a: In(40)
    y: Out(40)

    def elaborate(self, platform):
        m = Module()
        m.submodules.ram = ram = LatchRam(depth=16, width=40)
        row, word, running = Signal(3), Signal(40), Signal()
        m.d.sync += [row.eq(self.to), word.eq(self.a), running.eq(1)]
        m.d.comb += [ram.r_addr.eq(self.to), ram.r_en.eq(1), self.y.eq(ram.r_data[0])]
        m.d.comb += [ram.w_addr.eq(row), ram.w_mask.eq(running), ram.w_data[0].eq(ram.r_data[0] + word)]
        return m


class Lookup(wiring.Component):
    """Writes `a * 1021` at the sum of all `a` so far, reads at `a`."""

    a: In(6)
    y: Out(16)

    def elaborate(self, platform):
        m = Module()
        m.submodules.ram = ram = Ram(depth=64, width=16)
        total = Signal(6)
        m.d.sync += total.eq(total + self.a)
        m.d.comb += [ram.r_addr.eq(self.a), ram.r_en.eq(1), self.y.eq(ram.r_data[0])]
        m.d.comb += [ram.w_addr.eq(total), ram.w_mask.eq(self.a[0]), ram.w_data[0].eq(self.a * 1021)]
        return m


class Halves(wiring.Component):
    """Rows of two words, written one by one; one bit of the read row is an output."""

    to: In(6)
    mask: In(2)
    a: In(6)
    y: Out(8)
    top: Out(1)

    def elaborate(self, platform):
        m = Module()
        m.submodules.ram = ram = Ram(depth=48, width=8, words=2)
        m.d.comb += [ram.w_addr.eq(self.to), ram.w_mask.eq(self.mask), ram.r_addr.eq(self.a), ram.r_en.eq(1)]
        m.d.comb += [word.eq(self.to * 5 + k) for k, word in enumerate(ram.w_data)]
        m.d.comb += [self.y.eq(ram.r_data[0]), self.top.eq(ram.r_data[1][7])]
        return m


class Stage(wiring.Component):
    a: In(8)
    y: Out(8)
    p: Out(1)

    def elaborate(self, platform):
        m = Module()
        m.d.sync += self.y.eq(self.y ^ (self.a + 7))
        m.d.comb += self.p.eq(self.a.xor())
        return m


class Chain(wiring.Component):
    """Three equal stages in a row; the parity passes all of them without a register."""

    a: In(8)
    y: Out(8)
    p: Out(3)

    def elaborate(self, platform):
        m = Module()
        value = self.a
        for k in range(3):
            m.submodules[f"stage{k}"] = stage = Stage()
            m.d.comb += [stage.a.eq(value), self.p[k].eq(stage.p)]
            value = stage.y
        m.d.comb += self.y.eq(value)
        return m


class Gated(wiring.Component):
    a: In(1)
    y: Out(1)

    def elaborate(self, platform):
        m = Module()
        m.domains.gated = ClockDomain(reset_less=True)
        m.d.comb += ClockSignal("gated").eq(ClockSignal("sync") & self.a)
        m.d.gated += self.y.eq(~self.y)
        return m


def mapped(component, library, name="dut"):
    return area_of_rtlil(emit.to_rtlil(component, name), name, library)


def bits(values, width):
    return np.array(values)[:, None] >> np.arange(width) & 1


def words(columns):
    return (columns.astype(int) << np.arange(columns.shape[1])).sum(axis=1).tolist()


def test_a_counters_bits_halve_their_toggles(predictive):
    design = mapped(Counter(), predictive)
    circuit = Circuit(design, predictive)
    run = circuit.run({"en": bits([1] * 33, 1), "rst": bits([0] * 33, 1)})
    assert words(run.outputs["q"]) == [k % 16 for k in range(33)]
    assert run.cycles == 32
    assert run.toggles[circuit.outputs["q"]].tolist() == [32, 16, 8, 4]
    assert run.toggles[circuit.netlists["dut"].inputs["clk"]].tolist() == [64]


def test_skipped_cycles_are_not_counted(predictive):
    circuit = Circuit(mapped(Counter(), predictive), predictive)
    run = circuit.run({"en": bits([1] * 20, 1), "rst": bits([1] * 4 + [0] * 16, 1)}, skip=10)
    assert words(run.outputs["q"])[4:] == list(range(16))
    assert run.cycles == 9
    assert run.toggles[circuit.outputs["q"][0]] == 9


def test_memory_against_a_list(predictive, rng):
    design = mapped(Lookup(), predictive)
    assert design.memory_bits == 1024
    stream = rng.integers(0, 64, 300).tolist()
    memory, total, read, want, writes = [0] * 64, 0, 0, [], 0
    for a in stream:
        want.append(read)
        if a & 1:  # the unit's bypass shows the new word
            memory[total] = a * 1021
            writes += 1
        read = memory[a]
        total = (total + a) % 64
    circuit = Circuit(design, predictive)
    run = circuit.run({"a": bits(stream, 6), "rst": bits([0] * 300, 1)})
    assert words(run.outputs["y"]) == want
    assert run.accesses.tolist() == [[299, writes - (stream[0] & 1)]]


def test_latches_return_the_word_of_the_same_cycle(predictive, rng):
    """The array has no bypass registers, and its simulation and the unit's RTL accumulate in back-to-back rows."""
    design = mapped(Few(), predictive)
    (macro,) = design.blocks[0].macros
    assert macro.transparent and macro.is_latches and design.flip_flops == 3 + 40 + 1
    rows, values = rng.integers(0, 2, 200).tolist(), rng.integers(0, 1 << 30, 200).tolist()
    memory, want, previous = [0] * 8, [0], None
    for row, value in zip(rows, values, strict=True):
        if previous:
            memory[previous[0]] += previous[1]
        previous = (row, value)
        want.append(memory[row])
    run = Circuit(design, predictive).run({"to": bits(rows, 3), "a": bits(values, 40), "rst": bits([0] * 200, 1)})
    assert words(run.outputs["y"]) == want[:-1]


def test_memory_of_words_and_rows_that_are_not_there(predictive, rng):
    """Unwritten words do not change; addresses beyond the last row store nothing."""
    design = mapped(Halves(), predictive)
    assert design.memory_bits == 48 * 16
    to, mask, read = (rng.integers(0, most, 400).tolist() for most in (64, 4, 48))
    memory, want, row = [[0, 0] for _ in range(48)], [], [0, 0]
    for at, which, address in zip(to, mask, read, strict=True):
        want.append([row[0], row[1] >> 7])
        for k in range(2):
            if which >> k & 1 and at < 48:
                memory[at][k] = (at * 5 + k) % 256
        row = list(memory[address])
    run = Circuit(design, predictive).run(
        {"to": bits(to, 6), "mask": bits(mask, 2), "a": bits(read, 6), "rst": bits([0] * 400, 1)}
    )
    assert list(map(list, zip(words(run.outputs["y"]), words(run.outputs["top"]), strict=True))) == want


@pytest.fixture(scope="module")
def chains(predictive):
    """The chain as one block, and divided so that one block occurs three times."""
    flat = mapped(Chain(), predictive, "chain")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(synth.area, "partition", functools.partial(partition, flat_bytes=0, min_bytes=0))
        divided = mapped(Chain(), predictive, "chain")
    return Circuit(flat, predictive), Circuit(divided, predictive)


def test_blocks_in_blocks_behave_as_the_whole(chains, rng):
    flat, divided = chains
    assert len(flat.instances) == 1 and len(divided.instances) == 4
    stimulus = {"a": bits(rng.integers(0, 256, 200), 8), "rst": bits([0] * 200, 1)}
    one, other = flat.run(stimulus), divided.run(stimulus)
    for name in one.outputs:
        assert np.array_equal(one.outputs[name], other.outputs[name]), name
        assert one.toggles[flat.outputs[name]].tolist() == other.toggles[divided.outputs[name]].tolist()


def test_loop_through_blocks_raises(predictive, monkeypatch):
    """The test connects the first stage's parity to its own input, because Amaranth makes no loops."""
    monkeypatch.setattr(synth.area, "partition", functools.partial(partition, flat_bytes=0, min_bytes=0))
    design = mapped(Chain(), predictive, "chain")
    stage = next(cell for cell in design.mapped["chain"].module["cells"].values() if "p" in cell["connections"])
    stage["connections"]["a"][0] = stage["connections"]["p"][0]
    with pytest.raises(ValueError, match="unit chain: logic must be acyclic, got a combinational loop"):
        Circuit(design, predictive)


def test_rejects_other_clocks_and_other_ports(predictive, chains):
    with pytest.raises(ValueError, match="clock must be the port 'clk' or a gated clock, got another net"):
        Circuit(mapped(Gated(), predictive), predictive)
    with pytest.raises(ValueError, match=r"ports of stimulus must be \['a', 'rst'\], got \['a'\]"):
        chains[0].run({"a": bits([0], 8)})
    with pytest.raises(ValueError, match="width"):
        chains[0].run({"a": bits([0], 4), "rst": bits([0], 1)})
    with pytest.raises(ValueError, match="cycles of stimulus must be one number above 0"):
        chains[0].run({"a": bits([0, 0], 8), "rst": bits([0], 1)})
