"""Times of V-Rex's frames and text tokens from the programs of its cores, next to the paper and the closed formulas.

A run of the cycle model takes minutes, so `data/programs.json` records its cycles. The record is written by
`tests/sw_model/papers/bench_programs.py`; a test holds it to the code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil
from typing import Any

from sw_model import workloads
from sw_model.assumptions import Assumptions
from sw_model.cycles.critical_path import critical_path, shares
from sw_model.cycles.frame import Run, compile_step, compile_vision
from sw_model.cycles.workload_step import StepNumbers, workload_step
from sw_model.memory.live import DramTiming
from sw_model.memory.spec import load_memory
from sw_model.model import policy_for, retained_share, run, work_of
from sw_model.papers.figures import CONTEXTS, DATA, published
from sw_model.systems import System, load_system
from sw_model.workloads import LLAMA3_8B, Model
from util import text
from util.files import read_json
from util.progress import Progress, no_progress
from util.timing import FinalTiming, MemoryTiming

RECORD, COMMAND = DATA / "programs.json", "python -m tests.sw_model.papers.bench_programs"
POLICY = "resv"
SYSTEMS = ("vrex8", "vrex48")
STAGES = ("frame", "text")
# the LM head is one product: its cycles follow from two parts of the vocabulary, in a model with a small layer
HEAD_VOCABULARIES = (8192, 16384)
HEAD_FFN = 64
PATH_COMMANDS = 4  # commands of the critical path in the record


@dataclass(frozen=True)
class Point:
    """A step of one stream after `past` tokens on a system.

    stage  `frame`: the language model on the tokens of a frame; `text`: on a text token; `vision`: the vision tower
    """

    system: str
    stage: str
    past: int = 0

    @property
    def name(self) -> str:
        """Key of its run in the record."""
        return f"{self.system} {self.stage} {self.past}" if self.past else f"{self.system} {self.stage}"


POINTS = [Point(system, stage, past) for system in SYSTEMS for stage in STAGES for past in CONTEXTS]
TOWERS = [Point(system, "vision") for system in SYSTEMS]


class NominalLink(FinalTiming):
    """Host link with the rate of V-Rex Table I in each direction and no latency, as the link preset `paper`.

    With the round trip of `PcieLink`, the two copies of 4 KiB that a core has in flight would limit it to 10 GB/s.

    Parameters
    ----------
    gbps : rate in GB/s ; clock_mhz : clock of the port
    """

    def __init__(self, gbps: float, clock_mhz: float):
        self.bytes_per_cycle = gbps * 1e3 / clock_mhz
        self.free = [0.0, 0.0]  # cycle in which the direction of reads, and that of writes, is free

    def ready(self, cycle: int, address: int, nbytes: int, write: bool) -> int:
        """First cycle of the answer to a burst that arrives in `cycle`. Writes are posted."""
        self.free[write] = max(self.free[write], cycle) + nbytes / self.bytes_per_cycle
        return ceil(self.free[write])


def timing(system: System) -> dict[str, MemoryTiming]:
    """Device memory and nominal host link of a system with cores."""
    assert system.core
    clock = system.core.clock_mhz
    device = DramTiming(load_memory(system.memory), clock)
    return {"device": device, "host": NominalLink(system.link.nominal_gbps, clock)}


def step_numbers(point: Point, model: Model = LLAMA3_8B) -> StepNumbers:
    """Clusters, retrieved and fetched clusters that the closed formula counts for a point."""
    system, assume = load_system(point.system), Assumptions()
    policy, (phase,) = policy_for(POLICY, model), workload(point, model).phases
    work = work_of(policy, system, model, phase, 1, assume, None)
    fetch_bytes = work.fetch_bytes * (1 - retained_share(policy, system, work, assume))
    size = 32  # tokens of a cluster, which fill a page
    return StepNumbers(
        past=point.past, tokens=phase.new_tokens, cluster_tokens=size, selected=round(work.attended_tokens / size),
        fetched=round(fetch_bytes / (size * model.kv_bytes)), rows=phase.new_tokens * model.group,
        passes=work.threshold_passes,
    )  # fmt: skip


def workload(point: Point, model: Model = LLAMA3_8B) -> workloads.Workload:
    """The workload of a point for the closed formulas: the language model, without the vision tower."""
    load = {"frame": workloads.frame, "text": workloads.text}[point.stage](point.past, model=model)
    return replace(load, phases=tuple(replace(phase, frames=0) for phase in load.phases))


def simulate(point: Point, model: Model = LLAMA3_8B, progress: Progress = no_progress) -> dict[str, Any]:
    """Run the layers of a point on the cycle model: cycles of all, of a repeated layer, and what it waits for."""
    system, numbers = load_system(point.system), step_numbers(point, model)
    assert system.core
    step = workload_step(system.core.config, numbers, progress=progress)
    programs = compile_step(system.core.config, model, step, tokens=numbers.tokens, past=point.past)
    result = programs.run(timing(system))
    path = shares(critical_path(result.model.commands), *result.ends[:2], copies=numbers.fetched > 0)
    waits = [dict(zip(("command", "unit", "memory", "share"), entry, strict=True)) for entry in path[:PATH_COMMANDS]]
    return _entry(result) | {"critical path": waits}


def check() -> dict[str, Any]:
    """A run that takes seconds: a frame of a model with small layers, whose record a test holds to the code."""
    return simulate(Point("vrex8", "frame", 6000), replace(LLAMA3_8B, hidden=512, ffn=1024))


def simulate_vision(system: System, model: Model = LLAMA3_8B) -> dict[str, Any]:
    """Run the vision tower of a frame."""
    assert system.core
    return _entry(compile_vision(system.core.config, model).run(timing(system)))


def simulate_head(system: System, tokens: int, model: Model = LLAMA3_8B) -> dict[str, Any]:
    """Run the LM head after a step of some tokens with two parts of the vocabulary; cycles of the whole one."""
    assert system.core
    config, cycles = system.core.config, list[int]()
    numbers = StepNumbers(
        past=32, tokens=tokens, cluster_tokens=32, selected=1, fetched=0, rows=tokens * model.group, passes=1
    )
    step = workload_step(config, numbers)
    for vocabulary in HEAD_VOCABULARIES:
        part = replace(model, vocab=vocabulary, ffn=HEAD_FFN)
        result = compile_step(config, part, step, tokens=tokens, past=32, layers=1, answer=True).run(timing(system))
        cycles.append(result.cycles - result.ends[-1])
    (few, many), (first, second) = HEAD_VOCABULARIES, cycles
    return {"cycles": round(first + (second - first) * (model.vocab - few) / (many - few))}


def _entry(result: Run) -> dict[str, Any]:
    return {"cycles": result.cycles, "repeated": result.repeated, "layers": len(result.ends)}


@lru_cache
def recorded() -> Mapping[str, Any]:
    """Runs of the record by name: cycles, date and commit."""
    return read_json(RECORD, "record of programs")["runs"]


def program_cycles(point: Point, model: Model = LLAMA3_8B) -> int | None:
    """Cycles of a point: layers and LM head, or the vision tower; None if a run is not recorded."""
    names, layers = [point.name, f"{point.system} {point.stage} head"], model.layers
    if point.stage == "vision":
        names, layers = names[:1], model.vision.layers
    if any(name not in recorded() for name in names):
        return None
    first, *others = (recorded()[name] for name in names)
    repeated = (layers - first["layers"]) * first["repeated"]
    return first["cycles"] + repeated + sum(other["cycles"] for other in others)


@dataclass(frozen=True)
class ProgramRow:
    """Times of a point in ms: paper (None if it gives none), closed formula, program, and bound.

    The bound is the larger one of the bytes of device memory at its peak rate and the bytes of the link at its rate.
    """

    point: Point
    paper_ms: float | None
    formula_ms: float
    program_ms: float
    bound_ms: float
    bound: str
    waits: list[dict[str, Any]]

    @property
    def over_bound(self) -> float:
        """Time of the program as a multiple of the bound."""
        return self.program_ms / self.bound_ms

    @property
    def formula_error(self) -> float:
        """Relative difference of the closed formula from the program."""
        return self.formula_ms / self.program_ms - 1

    @property
    def limit(self) -> str:
        """The command with the largest share of the critical path of a layer."""
        return wait(self.waits[0]) if self.waits else ""

    def json(self) -> dict[str, Any]:
        """The row as plain values."""
        return vars(self) | {"point": self.point.name, "program / bound": self.over_bound}


def wait(entry: Mapping[str, Any]) -> str:
    """A command of a critical path with its unit, memory and share."""
    where = f", {entry['memory']}" if entry["memory"] else ""
    return f"{entry['command']} ({entry['unit']} unit{where}): {entry['share']:.0%}"


def program_rows() -> list[ProgramRow]:
    """All recorded points."""
    rows = []
    for point in [*POINTS, *TOWERS]:
        cycles = program_cycles(point)
        if cycles is None:
            continue
        system = load_system(point.system)
        assert system.core
        total_s, dram_bytes, link_bytes = formula(point)
        times = {
            "device memory": dram_bytes / system.device_memory.peak_gbps / 1e6,
            "host link": link_bytes / system.link.nominal_gbps / 1e6,
        }
        bound = max(times, key=lambda name: times[name])
        program = cycles / system.core.clock_mhz / 1e3
        waits = recorded()[point.name].get("critical path", [])
        rows.append(ProgramRow(point, paper_ms(point), total_s * 1e3, program, times[bound], bound, waits))
    return rows


def formula(point: Point) -> tuple[float, float, float]:
    """Seconds of a point by the closed formulas, and its bytes of device memory and link."""
    system, shortest = load_system(point.system), CONTEXTS[0]
    if point.stage == "vision":  # a frame with its tower minus the frame
        whole, rest = (
            run(system, POLICY, workloads.frame(shortest)),
            formula(replace(point, stage="frame", past=shortest)),
        )
        return whole.total_s - rest[0], whole.bytes_moved["DRAM"] - rest[1], 0.0
    result = run(system, POLICY, workload(point))
    return result.total_s, result.bytes_moved["DRAM"], result.bytes_moved.get("PCIe", 0)


def paper_ms(point: Point) -> float | None:
    """Published time of a point; that of a frame includes the vision tower."""
    frames, ends = published(), (CONTEXTS[0], CONTEXTS[-1])
    values = {
        "vrex8 frame": dict(zip(CONTEXTS, frames["vrex.fig13.frame_edge_b1"]["value"], strict=True)),
        "vrex48 frame": dict(zip(ends, frames["vrex.fig13.frame_server"]["value"], strict=True)),
        "vrex8 text": dict(zip(ends, frames["vrex.fig13.tpot_edge"]["value"], strict=True)),
        "vrex48 text": dict(zip(ends, frames["vrex.fig13.tpot_server"]["value"]["ms"], strict=True)),
    }
    return values.get(f"{point.system} {point.stage}", {}).get(point.past)


HEAD = ("system", "step", "past tokens", "paper ms", "formula ms", "program ms", "bound ms", "bound by",
        "program / bound", "formula - program %", "largest wait of a layer")  # fmt: skip


def cells(row: ProgramRow) -> tuple[str, ...]:
    """A row of a table with `HEAD`."""
    point, paper = row.point, "" if row.paper_ms is None else f"{row.paper_ms:g}"
    return (
        point.system, point.stage, f"{point.past:,}" if point.past else "", paper, f"{row.formula_ms:.1f}",
        f"{row.program_ms:.1f}", f"{row.bound_ms:.1f}", row.bound, f"{row.over_bound:.2f}",
        f"{100 * row.formula_error:+.1f}", row.limit,
    )  # fmt: skip


def as_text(rows: Sequence[ProgramRow]) -> str:
    """A table of text."""
    return text.table(HEAD, [cells(row) for row in rows])
