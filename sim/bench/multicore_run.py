"""Programs on the cores of a simulated multi-core: independent layers, or steps that the cores share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from compiler.driver import Step
from hw.config import Config
from hw.core.dma import BURST
from hw.core.isa import Command
from hw.core.multicore import MultiCore
from sim.bench import build as builds
from sim.bench.axi import FixedTiming, Sparse
from sim.bench.axi_run import AxiRecord, Image, simulate
from sim.bench.core_run import BASES, LIMIT, CoreRun, Outcome, check_responses
from sim.bench.layer_run import LayerRun
from util.timing import MemoryTiming


@lru_cache(maxsize=2)
def _built(config: Config, settings: tuple[Any, ...]) -> builds.Build:
    """Build of a multi-core, cached as that of a core. The default tests simulate it for less time than it builds."""
    return builds.build(MultiCore(config), "multicore")


def _memories(
    multicore: MultiCore,
    data: Mapping[str, bytes | bytearray | Sparse],
    stall: float,
    timing: Mapping[str, MemoryTiming] | None,
) -> dict[str, Image]:
    """Memories of a multi-core by port; its device ports share one."""
    images = {
        side: Image(
            data[side],
            start=base,
            timing=(timing or {}).get(side, FixedTiming(latency=12)),
            stall=stall,
            longest=BURST,
            outstanding=64 * multicore.cores,
        )
        for side, base in BASES.items()
    }
    return {**dict.fromkeys(multicore.device_ports, images["device"]), "host": images["host"]}


def _by_side(record: AxiRecord) -> AxiRecord:
    """The record of a multi-core with its images by side."""
    return replace(record, images={"device": record.images["device0"], "host": record.images["host"]})


class MultiCoreRun:
    """`config.cores` cores that work on steps together: core 0 clusters and selects for all of them.

    Parameters
    ----------
    config : sizes of a core, and number of cores
    device, host, settings, limit : as of `CoreRun`
    """

    def __init__(
        self,
        config: Config,
        device: bytearray | Sparse,
        host: bytearray | Sparse,
        settings: Mapping[str, int],
        limit: int = LIMIT,
    ):
        self.multicore = MultiCore(config)
        self.cores = [
            CoreRun(self.multicore.core, device, host, {**settings, "use_shared": int(k > 0)}, limit=limit, number=k)
            for k in range(config.cores)
        ]
        self.limit = limit
        self.script: list[Step] = [["parallel", *(list(core.script) for core in self.cores)]]
        self.ends = [len(core.script) for core in self.cores]  # of the steps of each core that `script` has
        self.runs: list[list[tuple[int, int]]] = []  # core, and number of its program

    def put(self, address: int, program: bytes | Sequence[Command]) -> None:
        """Store a program (commands or bytes) in the device memory at word `address`."""
        self.cores[0].put(address, program)

    def run(self, *programs: tuple[int, int]) -> None:
        """Start programs (word address, number of commands) on cores 0, 1, .. and wait until all of them end."""
        for core, (address, commands) in zip(self.cores, programs, strict=False):
            core.run(address, commands)
        self.script.append(["parallel", *(core.script[end:] for core, end in zip(self.cores, self.ends, strict=True))])
        self.ends = [len(core.script) for core in self.cores]
        self.runs.append([(k, len(self.cores[k].runs) - 1) for k in range(len(programs))])

    def simulate(
        self, *, stall: float = 0.0, timing: Mapping[str, MemoryTiming] | None = None, **options: Any
    ) -> tuple[list[list[Outcome]], AxiRecord]:
        """Run everything; returns the outcomes of each `run`, and the record with the images by side."""
        first = self.cores[0]
        data = {side: getattr(first, side) for side in BASES}
        memories = _memories(self.multicore, data, stall, timing)
        record = simulate(
            self.multicore,
            "multicore",
            memories,
            script=self.script,
            lite="registers",
            stall=stall,
            timeout_cycles=(len(self.runs) + 1) * (self.limit + 1000),
            made=_built(self.multicore.config, builds.build_settings()),
            explain=self._outcomes,
            **options,
        )
        record, outcomes = _by_side(record), self._outcomes(record.answers)
        return [[outcomes[core][number] for core, number in started] for started in self.runs], record

    def _outcomes(self, answers: Sequence[Any]) -> list[list[Outcome]]:
        """Outcomes of the programs of each core, from the answers of the script."""
        outcomes = []
        for k, core in enumerate(self.cores):
            own = [answer for step in answers for answer in step[k]]
            check_responses(core.script, own)
            outcomes.append(core.outcomes(own))
        return outcomes


def check(
    runs: Sequence[LayerRun], *, stall: float = 0.0, timing: Mapping[str, MemoryTiming] | None = None, **options: Any
) -> AxiRecord:
    """Run the programs of run k on core k, verify all outputs, and return the record.

    Raises AssertionError when a program fails or an output differs from the golden model.
    """
    multicore = MultiCore(runs[0].config.replace(cores=len(runs)))
    data = {side: b"".join(bytes(getattr(run.run_on, side)) for run in runs) for side in BASES}
    memories = _memories(multicore, data, stall, timing)
    cores = [run.run_on for run in runs]
    record = simulate(
        multicore,
        "multicore",
        memories,
        script=[["parallel", *(core.script for core in cores)]],
        lite="registers",
        stall=stall,
        timeout_cycles=max((len(core.runs) + 1) * (core.limit + 1000) for core in cores),
        made=_built(multicore.config, builds.build_settings()),
        explain=lambda answers: [core.outcomes(answer) for core, answer in zip(cores, answers[0], strict=True)],
        **options,
    )
    record, offset = _by_side(record), 0
    for run, answers in zip(runs, record.answers[0], strict=True):
        size = len(run.run_on.device)
        run.verify(run.run_on.outcomes(answers), record.images["device"][offset : offset + size])
        offset += size
    return record
