"""The claims of the units are proved, and a unit with a fault fails its proof."""

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

SUBMODULES = (formal.FIFO, formal.PIPELINE, formal.FORK)


@pytest.mark.parametrize("claim", SUBMODULES, ids=lambda claim: claim.name)
def test_queue_claims_are_proved(claim):
    proof = prove(claim.build(), claim.name)
    assert proof.kind == "induction" and proof.covers and proof.claim


@pytest.mark.heavy
@pytest.mark.parametrize("name", UNITS)
def test_every_claim_of_unit_is_proved(name):
    calls = []
    proofs = list(prove_unit(name, progress=lambda *step: calls.append(step)))
    claims = formal.claims(name)
    assert [proof.name for proof in proofs] == [f"{name}_{claim.name}" for claim in claims]
    assert [proof.depth for proof in proofs] == [claim.depth for claim in claims]
    assert all(proof.covers and proof.claim for proof in proofs)
    assert calls[-1] == (name, len(claims), len(claims))


def test_claim_names_are_unique():
    for name in UNITS:
        names = [claim.name for claim in formal.claims(name)]
        assert names and len({*names}) == len(names)
        assert (names[0] == "streams") == (name not in formal.COMPOSED)
    with pytest.raises(ValueError, match=r"unit must be one of .*hcu.*, got 'hcux'"):
        formal.claims("hcux")


class Register(wiring.Component):
    """A register for one beat, with an optional fault."""

    def __init__(self, fault=""):
        self.fault = fault
        super().__init__({"i": In(stream.Signature(2)), "o": Out(stream.Signature(2))})

    def elaborate(self, platform):
        m = Module()
        word = Signal(2)
        m.d.comb += [self.i.ready.eq(~self.o.valid | self.o.ready), self.o.payload.eq(word)]
        with m.If(self.i.ready | (self.fault == "overwrites")):
            m.d.sync += [self.o.valid.eq(self.i.valid), word.eq(self.i.payload)]
        if self.fault == "waits for ready":
            m.d.comb += self.o.payload.eq(Mux(self.o.ready, word, 0))
        if self.fault == "repeats":
            second = Signal()
            m.d.sync += second.eq(self.o.valid & self.o.ready & ~second)
            with m.If(self.o.valid & self.o.ready & ~second):
                m.d.sync += self.o.valid.eq(1)
        return m


def test_register_fulfils_stream_contract_and_queue():
    assert prove(StreamContract(Register()), "register").covers == {"o": 2}
    assert prove(QueueSpec(Register(), depth=1, patience=1), "register").kind == "induction"
    no_loops(Register(), "register")


@pytest.mark.parametrize(
    "fault, spec", [("overwrites", StreamContract), ("repeats", lambda r: QueueSpec(r, depth=1, patience=1))]
)
def test_register_with_fault_fails_proof(fault, spec, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FormalError, match="broken: a property fails in cycle"):
        prove(spec(Register(fault)), "broken")


def test_payload_that_depends_on_ready_raises_error():
    with pytest.raises(FormalError, match="broken: o__payload depends on o__ready within a cycle"):
        no_loops(Register("waits for ready"), "broken")


class _TrackerWithoutErrors(Tracker):
    """Reports every tag without an error."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.o.payload.error.eq(0)
        return m


def test_tracker_without_errors_fails_proof(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(kvmu_proofs, "Tracker", _TrackerWithoutErrors)
    with pytest.raises(FormalError, match="a property fails in cycle"):
        prove(kvmu_proofs.TrackerSpec(tags=2, count_bits=2), "broken")


class _SequencerWithoutEvent(Sequencer):
    """The vector queue ignores the event that operands have been read."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.queues[ExecUnit.VECTOR].events.eq(self.events & ~(1 << SyncEvent.OPERANDS))
        return m


def test_sequencer_that_ignores_event_fails_proof(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sequencer_proofs, "Sequencer", _SequencerWithoutEvent)
    with pytest.raises(FormalError, match="a property fails in cycle"):
        prove(sequencer_proofs.SequencerSpec(ExecUnit.VECTOR), "broken", depth=8, any_memory=True)


class _EarlyWriteEngine(WriteEngine):
    """Signals `done` when any burst of the job is acknowledged."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.done.eq(self.port.response.valid)
        return m


def test_writer_with_early_done_fails_proof(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dma_proofs, "WriteEngine", _EarlyWriteEngine)
    with pytest.raises(FormalError, match="a property fails in cycle"):
        prove(dma_proofs.small_writer(), "broken", depth=8)


class _CoarseWtu(WTU):
    """Never refines a bucket."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += m.submodules.selector.refine.eq(0)
        return m


@pytest.mark.heavy
def test_too_large_selection_fails_proof(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(wtu_proofs, "WTU", _CoarseWtu)
    depth = wtu_proofs.CYCLES[WtuDesign.HISTOGRAM] + 1
    with pytest.raises(FormalError, match="a property fails in cycle"):
        prove(wtu_proofs.small(WtuDesign.HISTOGRAM, SelectionMode.BUDGET), "broken", depth=depth, unroll=True)
