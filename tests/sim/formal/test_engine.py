"""The prover says true of what is true, false of what is false, and notices what never happens."""

from types import SimpleNamespace

import pytest
from amaranth import Module, Signal
from amaranth.hdl import Assert
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from sim.formal import engine as formal


class Steps(wiring.Component):
    """A counter that goes up by two; claimed never to reach `never`, and to be able to reach `reach`."""

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


def test_what_holds_is_proved_for_all_time():
    seen = []
    proof = formal.prove(Steps(9, 8), "steps", progress=lambda *step: seen.append(step))
    assert (proof.depth, proof.covers) == (None, {"there": 4})
    assert seen[-1] == ("steps", 3, 3)


def test_what_fails_gives_the_inputs_that_break_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(formal.FormalError, match=r"steps: a property fails in cycle 5 .*steps.txt"):
        formal.prove(Steps(10, 8), "steps")
    lines = (tmp_path / "build/formal/steps.txt").read_text().splitlines()
    assert len(lines) == 6 and all("go=1 kind=1" in line for line in lines[:5])


def test_a_bounded_proof_fails_for_what_is_found():
    with pytest.raises(formal.FormalError, match="fails in cycle 5"):
        formal.prove(Steps(10, 8), "steps", depth=7)
    with pytest.raises(ValueError, match="depth must be at least 1, got 0"):
        formal.prove(Steps(10, 8), "steps", depth=0)


def test_what_cannot_happen_is_noticed():
    with pytest.raises(formal.FormalError, match="cover_there is not reached within 6 cycles"):
        formal.prove(Steps(11, 14), "steps", cover_depth=6)


def test_induction_over_steps_and_a_few_cycles_at_once():
    """Induction alone does not know that the register that makes numbers odd is never set."""
    assert formal.prove(Steps(9, 8), "steps", depth=6, unroll=True).depth == 6
    with pytest.raises(formal.FormalError, match="a property fails in cycle 5"):
        formal.prove(Steps(10, 8), "steps", depth=7, unroll=True)
    with pytest.raises(formal.FormalError, match="is not decided"):
        formal.prove(Steps(9, 8), "steps", steps=2)


def test_claims_of_a_unit_with_a_loop_free_stream(monkeypatch):
    """All of them, or only those that are quick; a stream's contract also has no loops."""
    asked, told = [], []
    options = {"build": lambda: contract, "depth": 1, "steps": None, "unroll": False, "any_memory": False}
    slow, quick = (SimpleNamespace(name=name, slow=name == "slow", **options) for name in ("slow", "quick"))
    contract = object.__new__(formal.StreamContract)
    contract.unit = "the unit"
    monkeypatch.setattr(formal, "claims", lambda name: (slow, quick))
    monkeypatch.setattr(formal, "no_loops", lambda unit, name, tool: asked.append(unit))
    monkeypatch.setattr(formal, "prove", lambda spec, name, **options: name)
    assert list(formal.prove_unit("part", quick=True)) == ["part_quick"]
    assert list(formal.prove_unit("part", progress=lambda *step: told.append(step))) == ["part_slow", "part_quick"]
    assert asked == ["the unit"] * 3 and told == [("part: slow", 0, 2), ("part: quick", 1, 2), ("part", 2, 2)]
