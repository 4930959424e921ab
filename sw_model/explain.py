"""Why a run takes as long as it does: what it waits for, and what would change it, in words and one table.

What a run waits for is its critical path, cut by stage and resource. What would change it is found by trying: the same
run with one knob turned, twice as far and so far that it no longer matters.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from sw_model.engine import PS_PER_S
from sw_model.model import policy_for
from sw_model.policies import Step
from sw_model.request import Request
from sw_model.result import Result
from util import text

NAMES = {
    "DRAM": "device memory",
    "PCIe": "the host link",
    "SSD": "the drive",
    "LXE": "the matrix engine",
    "VPE": "the vector engine",
    "HCU": "the hash clustering unit",
    "WTU": "the threshold unit",
    "GPU": "the GPU",
}
FREE = 1000  # times better: no longer a bound
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Bound:
    """Time on the critical path that one stage spends on one resource."""

    stage: str
    resource: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.stage} on {NAMES.get(self.resource, self.resource)}"


@dataclass(frozen=True)
class Knob:
    """One thing to change. `twice_s` and `free_s`: the run's time with it twice as good, and out of the way; `then`
    bounds the run in the latter case."""

    name: str
    sets: str
    twice_s: float
    free_s: float
    then: Bound


@dataclass(frozen=True)
class Explanation:
    """`bounds` sum to `result.total_s`, largest first; `knobs` by what they save when turned twice as far; `idle` are
    the names of those that change nothing."""

    request: Request
    result: Result
    bounds: tuple[Bound, ...]
    knobs: tuple[Knob, ...]
    idle: tuple[str, ...]

    def json(self) -> dict[str, object]:
        return {
            "request": self.request.json(),
            "total_ms": self.result.total_s * 1e3,
            "bounds": [vars(b) | {"share": b.seconds / self.result.total_s} for b in self.bounds],
            "knobs": [vars(k) | {"then": vars(k.then)} for k in self.knobs],
            "without effect": list(self.idle),
            "words": self.words(),
        }

    def words(self) -> str:
        """A short paragraph."""
        run, total = self.result, self.result.total_s
        first = self.bounds[0]
        said = [
            f"{run.policy} on {run.system}, {run.workload}, {run.link} link: {total * 1e3:.4g} ms.",
            f"It is bound by {first}: {first.seconds * 1e3:.4g} ms, {first.seconds / total:.0%} of the time.",
        ]
        if len(self.bounds) > 1:
            rest = ", ".join(f"{b} ({b.seconds / total:.0%})" for b in self.bounds[1:4])
            said.append(f"Behind it: {rest}.")
        if self.knobs and self.knobs[0].twice_s < 0.999 * total:
            best = self.knobs[0]
            said.append(
                f"The knob that changes most is {best.name} ({best.sets}): twice as good gives"
                f" {best.twice_s * 1e3:.4g} ms ({best.twice_s / total - 1:+.0%}), and no amount of it less than"
                f" {best.free_s * 1e3:.4g} ms, where {best.then} is the next bottleneck."
            )
        else:
            said.append("No single knob, turned twice as far, changes it by a thousandth.")
        return " ".join(said)

    def table(self) -> str:
        """The knobs: time when turned twice as far, when out of the way, and what bounds the run then."""
        total = self.result.total_s
        rows = [
            (
                knob.name,
                f"{knob.twice_s * 1e3:.4g}",
                f"{100 * (knob.twice_s / total - 1):+.1f}",
                f"{knob.free_s * 1e3:.4g}",
                str(knob.then),
                knob.sets,
            )
            for knob in self.knobs
        ]
        told = text.table(("knob", "twice: ms", "%", "free: ms", "then bound by", "set with"), rows)
        return told + (f"\nwithout effect: {', '.join(self.idle)}" if self.idle else "")


def bounds_of(result: Result) -> tuple[Bound, ...]:
    """What the run waited for, largest first; the seconds sum to its total."""
    waited: dict[tuple[str, str], int] = defaultdict(int)
    for line, count in zip(result.timelines, result.counts, strict=True):
        for part in line.critical_path():
            task = line.tasks[part.task]
            waited[task.stage, task.resource] += count * (part.end_ps - part.start_ps)
    order = sorted(waited.items(), key=lambda item: (-item[1], item[0]))
    return tuple(Bound(stage, name, ps / PS_PER_S) for (stage, name), ps in order if ps)


def turned(request: Request, result: Result) -> dict[str, tuple[str, Callable[[float], Request]]]:
    """What can be changed about this run: name -> (what sets it, the request with it `factor` times better)."""
    machine, assume = request.machine(), request.assumptions()
    memory = machine.device_memory.peak_gbps

    def scaled(key: str, value: float, most: float | None = None) -> tuple[str, Callable[[float], Request]]:
        def turn(factor: float) -> Request:
            new = type(value)(value * factor)
            return request.replace(changes={key: new if most is None else min(most, new)})

        return key, turn

    knobs: dict[str, tuple[str, Callable[[float], Request]]]
    knobs = {"device memory bandwidth": scaled("device_memory.peak_gbps", float(memory))}
    if machine.core:
        knobs["cores"] = scaled("core.cores", machine.core.config.cores, 4096)
        knobs["clock"] = scaled("core.clock_mhz", float(machine.core.clock_mhz))
        knobs["requests in flight"] = scaled("assume.requests_in_flight", assume.requests_in_flight)
    if machine.gpu:
        knobs["GPU arithmetic"] = scaled("gpu.peak_tflops", float(machine.gpu.peak_tflops))
        overhead = machine.gpu.op_overhead_us
        knobs["framework overhead"] = (
            "gpu.op_overhead_us",
            lambda factor: request.replace(changes={"gpu.op_overhead_us": overhead / factor}),
        )
    if result.bytes_moved.get("PCIe"):
        knobs |= _fetch_knobs(request, scaled)
    return knobs


def _fetch_knobs(request: Request, scaled: Callable[..., tuple]) -> dict[str, tuple]:
    machine, assume = request.machine(), request.assumptions()
    share = retrieved(request)
    knobs: dict[str, tuple[str, Callable[[float], Request]]] = {
        "share retrieved": ("ratio", lambda factor: request.replace(ratio=share / factor)),
        "tokens kept in device memory": (
            "assume.resident_tokens",
            lambda factor: request.replace(changes={"assume.resident_tokens": int(assume.resident_tokens * factor)}),
        ),
    }
    if machine.core and request.link == "paper":
        knobs["host link"] = scaled(
            "link.nominal_gbps", float(machine.link.nominal_gbps), float(machine.device_memory.peak_gbps)
        )
        return knobs
    lanes = machine.link.lanes
    wider = min(16, lanes * 2)
    knobs["host link"] = (
        "link.lanes, link.generation",
        lambda factor: request.replace(
            changes={"link.lanes": wider if factor < FREE else 16}
            | ({"link.generation": 5} if factor >= FREE or lanes == 16 else {})
        ),
    )
    if machine.link.behind == "ssd":
        knobs["host memory instead of a drive"] = (
            "link.behind",
            lambda factor: request.replace(changes={"link.behind": "cpu"}),
        )
    return knobs


def retrieved(request: Request) -> float:
    """The share of the context that the policy retrieves in the last phase."""
    load = request.load()
    phase, model = load.phases[-1], load.model
    step = Step(phase.new_tokens, phase.kv_tokens, phase.stage, model, ratio=request.ratio)
    return policy_for(request.policy, model).ratio(step)


def explain(request: Request, progress: Progress | None = None) -> Explanation:
    """Run `request` and every variant of it."""
    result = request.run()
    knobs, idle = [], []
    turns = turned(request, result)
    for done, (name, (sets, turn)) in enumerate(turns.items(), 1):
        twice, free = turn(2).run(), turn(FREE).run()
        if twice.total_s == free.total_s == result.total_s:
            idle.append(name)
        else:
            knobs.append(Knob(name, sets, twice.total_s, free.total_s, bounds_of(free)[0]))
        if progress:
            progress("explain", done, len(turns))
    knobs.sort(key=lambda knob: (knob.twice_s, knob.free_s, knob.name))
    return Explanation(request, result, bounds_of(result), tuple(knobs), tuple(idle))
