"""Proofs of the KVMU and its submodules to the depth of `PROOFS`; a broken submodule fails its proof."""

import pytest
from amaranth.lib import wiring

from hw.dre.kvmu.free_pages import FreePages
from hw.dre.kvmu.page_walker import PageWalker
from sim.formal.engine import FormalError, prove
from sim.formal.specifications import kvmu as kvmu_proofs

SLOW = kvmu_proofs.SLOW
NAMES = [pytest.param(n, marks=[pytest.mark.heavy] if n in SLOW else []) for n in kvmu_proofs.PROOFS]


@pytest.mark.parametrize("name", NAMES)
def test_specification_is_proved(name):
    build, depth = kvmu_proofs.PROOFS[name]
    proof = prove(build(), name, depth=depth, timeout_s=1500)
    assert proof.depth == depth and proof.covers


def test_bounded_proof_reports_depth_and_covers():
    proof = prove(kvmu_proofs.PageWalkerSpec(), "page_walker", depth=20)
    assert (proof.depth, proof.covers) == (20, {"three": 18, "none": 3})


class _RepeatingWalker(PageWalker):
    """A walker that reports one page more than the chain has."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.o.payload.count.eq(2)
        return m


class _GenerousFreePages(FreePages):
    """Free pages that offer a page when none is free."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.call.available.eq(1)
        return m


@pytest.mark.parametrize("name, broken", [("PageWalker", _RepeatingWalker), ("FreePages", _GenerousFreePages)])
def test_broken_submodule_fails_its_proof(name, broken, monkeypatch, tmp_path):
    assert issubclass(broken, wiring.Component)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(kvmu_proofs, name, broken)
    spec = {"PageWalker": kvmu_proofs.PageWalkerSpec, "FreePages": kvmu_proofs.FreePagesSpec}[name]
    with pytest.raises(FormalError, match="a property fails in cycle"):
        prove(spec(), "broken", depth=20)
