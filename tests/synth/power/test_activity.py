"""Switching activity of the mapped HCU under stimuli of its RTL."""

import numpy as np
import pytest

from hw import registry
from hw.arith.dot import DotCore, DotTree
from hw.config import Config
from sim.bench.payload import pack
from sim.bench.run import MEMORY_STREAMS
from synth.area import area
from synth.power.activity import guessed, measure
from synth.power.circuit import Circuit
from synth.power.stimulus import stimulus
from synth.power.streams import IDLE_CYCLES

TINY = Config.preset("tiny")


@pytest.fixture(scope="module")
def hcu():
    return registry.unit("hcu").build(TINY)


@pytest.fixture
def circuit(predictive):
    return Circuit(area("hcu", TINY, predictive), predictive)


def test_the_netlist_answers_as_the_rtl_and_idles_when_nothing_comes(hcu, circuit):
    idle = measure(circuit, hcu, stimulus(hcu, "idle"))
    busy = measure(circuit, hcu, stimulus(hcu, "random", beats=60))
    assert idle.cycles >= IDLE_CYCLES - 4
    assert idle.toggles["hcu"].sum() < busy.toggles["hcu"].sum()
    assert (busy.toggles["hcu"][2:] <= 2).all()


def test_wrong_netlist_raises(hcu, circuit):
    gates = circuit._gate_arrays
    gates[4][:] = np.roll(gates[4], 1)  # every gate gets its neighbour's function
    with pytest.raises(ArithmeticError, match="differs from the RTL's in cycle"):
        measure(circuit, hcu, stimulus(hcu, "random", beats=60))


def test_guess_is_the_same_for_every_net(circuit):
    rates = guessed(circuit, 0.15).toggles["hcu"]
    gated_clocks = sum(len(circuit.netlists[instance.block].enables) for instance in circuit.instances)
    assert set(rates) == {0.15, 2.0} and (rates == 2.0).sum() == 1 + gated_clocks > 1


def test_keys_reach_the_inputs(hcu, rng):
    keys = rng.standard_normal((30, 2, 64)).astype("bfloat16")
    keys_case = stimulus(hcu, "video", keys=keys)
    assert keys_case.outputs == {"o": 30} and len(set(keys_case.inputs["i"]["hash"].tolist())) > 10
    tree = DotTree(inputs=16)
    pieces = stimulus(tree, "video", keys=keys, beats=20).inputs["i"]["a"]
    assert np.array_equal(pieces[:8].ravel(), keys[0].ravel().view(np.uint16))
    assert np.array_equal(pieces[8:16].ravel(), keys[1].ravel().view(np.uint16))
    with pytest.raises(ValueError, match="dimension of keys must be at least 16, got 8"):
        stimulus(tree, "video", keys=keys[:, 0, :8])


UNITS = [name for name in registry.UNITS if name not in ("core", "dma", "multicore")]


@pytest.mark.parametrize("unit", UNITS)
def test_every_stimulus_fits_the_ports_of_its_unit(unit, rng):
    component = registry.unit(unit).build(TINY)
    streams = {name: member for name, member in component.signature.members.items() if member.is_signature}
    keys = rng.standard_normal((40, 2, 64)).astype("bfloat16")
    for name, beats in (("idle", 0), ("random", 40), ("keys", 40)):
        case = stimulus(component, name, keys=keys, beats=40)
        served = () if case.memory is None else MEMORY_STREAMS
        assert streams.keys() == {*case.inputs, *case.outputs, *case.echo, *served}
        for port, columns in case.inputs.items():
            words = pack(getattr(component, port).payload.shape(), columns)
            assert bool(len(words)) == bool(beats)
        assert all(
            len(next(iter(case.answers[port].values()))) == n
            for port, n in case.outputs.items()
            if port in case.answers
        )


@pytest.mark.heavy
@pytest.mark.parametrize("unit", UNITS)
def test_every_unit_works_on_its_stimuli(unit, predictive, rng):
    """RTL and netlist return every expected beat and toggle more than in an idle run."""
    component = registry.unit(unit).build(TINY)
    circuit = Circuit(area(unit, TINY, predictive, point="balanced"), predictive)
    keys = rng.standard_normal((40, 2, 64)).astype("bfloat16")
    toggles = []
    for case in (
        stimulus(component, "idle"),
        *(stimulus(component, n, keys=keys, beats=40) for n in ("random", "keys")),
    ):
        activity = measure(circuit, component, case)
        toggles.append(sum(nets.sum() for nets in activity.toggles.values()))
    assert toggles[0] < min(toggles[1:])


def test_rejects_units_without_stimulus(hcu):
    with pytest.raises(ValueError, match=r"unit must be one of .* to have a stimulus, got DotCore"):
        stimulus(DotCore(inputs=4, align_bits=16, registers=()), "idle")
    with pytest.raises(ValueError, match="stimulus must be idle, random or have keys, got 'video' without keys"):
        stimulus(hcu, "video")
