"""Several cores on one memory port and one host link: every output of every core, and fair arbitration."""

import re

import numpy as np
import pytest

from hw.config import Config
from hw.core.multicore import MultiCore
from hw.emit import to_rtlil
from sim.bench.layer_run import LayerRun, frames
from sim.bench.multicore_run import check

PAPER_CORES = Config.preset("paper").cores
TINY = Config.preset("tiny")


def layers(count, seeds, steps):
    """A layer for each core, with its own region of the memories."""
    runs = []
    for k, seed in zip(range(count), seeds, strict=True):
        run = LayerRun(
            "tiny",
            np.random.default_rng(seed),
            hamming_threshold=4,
            max_resident_tokens=4,
            device_bytes=1 << 18,
            number=k,
        )
        for x in frames(run, steps, 2):
            run.step(x)
        runs.append(run)
    return runs


@pytest.mark.parametrize("stall", [0.0, 0.2])
def test_cores_of_the_preset_run_different_layers(stall, rng, seed):
    """All outputs of all cores match the golden layers; the protocol checker observes all ports."""
    runs = layers(TINY.cores, rng.integers(0, 1 << 30, TINY.cores).tolist(), 2)
    record = check(runs, stall=stall, seed=seed)
    for port in ("device0", "device1"):
        assert record.traffic[port]["beats"]["read"] and record.traffic[port]["beats"]["write"]


@pytest.mark.heavy
@pytest.mark.parametrize("stall", [0.0, 0.2])
def test_as_many_cores_as_the_paper_has(stall, rng, seed):
    """Eight different layers at the same time: every output of every core; the checker observes all ports."""
    runs = layers(PAPER_CORES, rng.integers(0, 1 << 30, PAPER_CORES).tolist(), 6)
    record = check(runs, stall=stall, seed=seed)
    assert all(record.traffic[side]["beats"]["read"] for side in record.traffic)
    print({side: record.traffic[side]["most"] for side in record.traffic}, record.cycles)


@pytest.mark.heavy
def test_arbitration_is_fair(seed):
    """With equal work, the cores' cycles of a step differ by less than 10 %, and a step on eight cores takes less than
    eight times the cycles of one core."""
    single, parallel = layers(1, [seed], 4), layers(PAPER_CORES, [seed] * PAPER_CORES, 4)
    single[0].check(seed=seed)
    check(parallel, seed=seed)
    for step in single[0].steps:
        cycles = [run.outcomes[step].cycles for run in parallel]
        single_cycles = single[0].outcomes[step].cycles
        print(f"one core {single_cycles}, eight cores {min(cycles)} to {max(cycles)}")
        assert max(cycles) < 1.1 * min(cycles)
        assert max(cycles) < PAPER_CORES * single_cycles


def test_verilog_contains_the_core_once():
    """The number of cores sets the instances and the widths of the ports, not the number of core modules."""
    assert len(MultiCore.from_config(TINY.replace(cores=1)).irq) == 1
    cores = 3
    component = MultiCore.from_config(TINY.replace(cores=cores))
    text = to_rtlil(component, "multicore")
    assert len(re.findall(r"^module \\core$", text, flags=re.M)) == 1
    assert len(re.findall(r"^\s+cell \\core \\core\d+$", text, flags=re.M)) == cores
    assert len(component.irq) == cores and component.timing["register_stride_bytes"] == component.stride


def test_rejects_zero_cores():
    with pytest.raises(ValueError, match="cores"):
        TINY.replace(cores=0)
