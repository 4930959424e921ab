"""Barriers between the cores of a multi-core: waiting, release, and the stop of one core."""

import numpy as np
import pytest

from hw.axi.ports import Cause
from hw.config import Config
from hw.core.barrier import Barrier
from hw.core.isa import Command, ExecUnit, SyncEvent, all_but, encode
from sim.bench.multicore_run import MultiCoreRun

TINY = Config.preset("tiny")
WORD = 2 * TINY.dpe_inputs
END = Command("END")
BARRIER = Command("BARRIER", {"cores": 2}, {SyncEvent.COPY: all_but()})


def copy(source: int, target: int, words: int = 1) -> Command:
    """A COPY that waits for the BARRIERs before it."""
    fields = {"source": source, "target": target, "words": words}
    return Command("COPY", fields, {SyncEvent.SYNC: all_but()})


def run(*programs: list[Command], device: bytearray, **options):
    """Outcomes of the programs of the cores, and the device memory after them."""
    bench = MultiCoreRun(TINY.replace(cores=len(programs)), device, bytearray(WORD), {}, limit=20_000)
    for core, program in enumerate(programs):
        bench.put(1000 + 500 * core, encode(program))
    bench.run(*((1000 + 500 * core, len(program)) for core, program in enumerate(programs)))
    (outcomes,), record = bench.simulate(**options)
    return outcomes, bytes(record.images["device"])


@pytest.mark.parametrize("stall", [0.0, 0.3])
def test_cores_exchange_words(stall, rng, seed):
    """A word goes from core to core: a core copies it after the other one did, with a long copy before."""
    device = bytearray(rng.integers(256, size=4096 * WORD, dtype=np.uint8).tobytes())
    first, programs = bytes(device[:WORD]), [[], []]
    for turn in range(12):
        mine, other = programs[turn % 2], programs[1 - turn % 2]
        slow = [copy(200, 300, 40)] if rng.random() < 0.5 else []
        mine += [*slow, copy(turn, turn + 1), BARRIER]
        other += [BARRIER]
    outcomes, after = run(*([*program, END] for program in programs), device=device, stall=stall, seed=seed)
    assert [outcome.done for outcome in outcomes] == [True, True]
    assert after[12 * WORD : 13 * WORD] == first


def test_a_stopped_core_stops_the_others(rng, seed):
    """Core 1 copies from an address outside the memory; core 0 waits for it, and reports the barrier as the cause."""
    device = bytearray(4096 * WORD)
    outcomes, _ = run([BARRIER, END], [copy(5000, 0), BARRIER, END], device=device, seed=seed)
    assert [(outcome.failed, outcome.cause, outcome.source) for outcome in outcomes] == [
        (True, Cause.BARRIER, ExecUnit.SYNC),
        (True, Cause.REGION, ExecUnit.COPY),
    ]


def test_a_barrier_of_one_core(seed):
    """It waits for no other core."""
    barrier = Command("BARRIER", {"cores": 1})
    outcomes, _ = run([barrier, barrier, END], [END], device=bytearray(4096 * WORD), seed=seed)
    assert [outcome.done for outcome in outcomes] == [True, True]


@pytest.mark.parametrize("cores", [0, 65])
def test_rejects_a_bad_number_of_cores(cores):
    with pytest.raises(ValueError, match=f"cores must be 1 to 64, got {cores}"):
        Barrier(cores)
