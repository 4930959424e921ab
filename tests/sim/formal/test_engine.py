"""The prover accepts true properties, rejects false ones, and reports unreachable covers."""

from types import SimpleNamespace

import pytest
from amaranth import Module, Signal
from amaranth.hdl import Assert
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from sim.formal import engine as formal


class Steps(wiring.Component):
    """A counter that increments by two; claims that it never reaches `never` and can reach `reach`."""

    def __init__(self, never, reach):
        self.never, self.reach = never, reach
        super().__init__({"go": In(1), "kind": In(2), "cover_there": Out(1)})

    def elaborate(self, platform):
        m = Module()
        count, odd = Signal(4), Signal()
        with m.If(self.go):
            m.d.sync += [count.eq(count + (self.kind == 1) * 2 + odd), odd.eq(odd & (count == 15))]
        m.d.comb += [Assert(count != self.never), self.cover_there.eq(count == self.reach)]
        return m


def test_true_property_is_proved_for_all_cycles():
    calls = []
    proof = formal.prove(Steps(9, 8), "steps", progress=lambda *step: calls.append(step))
    assert (proof.depth, proof.covers) == (None, {"there": 4})
    assert calls[-1] == ("steps", 3, 3)


def test_false_property_writes_counterexample(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(formal.FormalError, match=r"steps: a property fails in cycle 5 .*steps.txt"):
        formal.prove(Steps(10, 8), "steps")
    lines = (tmp_path / "build/formal/steps.txt").read_text().splitlines()
    assert len(lines) == 6 and all("go=1 kind=1" in line for line in lines[:5])


def test_bounded_proof_of_false_property_fails():
    with pytest.raises(formal.FormalError, match="fails in cycle 5"):
        formal.prove(Steps(10, 8), "steps", depth=7)
    with pytest.raises(ValueError, match="depth must be at least 1, got 0"):
        formal.prove(Steps(10, 8), "steps", depth=0)


def test_unreachable_cover_raises_error():
    with pytest.raises(formal.FormalError, match="cover_there is not reached within 6 cycles"):
        formal.prove(Steps(11, 14), "steps", cover_depth=6)


def test_k_induction_and_unrolled_proof():
    """k-induction alone cannot decide that the register `odd` is never set."""
    assert formal.prove(Steps(9, 8), "steps", depth=6, unroll=True).depth == 6
    with pytest.raises(formal.FormalError, match="a property fails in cycle 5"):
        formal.prove(Steps(10, 8), "steps", depth=7, unroll=True)
    with pytest.raises(formal.FormalError, match="is not decided"):
        formal.prove(Steps(9, 8), "steps", steps=2)


def test_prove_unit_runs_all_or_quick_claims(monkeypatch):
    """All claims, or only the quick ones; a stream contract also requires that no combinational loop exists."""
    loop_checks, calls = [], []
    options = {"build": lambda: contract, "depth": 1, "steps": None, "unroll": False, "any_memory": False}
    slow, quick = (SimpleNamespace(name=name, slow=name == "slow", **options) for name in ("slow", "quick"))
    contract = object.__new__(formal.StreamContract)
    contract.unit = "the unit"
    monkeypatch.setattr(formal, "claims", lambda name: (slow, quick))
    monkeypatch.setattr(formal, "no_loops", lambda unit, name, tool: loop_checks.append(unit))
    monkeypatch.setattr(formal, "prove", lambda spec, name, **options: name)
    assert list(formal.prove_unit("part", quick=True)) == ["part_quick"]
    assert list(formal.prove_unit("part", progress=lambda *step: calls.append(step))) == ["part_slow", "part_quick"]
    assert loop_checks == ["the unit"] * 3 and calls == [("part: slow", 0, 2), ("part: quick", 1, 2), ("part", 2, 2)]
