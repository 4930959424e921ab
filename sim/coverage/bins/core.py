"""Bins of the units behind AXI."""

from __future__ import annotations

from collections.abc import Iterator

from hw.axi.ports import Cause
from hw.core.dma import BURST
from hw.core.isa import OPCODES
from sim.coverage.bins.cover import RESET, Cover, Met, Run

SIDES = ("device", "host")


def _dma(run: Run) -> Iterator[Met]:
    """Descriptor by descriptor; after a fault the last one that was answered is not known, so only the fault counts."""
    cause = Cause(run.status["stat_fault"] & 15)
    if cause is not Cause.NONE:
        yield "fault", cause.name, 0
        return
    columns = run.inputs["i_dma"]
    names = ("source_tier", "target_tier", "bytes")
    for source, target, size in zip(*(columns[name].tolist() for name in names), strict=True):
        words = size * 8 // run.component.word
        if not words:
            continue  # a copy of zero words is dropped
        length = "one word" if words == 1 else "one burst" if words <= BURST else "several bursts"
        yield f"{SIDES[source]} to {SIDES[target]}", length, 0


def _core(run: Run) -> Iterator[Met]:
    """Programs by their commands and ends, as `sim.bench.core_run` tells them in `more`."""
    for commands, outcome in run.more:
        if outcome.failed:
            yield "fault", outcome.cause.name, 0
        elif outcome.done:
            yield from (("command", name, 0) for name in commands)


def _multicore(run: Run) -> Iterator[Met]:
    """The cores whose programs all ended without a fault; `more` has the outcomes of each core."""
    if all(outcome.done and not outcome.failed for outcomes in run.more for outcome in outcomes):
        yield "programs", "complete on every core", 0


_LENGTHS = ("one word", "one burst", "several bursts")
COVERS = {
    "dma": Cover(
        {
            **{f"{source} to {target}": _LENGTHS for source in SIDES for target in SIDES},
            "fault": ("SLVERR", "DECERR", "REGION"),
            RESET[0]: RESET[1:],
        },
        _dma,
        ("none", "both"),  # a memory pauses all its channels
    ),
    "core": Cover(
        {
            "command": tuple(opcode.name for opcode in OPCODES),
            "fault": tuple(cause.name for cause in Cause if cause is not Cause.NONE),
            RESET[0]: RESET[1:],
        },
        _core,
        ("none", "both"),
    ),
    "multicore": Cover({"programs": ("complete on every core",)}, _multicore, ("none", "both")),
}
