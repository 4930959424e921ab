"""A decoder layer in the core's RTL with the memory timing of the system model: cycles of every step and unit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from golden import bf16
from sim.bench.axi_run import AxiRecord
from sim.bench.core_run import BASES
from sim.bench.layer_run import CASES, LayerRun
from sim.bench.layer_run import frames as frame_inputs
from sim.bench.timeline import ACTIVITY, Span, busy, chrome_trace, column, concurrency, picture, spans
from sw_model.cycles.core import CoreModel
from sw_model.cycles.step_data import StepData, record_steps
from sw_model.memory.live import DramTiming, PcieTiming
from sw_model.memory.live_drive import DriveTiming, PcieDriveTiming
from sw_model.memory.pcie import PcieLink
from sw_model.memory.ssd import load_ssd
from sw_model.systems import System, load_system, memory_model
from util import checks
from util.progress import Progress, no_progress
from util.timing import MemoryTiming

DRIVE = "bg6-like"
# preset -> hamming_threshold, max_resident_tokens; few resident tokens, so that short runs offload and fetch
SETTINGS = {"tiny": (4, 8), "small": (7, 16)}


def timings(system: System, drive_at: int) -> dict[str, MemoryTiming]:
    """Timing of the core's two ports: device memory, and host link. Host addresses from `drive_at` are on the drive."""
    core = system.core
    if core is None:
        raise ValueError(f"system must be of kind vrex, got {system.name!r}, which has no core")
    host: MemoryTiming
    host = link = PcieTiming(PcieLink(system.link.generation, system.link.lanes), core.clock_mhz)
    if system.link.behind == "ssd":
        host = PcieDriveTiming(link, DriveTiming(load_ssd(DRIVE)), drive_at)
    return {"device": DramTiming(memory_model(system.memory), core.clock_mhz), "host": host}


@dataclass(frozen=True)
class RtlRun:
    """Result of a run. Trace and spans are those of the last step and start at cycle 0.

    steps : for every step its tokens, clusters before the step, attended past tokens (mean of the heads), fetched head
        pages of all layers, simulated cycles, and cycles that the model predicts
    """

    preset: str
    system: str
    clock_mhz: float
    steps: tuple[dict[str, float], ...]
    spans: tuple[Span, ...]
    trace: np.ndarray

    @property
    def cycles(self) -> int:
        """Cycles from the first command of the last step to its end."""
        return max(span.end for span in self.spans)

    def units(self) -> dict[str, dict[str, float]]:
        """Busy cycles and their share: cycles with a command of a unit, cycles with a beat of an engine or port."""
        cycles = {unit.name: float(count) for unit, count in busy(self.spans).items()}
        cycles |= {name: float(column(self.trace, name).sum()) for name in ACTIVITY}
        return {name: {"cycles": count, "share": count / self.cycles} for name, count in cycles.items()}

    def commands(self) -> dict[str, dict[str, float]]:
        """For every kind of command: number, sum and mean of the cycles from start to end."""
        kinds: dict[str, list[int]] = defaultdict(list)
        for span in self.spans:
            kinds[span.name].append(span.end - span.start)
        return {
            name: {"count": len(cycles), "cycles": sum(cycles), "mean": sum(cycles) / len(cycles)}
            for name, cycles in sorted(kinds.items(), key=lambda item: -sum(item[1]))
        }

    def overlap(self) -> list[float]:
        """Share of the cycles in which 0, 1, 2, ... units execute a command."""
        counts = concurrency(self.spans)
        return (counts / counts.sum()).tolist()

    def json(self) -> dict[str, Any]:
        """The result as JSON values."""
        origin = {"preset": self.preset, "system": self.system, "clock_mhz": self.clock_mhz, "steps": self.steps}
        return origin | {"units": self.units(), "commands": self.commands(), "overlap": self.overlap()}

    def trace_events(self) -> dict[str, Any]:
        """The last step as a Chrome trace."""
        return chrome_trace(self.spans, self.trace, clock_mhz=self.clock_mhz)

    def svg(self) -> str:
        """The last step as an SVG picture."""
        return picture(self.spans, self.trace)

    def as_text(self) -> str:
        """Tables for a terminal."""
        lines = [
            f"{'step':>4} {'tokens':>6} {'clusters':>8} {'attended':>8} {'fetched':>7} {'cycles':>8} {'predicted':>9}"
        ]
        lines += [
            f"{n:4} {s['tokens']:6} {s['clusters']:8} {s['attended']:8.1f} {s['fetched']:7} "
            f"{s['cycles']:8} {s['predicted']:9}"
            for n, s in enumerate(self.steps)
        ]
        lines += ["", f"last step, {self.cycles} cycles at {self.clock_mhz:g} MHz", f"{'':14} {'cycles':>8} share"]
        lines += [f"{name:14} {u['cycles']:8.0f} {u['share']:5.1%}" for name, u in self.units().items()]
        lines += ["", f"{'command':14} {'count':>8} {'cycles':>8} {'mean':>8}"]
        lines += [f"{name:14} {c['count']:8} {c['cycles']:8} {c['mean']:8.1f}" for name, c in self.commands().items()]
        shares = ", ".join(f"{share:.1%}" for share in self.overlap())
        return "\n".join([*lines, "", f"share of cycles with 0, 1, 2, ... busy units: {shares}"])


Timings = Callable[[], Mapping[str, MemoryTiming]]  # makes new ones: simulation and prediction change their state


def measure(
    layer: LayerRun,
    inputs: Sequence[np.ndarray],
    timing: Timings,
    *,
    streams: Sequence[int] = (),
    progress: Progress = no_progress,
    **options: Any,
) -> tuple[list[dict[str, float]], AxiRecord]:
    """Cycles of every step of a layer, simulated and predicted by `sw_model.cycles`, and the record of the simulation.

    inputs : hidden states (T, hidden) of each step as BF16 codes ; streams : stream of each step, by default the first
    options : options of the simulation
    Raises AssertionError when an output differs from that of the golden layer.
    """
    data, results = {}, []
    for n, x in enumerate(inputs):
        progress("golden layer", n, len(inputs))
        steps = record_steps(layer.golden.table, partial(layer.step, x, streams[n] if streams else 0))
        trace, data[layer.steps[-1]] = layer.traces[-1], steps
        results.append(
            {
                "tokens": len(x),
                "clusters": steps[-1].clusters,
                "attended": float(np.mean([len(tokens) for tokens in trace.attended])),
                "fetched": sum(len(step.fetched) for step in steps),
            }
        )
    progress("simulation of the core", 0, 0)
    record = layer.check(timing=timing(), **options)
    starts = {number: outcome.end - outcome.cycles for number, outcome in enumerate(layer.outcomes)}
    predicted = predict(layer, data, timing(), starts)
    for step, number in zip(results, layer.steps, strict=True):
        cycles = layer.outcomes[number].cycles
        step |= {"start": starts[number], "cycles": cycles, "predicted": predicted[number]}
    return results, record


def predict(
    layer: LayerRun,
    data: Mapping[int, Sequence[StepData]],
    timing: Mapping[str, MemoryTiming],
    starts: Mapping[int, int],
) -> list[int]:
    """Cycles of every program of a layer by `sw_model.cycles`.

    data : of the programs that are steps ; starts : first cycles of programs in the simulation; refresh depends on them
    """
    model = CoreModel(layer.config, timing, BASES, layer.instructions)
    predicted = []
    for number, (address, program) in enumerate(zip(layer.program_addresses, layer.commands(), strict=True)):
        model.now = max(model.now, starts.get(number, 0))
        predicted.append(model.run(address, program, data.get(number, ())))
    return predicted


def run(
    preset: str,
    system: str = "vrex8",
    *,
    frames: int = 8,
    seed: int = 0,
    wics_ratio: float = 0.3,
    progress: Progress = no_progress,
) -> RtlRun:
    """Simulate a decoder layer on some frames and one text token in the RTL of one core of `preset`.

    The core has the device memory and the host link of the system to itself. Every output is compared with that of the
    golden layer.

    Raises
    ------
    ValueError
        When the preset has no layer of its size, the system has no core, or a number is out of range.
    """
    if preset not in CASES:
        raise ValueError(f"preset must be one of {', '.join(CASES)}, got {preset!r}")
    if not 0 < wics_ratio <= 1:
        raise ValueError(f"wics_ratio must be above 0 and at most 1, got {wics_ratio}")
    checks.integer("frames", frames, 1)
    machine = load_system(system)
    timings(machine, 0)  # raises an error before the simulation
    hamming_threshold, max_resident_tokens = SETTINGS[preset]
    layer = LayerRun(
        preset, np.random.default_rng(seed), hamming_threshold=hamming_threshold,
        max_resident_tokens=max_resident_tokens,
        selection_target=round(65536 * wics_ratio),
        storage=machine.link.behind == "ssd",
    )  # fmt: skip
    text = bf16.encode(layer.rng.standard_normal((1, layer.sizes.hidden)))
    results, record = measure(
        layer, [*frame_inputs(layer, frames, CASES[preset].tokens), text], lambda: timings(machine, layer.storage_at),
        progress=progress, ports=["stat_trace"], seed=seed,
    )  # fmt: skip
    trace = record.ports["stat_trace"]
    step_spans = [span for span in spans(trace, layer.commands()) if span.program == layer.steps[-1]]
    first, last = min(span.start for span in step_spans), max(span.end for span in step_spans)
    shifted = [Span(**{**vars(span), "start": span.start - first, "end": span.end - first}) for span in step_spans]
    clock = machine.core.clock_mhz if machine.core else 0.0
    return RtlRun(preset, machine.name, clock, tuple(results), tuple(shifted), trace[first:last])
