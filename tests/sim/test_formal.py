"""The prover says true of what is true, false of what is false, and notices what never happens."""

import pytest
from amaranth import Module, Signal
from amaranth.hdl import Assert
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from sim import formal


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
    with pytest.raises(ValueError, match="depth = 0: must be at least 1"):
        formal.prove(Steps(10, 8), "steps", depth=0)


def test_what_cannot_happen_is_noticed():
    with pytest.raises(formal.FormalError, match="cover_there is not reached within 6 cycles"):
        formal.prove(Steps(11, 14), "steps", cover_depth=6)
