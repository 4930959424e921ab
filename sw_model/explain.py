"""What bounds a run and what would change it, as sentences and as a table.

A run is bound by its critical path, split by stage and resource. To find what would change it, the same run is repeated
with one parameter changed: twice as good, and `UNBOUNDED` times as good.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sw_model.engine import PS_PER_S
from sw_model.model import policy_for
from sw_model.papers.programs import POINTS, POLICY, recorded, wait
from sw_model.policies import Step
from sw_model.request import Request
from sw_model.result import Result
from util import text
from util.progress import Progress, no_progress

NAMES = {
    "DRAM": "device memory",
    "PCIe": "the host link",
    "SSD": "the drive",
    "LXE": "the matrix engine",
    "VPE": "the vector engine",
    "HCU": "the hash clustering unit",
    "WTU": "the threshold unit",
    "KVMU": "the look-up of clusters",
    "CODE": "the reads of vector instructions",
    "GPU": "the GPU",
}
UNBOUNDED = 1000  # a parameter this many times better bounds nothing any more
MIN_GAIN = 0.001  # smaller gains of a doubled parameter are not worth a sentence
Scale = Callable[[float], Request]  # the request with one parameter so many times better


@dataclass(frozen=True)
class Bound:
    """Time on the critical path of one stage on one resource."""

    stage: str
    resource: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.stage} on {NAMES.get(self.resource, self.resource)}"


@dataclass(frozen=True)
class Parameter:
    """The effect of one parameter on a run.

    setting      the key that changes it, for `--set` or a sweep
    doubled_s    time of the run with the parameter twice as good
    unbounded_s  time of the run with the parameter `UNBOUNDED` times as good
    next_bound   what bounds the run then
    """

    name: str
    setting: str
    doubled_s: float
    unbounded_s: float
    next_bound: Bound


@dataclass(frozen=True)
class ProgramWaits:
    """Critical path of a repeated layer in the program of a step.

    past   tokens before the step
    waits  commands with their unit, memory and share of the cycles, largest first
    """

    past: int
    waits: tuple[Mapping[str, Any], ...]

    def __str__(self) -> str:
        listed = ", ".join(wait(entry) for entry in self.waits)
        return f"Critical path of a layer in the program of all cores after {self.past:,} tokens: {listed}."


@dataclass(frozen=True)
class Explanation:
    """What bounds a run and what would change it.

    bounds      largest first; their seconds sum to `result.total_s`
    program     what the program of this run waits for, if its cycles are recorded (`sw_model.papers.programs`)
    parameters  largest gain of the doubled parameter first
    no_effect   names of the parameters that change nothing
    """

    request: Request
    result: Result
    bounds: tuple[Bound, ...]
    parameters: tuple[Parameter, ...]
    no_effect: tuple[str, ...]
    program: ProgramWaits | None = None

    def json(self) -> dict[str, object]:
        """The explanation as plain values."""
        return {
            "request": self.request.json(),
            "total_ms": self.result.total_s * 1e3,
            "bounds": [vars(b) | {"share": b.seconds / self.result.total_s} for b in self.bounds],
            "parameters": [vars(p) | {"next_bound": vars(p.next_bound)} for p in self.parameters],
            "without effect": list(self.no_effect),
            "program": vars(self.program) if self.program else None,
            "words": self.words(),
        }

    def words(self) -> str:
        """A short paragraph."""
        run, total = self.result, self.result.total_s
        first = self.bounds[0]
        sentences = [
            f"{run.policy} on {run.system}, {run.workload}, {run.link} link: {total * 1e3:.4g} ms.",
            f"It is bound by {first}: {first.seconds * 1e3:.4g} ms, {first.seconds / total:.0%} of the time.",
        ]
        if len(self.bounds) > 1:
            others = ", ".join(f"{b} ({b.seconds / total:.0%})" for b in self.bounds[1:4])
            sentences.append(f"Next: {others}.")
        if self.parameters and self.parameters[0].doubled_s < (1 - MIN_GAIN) * total:
            best = self.parameters[0]
            sentences.append(
                f"The parameter with the largest effect is {best.name} ({best.setting}): twice as good gives"
                f" {best.doubled_s * 1e3:.4g} ms ({best.doubled_s / total - 1:+.0%}). Without its limit the run takes"
                f" {best.unbounded_s * 1e3:.4g} ms and is bound by {best.next_bound}."
            )
        else:
            sentences.append("No single parameter, twice as good, changes it by a thousandth.")
        if self.program:
            sentences.append(str(self.program))
        return " ".join(sentences)

    def table(self) -> str:
        """A table of the parameters with the times of the changed runs."""
        total = self.result.total_s
        rows = [
            (
                p.name,
                f"{p.doubled_s * 1e3:.4g}",
                f"{100 * (p.doubled_s / total - 1):+.1f}",
                f"{p.unbounded_s * 1e3:.4g}",
                str(p.next_bound),
                p.setting,
            )
            for p in self.parameters
        ]
        table = text.table(("parameter", "doubled: ms", "%", "no limit: ms", "then bound by", "set with"), rows)
        return table + (f"\nwithout effect: {', '.join(self.no_effect)}" if self.no_effect else "")


def bounds_of(result: Result) -> tuple[Bound, ...]:
    """The critical path of a run by stage and resource, largest first; the seconds sum to the run's total."""
    waits: dict[tuple[str, str], int] = defaultdict(int)
    for timeline, count in zip(result.timelines, result.counts, strict=True):
        for segment in timeline.critical_path():
            task = timeline.tasks[segment.task]
            waits[task.stage, task.resource] += count * (segment.end_ps - segment.start_ps)
    order = sorted(waits.items(), key=lambda item: (-item[1], item[0]))
    return tuple(Bound(stage, name, ps / PS_PER_S) for (stage, name), ps in order if ps)


def parameters_of(request: Request, result: Result) -> dict[str, tuple[str, Scale]]:
    """The parameters of a run by name: the key that sets each, and the request with it `factor` times better."""
    machine = request.machine()

    def scaled(key: str, value: float, limit: float | None = None) -> tuple[str, Scale]:
        def scale(factor: float) -> Request:
            new = type(value)(value * factor)
            return request.replace(changes={key: new if limit is None else min(limit, new)})

        return key, scale

    parameters = {"device memory bandwidth": scaled("device_memory.peak_gbps", float(machine.device_memory.peak_gbps))}
    if machine.core:
        parameters["cores"] = scaled("core.cores", machine.core.config.cores, 4096)
        parameters["clock"] = scaled("core.clock_mhz", float(machine.core.clock_mhz))
    if machine.gpu:
        parameters["GPU arithmetic"] = scaled("gpu.peak_tflops", float(machine.gpu.peak_tflops))
        overhead = machine.gpu.op_overhead_us
        parameters["framework overhead"] = (
            "gpu.op_overhead_us",
            lambda factor: request.replace(changes={"gpu.op_overhead_us": overhead / factor}),
        )
    if result.bytes_moved.get("PCIe"):
        parameters |= _fetch_parameters(request, scaled)
    return parameters


def _fetch_parameters(request: Request, scaled: Callable[..., tuple[str, Scale]]) -> dict[str, tuple[str, Scale]]:
    """The parameters of the fetch over the host link."""
    machine, assume = request.machine(), request.assumptions()
    share = retrieved(request)
    parameters: dict[str, tuple[str, Scale]] = {
        "share retrieved": ("retrieval_ratio", lambda factor: request.replace(retrieval_ratio=share / factor))
    }
    if assume.residency == "recent":
        parameters["tokens kept in device memory"] = (
            "assume.resident_tokens",
            lambda factor: request.replace(changes={"assume.resident_tokens": int(assume.resident_tokens * factor)}),
        )
    if machine.core and request.link == "paper":
        parameters["host link"] = scaled(
            "link.nominal_gbps", float(machine.link.nominal_gbps), float(machine.device_memory.peak_gbps)
        )
        return parameters
    lanes = machine.link.lanes
    wider = min(16, lanes * 2)
    parameters["host link"] = (
        "link.lanes, link.generation",
        lambda factor: request.replace(
            changes={"link.lanes": wider if factor < UNBOUNDED else 16}
            | ({"link.generation": 5} if factor >= UNBOUNDED or lanes == 16 else {})
        ),
    )
    if machine.link.behind == "ssd":
        parameters["host memory instead of a drive"] = (
            "link.behind",
            lambda factor: request.replace(changes={"link.behind": "cpu"}),
        )
    return parameters


def retrieved(request: Request) -> float:
    """The share of the context that the policy retrieves in the last phase, 0 to 1."""
    load = request.load()
    phase, model = load.phases[-1], load.model
    step = Step(phase.new_tokens, phase.kv_tokens, phase.stage, model, ratio=request.retrieval_ratio)
    return policy_for(request.policy, model).ratio(step)


def explain(request: Request, progress: Progress = no_progress) -> Explanation:
    """Run `request` and its variants with one changed parameter."""
    result = request.run()
    parameters, no_effect = [], []
    scales = parameters_of(request, result)
    for done, (name, (setting, scale)) in enumerate(scales.items(), 1):
        doubled, unbounded = scale(2).run(), scale(UNBOUNDED).run()
        if doubled.total_s == unbounded.total_s == result.total_s:
            no_effect.append(name)
        else:
            next_bound = bounds_of(unbounded)[0]
            parameters.append(Parameter(name, setting, doubled.total_s, unbounded.total_s, next_bound))
        progress("explain", done, len(scales))
    parameters.sort(key=lambda p: (p.doubled_s, p.unbounded_s, p.name))
    bounds, waits = bounds_of(result), program_waits(request)
    return Explanation(request, result, bounds, tuple(parameters), tuple(no_effect), waits)


def program_waits(request: Request) -> ProgramWaits | None:
    """What the program of the recorded point nearest to a request waits for.

    None: the run has no record: another system, policy, workload or batch, or changed numbers.
    """
    points = [
        point
        for point in POINTS
        if (point.system, point.stage) == (request.system, request.workload) and point.name in recorded()
    ]
    changed = request.changes or request.batch != 1 or request.retrieval_ratio is not None
    if not points or changed or request.policy != POLICY or request.link != "paper":
        return None
    point = min(points, key=lambda point: abs(math.log(point.past / request.tokens)))
    return ProgramWaits(point.past, tuple(recorded()[point.name]["critical path"]))
