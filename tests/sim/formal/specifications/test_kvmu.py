"""The KVMU and its parts proved, for all time or as far as `PROOFS` says; a broken part is found out."""

import pytest
from amaranth.lib import wiring

from hw.dre.kvmu.age_list import AgeList
from hw.dre.kvmu.free_list import FreeList
from sim.formal.engine import FormalError, prove
from sim.formal.specifications import kvmu as kvmu_proofs

NAMES = [pytest.param(n, marks=[pytest.mark.heavy] if n.startswith("kvmu") else []) for n in kvmu_proofs.PROOFS]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_claimed_holds(name):
    build, depth = kvmu_proofs.PROOFS[name]
    proof = prove(build(), name, depth=depth, timeout_s=1500)
    assert proof.depth == depth and proof.covers


def test_a_bounded_proof_says_how_far_it_goes():
    proof = prove(kvmu_proofs.FreeListSpec(4), "free_list", depth=6)
    assert (proof.depth, proof.covers) == (6, {"exhausted": 4, "used_again": 5})


class _Forgetful(FreeList):
    """A list that starts over when it is exhausted."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        with m.If(self.never_used == self.size):
            m.d.sync += self.never_used.eq(0)
        return m


class _Unsorted(AgeList):
    """A list whose oldest member is whoever left a place."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        with m.If(self.remove):
            m.d.sync += self.oldest.eq(self.row.newer)
        return m


@pytest.mark.parametrize("name, broken", [("FreeList", _Forgetful), ("AgeList", _Unsorted)])
def test_a_broken_part_is_found_out(name, broken, monkeypatch, tmp_path):
    assert issubclass(broken, wiring.Component)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(kvmu_proofs, name, broken)
    spec = {"FreeList": "free_list", "AgeList": "age_list"}[name]
    with pytest.raises(FormalError, match="a property fails in cycle"):
        prove(kvmu_proofs.PROOFS[spec][0](), "broken")
