"""Concurrent decoder layers on the cores of a simulated multi-core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hw.core.dma import BURST
from hw.core.multicore import MultiCore
from sim.bench.axi import FixedTiming
from sim.bench.axi_run import AxiRecord, Image, simulate
from sim.bench.core_run import BASES
from sim.bench.layer_run import LayerRun
from util.timing import MemoryTiming


def check(
    runs: Sequence[LayerRun], *, stall: float = 0.0, timing: Mapping[str, MemoryTiming] | None = None, **options: Any
) -> AxiRecord:
    """Run the programs of run k on core k, verify all outputs, and return the record.

    Raises AssertionError when a program fails or an output differs from the golden model.
    """
    memories = {
        side: Image(
            b"".join(bytes(getattr(run.run_on, side)) for run in runs),
            start=base,
            timing=(timing or {}).get(side, FixedTiming(latency=12)),
            stall=stall,
            longest=BURST,
            outstanding=64 * len(runs),
        )
        for side, base in BASES.items()
    }
    cores = [run.run_on for run in runs]
    record = simulate(
        MultiCore(runs[0].config.replace(cores=len(runs))),
        "multicore",
        memories,
        script=[["parallel", *(core.script for core in cores)]],
        lite="registers",
        stall=stall,
        timeout_cycles=max((len(core.runs) + 1) * (core.limit + 1000) for core in cores),
        explain=lambda answers: [core.outcomes(answer) for core, answer in zip(cores, answers[0], strict=True)],
        **options,
    )
    offset = 0
    for run, answers in zip(runs, record.answers[0], strict=True):
        size = len(run.run_on.device)
        run.verify(run.run_on.outcomes(answers), record.images["device"][offset : offset + size])
        offset += size
    return record
