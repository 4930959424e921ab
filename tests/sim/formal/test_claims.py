"""The claims of the units are proved, and a unit with a flaw fails its proof."""

import pytest
from amaranth import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.axi.engines import WriteEngine
from hw.core.isa import ExecUnit, SyncEvent
from hw.core.sequencer import Sequencer
from hw.dre.transfer import Tracker
from hw.dre.wtu.command import SelectionMode
from hw.dre.wtu.wtu import WTU, WtuDesign
from hw.registry import UNITS
from sim.formal import claims as formal
from sim.formal.engine import FormalError, no_loops, prove, prove_unit
from sim.formal.specifications import dma as dma_proofs
from sim.formal.specifications import kvmu as kvmu_proofs
from sim.formal.specifications import sequencer as sequencer_proofs
from sim.formal.specifications import wtu as wtu_proofs
from sim.formal.specifications.common import QueueSpec, StreamContract

PARTS = (formal.FIFO, formal.PIPELINE, formal.FORK)


@pytest.mark.parametrize("claim", PARTS, ids=lambda claim: claim.name)
def test_queues_lose_nothing(claim):
    proof = prove(claim.build(), claim.name)
    assert proof.kind == "induction" and proof.covers and proof.claim


@pytest.mark.heavy
@pytest.mark.parametrize("name", UNITS)
def test_every_unit(name):
    seen = []
    proofs = list(prove_unit(name, progress=lambda *step: seen.append(step)))
    claims = formal.claims(name)
    assert [proof.name for proof in proofs] == [f"{name}_{claim.name}" for claim in claims]
    assert [proof.depth for proof in proofs] == [claim.depth for claim in claims]
    assert all(proof.covers and proof.claim for proof in proofs)
    assert seen[-1] == (name, len(claims), len(claims))


def test_claim_names_are_unique():
    for name in UNITS:
        names = [claim.name for claim in formal.claims(name)]
        assert names and len({*names}) == len(names)
        assert (names[0] == "streams") == (name not in formal.COMPOSED)
    with pytest.raises(ValueError, match=r"unit must be one of .*hcu.*, got 'hcux'"):
        formal.claims("hcux")


class Register(wiring.Component):
    """One place for one beat, with a flaw of choice."""

    def __init__(self, flaw=""):
        self.flaw = flaw
        super().__init__({"i": In(stream.Signature(2)), "o": Out(stream.Signature(2))})

    def elaborate(self, platform):
        m = Module()
        word = Signal(2)
        m.d.comb += [self.i.ready.eq(~self.o.valid | self.o.ready), self.o.payload.eq(word)]
        with m.If(self.i.ready | (self.flaw == "impatient")):
            m.d.sync += [self.o.valid.eq(self.i.valid), word.eq(self.i.payload)]
        if self.flaw == "waits for ready":
            m.d.comb += self.o.payload.eq(Mux(self.o.ready, word, 0))
        if self.flaw == "stutters":
            again = Signal()
            m.d.sync += again.eq(self.o.valid & self.o.ready & ~again)
            with m.If(self.o.valid & self.o.ready & ~again):
                m.d.sync += self.o.valid.eq(1)
        return m


def test_the_stream_contract_and_the_queue_hold_of_a_register():
    assert prove(StreamContract(Register()), "register").covers == {"o": 2}
    assert prove(QueueSpec(Register(), places=1, patience=1), "register").kind == "induction"
    no_loops(Register(), "register")


@pytest.mark.parametrize(
    "flaw, spec", [("impatient", StreamContract), ("stutters", lambda r: QueueSpec(r, places=1, patience=1))]
)
def test_a_unit_that_breaks_its_word_is_found_out(flaw, spec, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FormalError, match="broken: a property fails in cycle"):
        prove(spec(Register(flaw)), "broken")


def test_a_payload_that_depends_on_ready_is_found_out():
    with pytest.raises(FormalError, match="broken: o__payload depends on o__ready within a cycle"):
        no_loops(Register("waits for ready"), "broken")


class _Silent(Tracker):
    """Reports a tag whose transfers failed as if all were well."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.o.payload.error.eq(0)
        return m


def test_a_tracker_that_keeps_quiet_is_found_out(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(kvmu_proofs, "Tracker", _Silent)
    with pytest.raises(FormalError, match="a property fails in cycle"):
        prove(kvmu_proofs.TrackerSpec(tags=2, count_bits=2), "broken")


class _Deaf(Sequencer):
    """Its vector commands do not hear that operands have been read."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.queues[ExecUnit.VECTOR].events.eq(self.events & ~(1 << SyncEvent.OPERANDS))
        return m


def test_a_sequencer_that_misses_an_event_is_found_out(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sequencer_proofs, "Sequencer", _Deaf)
    with pytest.raises(FormalError, match="a property fails in cycle"):
        prove(sequencer_proofs.SequencerSpec(ExecUnit.VECTOR), "broken", depth=8, any_memory=True)


class _Hasty(WriteEngine):
    """Says that a job is done when any of its bursts is acknowledged."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.done.eq(self.port.response.valid)
        return m


def test_a_writer_that_is_done_too_early_is_found_out(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dma_proofs, "WriteEngine", _Hasty)
    with pytest.raises(FormalError, match="a property fails in cycle"):
        prove(dma_proofs.small_writer(), "broken", depth=8)


class _Coarse(WTU):
    """Never divides a bucket again."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += m.submodules.selector.refine.eq(0)
        return m


@pytest.mark.heavy
def test_a_selection_that_is_too_large_is_found_out(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(wtu_proofs, "WTU", _Coarse)
    depth = wtu_proofs.CYCLES[WtuDesign.HISTOGRAM] + 1
    with pytest.raises(FormalError, match="a property fails in cycle"):
        prove(wtu_proofs.small(WtuDesign.HISTOGRAM, SelectionMode.BUDGET), "broken", depth=depth, unroll=True)
