"""The core's RTL, simulated behind memories with the model's own timing: where the cycles of a layer's steps go."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from golden import bf16
from golden.kvmu import Op
from sim.bench.axi_run import AxiRecord
from sim.bench.core_run import BASES
from sim.bench.layer_run import CASES, LayerRun, frames
from sim.bench.timeline import ACTIVITY, Span, busy, chrome_trace, column, picture, spans, together
from sw_model.cycles.core import CoreModel, StepData
from sw_model.memory.live import DramTiming, DriveTiming, PcieTiming
from sw_model.memory.pcie import PcieLink
from sw_model.memory.spec import load_memory
from sw_model.memory.ssd import load_ssd
from sw_model.systems import System, load_system
from util.progress import Progress, no_progress
from util.timing import MemoryTiming

DRIVE = "bg6-like"
CACHES = {"tiny": (4, 8), "small": (7, 16)}  # Hamming distance below which tokens join, tokens on the device


def timings(system: System, drive_at: int) -> dict[str, MemoryTiming]:
    """Of the core's two ports: the system's device memory, and its host link with what stands behind it; from address
    `drive_at` of the host port on, that is the drive."""
    core = system.core
    if core is None:
        raise ValueError(f"system {system.name!r} has no core: choose one of kind vrex")
    link, drive = PcieLink(system.link.generation, system.link.lanes), None
    if system.link.behind == "ssd":
        drive = DriveTiming(load_ssd(DRIVE))
    return {
        "device": DramTiming(load_memory(system.memory), core.clock_mhz),
        "host": PcieTiming(link, core.clock_mhz, drive, drive_at),
    }


@dataclass(frozen=True)
class RtlRun:
    """What came of a run; the trace and the spans are the last step's, and begin at cycle 0.

    steps : of each its tokens, clusters that were there, past tokens that a head attended to (mean), units (of a page
        and a head) that it fetched, cycles, and how many the model predicts
    """

    preset: str
    system: str
    clock_mhz: float
    steps: tuple[dict[str, float], ...]
    spans: tuple[Span, ...]
    trace: np.ndarray

    @property
    def cycles(self) -> int:
        """From the last step's first command to its end."""
        return max(span.end for span in self.spans)

    def units(self) -> dict[str, dict[str, float]]:
        """Of every unit, cycles with a command and their share; of engines and ports, cycles with a beat."""
        found = {unit.name: float(cycles) for unit, cycles in busy(self.spans).items()}
        found |= {name: float(column(self.trace, name).sum()) for name in ACTIVITY}
        return {name: {"cycles": cycles, "share": cycles / self.cycles} for name, cycles in found.items()}

    def commands(self) -> dict[str, dict[str, float]]:
        """Of every kind of command: how many, the cycles from their beginnings to their ends, and the mean."""
        kinds: dict[str, list[int]] = defaultdict(list)
        for span in self.spans:
            kinds[span.name].append(span.end - span.start)
        return {
            name: {"count": len(each), "cycles": sum(each), "mean": sum(each) / len(each)}
            for name, each in sorted(kinds.items(), key=lambda item: -sum(item[1]))
        }

    def overlap(self) -> list[float]:
        """Shares of the cycles in which 0, 1, .. units had a command."""
        counts = together(self.spans)
        return (counts / counts.sum()).tolist()

    def json(self) -> dict[str, Any]:
        """All figures."""
        about = {"preset": self.preset, "system": self.system, "clock_mhz": self.clock_mhz, "steps": self.steps}
        return about | {"units": self.units(), "commands": self.commands(), "overlap": self.overlap()}

    def trace_events(self) -> dict[str, Any]:
        """The last step as a Chrome trace."""
        return chrome_trace(self.spans, self.trace, clock_mhz=self.clock_mhz)

    def svg(self) -> str:
        """The last step as a picture."""
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
        return "\n".join([*lines, "", f"cycles with 0, 1, .. units at work: {shares}"])


Timings = Callable[[], Mapping[str, MemoryTiming]]  # fresh ones, for the simulation and for the prediction


def measure(
    layer: LayerRun, inputs: Sequence[np.ndarray], timing: Timings, *, progress: Progress = no_progress, **options: Any
) -> tuple[list[dict[str, float]], AxiRecord]:
    """The figures of every step of a layer, in the RTL and as `sw_model.cycles` predicts it; the record.

    inputs : of each step hidden states (T, hidden), BF16 codes ; options : of the simulation
    AssertionError when an output differs from the golden layer's.
    """
    data, told = {}, []
    for n, x in enumerate(inputs):
        progress("golden layer", n, len(inputs))
        found = StepData.of(layer.golden, partial(layer.step, x))
        trace, data[layer.steps[-1]] = layer.traces[-1], found
        told.append(
            {
                "tokens": len(x),
                "clusters": found.clusters,
                "attended": float(np.mean([len(tokens) for tokens in trace.attended])),
                "fetched": sum(reply.transit for reply in trace.replies if reply.op == Op.FETCH),
            }
        )
    progress("simulation of the core", 0, 0)
    record = layer.check(timing=timing(), **options)
    model = CoreModel(layer.config, timing(), BASES, layer.layer.mean_keys_word, layer.layer.instructions)
    predicted = []
    for number, (place, program) in enumerate(zip(layer.program_addresses, layer.commands(), strict=True)):
        predicted.append(model.run(place, program, data.get(number)))
    for step, number in zip(told, layer.steps, strict=True):
        step |= {"cycles": layer.outcomes[number].cycles, "predicted": predicted[number]}
    return told, record


def run(
    preset: str,
    system: str = "vrex8",
    *,
    steps: int = 8,
    seed: int = 0,
    ratio: float = 0.3,
    progress: Progress = no_progress,
) -> RtlRun:
    """A decoder layer on `steps` frames, then a text token, in the RTL of one core of `preset` on the whole of a
    system's memory and link; every output is compared with the golden layer.

    Raises
    ------
    ValueError
        For a preset without a layer of its size, a system without cores, a ratio outside 0 to 1.
    """
    if preset not in CASES:
        raise ValueError(f"preset {preset!r}: choose one of {', '.join(CASES)}")
    if not 0 < ratio <= 1:
        raise ValueError(f"ratio = {ratio}: must lie above 0 and at most at 1")
    if steps < 1:
        raise ValueError(f"steps = {steps}: must be at least 1")
    machine = load_system(system)
    timings(machine, 0)
    threshold, max_resident_tokens = CACHES[preset]
    layer = LayerRun(
        preset, np.random.default_rng(seed), hamming_threshold=threshold, max_resident_tokens=max_resident_tokens,
        selection_target=round(65536 * ratio),
        storage=machine.link.behind == "ssd",
    )  # fmt: skip
    text = bf16.encode(layer.rng.standard_normal((1, layer.sizes.hidden)))
    told, record = measure(
        layer, [*frames(layer, steps, CASES[preset].tokens), text], lambda: timings(machine, layer.storage_at),
        progress=progress, ports=["stat_trace"], seed=seed,
    )  # fmt: skip
    trace = record.ports["stat_trace"]
    mine = [span for span in spans(trace, layer.commands()) if span.program == layer.steps[-1]]
    first, last = min(span.start for span in mine), max(span.end for span in mine)
    shifted = [Span(**{**vars(span), "start": span.start - first, "end": span.end - first}) for span in mine]
    clock = machine.core.clock_mhz if machine.core else 0.0
    return RtlRun(preset, machine.name, clock, tuple(told), tuple(shifted), trace[first:last])
