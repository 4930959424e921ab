"""Proofs of the KVMU and its submodules to the depth of `PROOFS`; a broken submodule fails its proof."""

import pytest
from amaranth.lib import wiring

from hw.dre.kvmu.age_list import AgeList
from hw.dre.kvmu.free_list import FreeList
from sim.formal.engine import FormalError, prove
from sim.formal.specifications import kvmu as kvmu_proofs

NAMES = [pytest.param(n, marks=[pytest.mark.heavy] if n.startswith("kvmu") else []) for n in kvmu_proofs.PROOFS]


@pytest.mark.parametrize("name", NAMES)
def test_specification_is_proved(name):
    build, depth = kvmu_proofs.PROOFS[name]
    proof = prove(build(), name, depth=depth, timeout_s=1500)
    assert proof.depth == depth and proof.covers


def test_bounded_proof_reports_depth_and_covers():
    proof = prove(kvmu_proofs.FreeListSpec(4), "free_list", depth=6)
    assert (proof.depth, proof.covers) == (6, {"exhausted": 4, "reused": 5})


class _RestartingFreeList(FreeList):
    """A free list that offers number 0 again when it is exhausted."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        with m.If(self.never_used == self.size):
            m.d.sync += self.never_used.eq(0)
        return m


class _UnsortedAgeList(AgeList):
    """An age list whose oldest member becomes the neighbour of each removed member."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        with m.If(self.remove):
            m.d.sync += self.oldest.eq(self.row.newer)
        return m


@pytest.mark.parametrize("name, broken", [("FreeList", _RestartingFreeList), ("AgeList", _UnsortedAgeList)])
def test_broken_submodule_fails_its_proof(name, broken, monkeypatch, tmp_path):
    assert issubclass(broken, wiring.Component)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(kvmu_proofs, name, broken)
    spec = {"FreeList": "free_list", "AgeList": "age_list"}[name]
    with pytest.raises(FormalError, match="a property fails in cycle"):
        prove(kvmu_proofs.PROOFS[spec][0](), "broken")
