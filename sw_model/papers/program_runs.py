"""Runs of programs on the cycle model: the numbers of a step by its closed formula, its data, its cycles and bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from math import ceil
from typing import Any

from compiler import policies as machine
from compiler.window_layer import Carry
from golden.codecsight import COMPUTE, REFRESH, REUSE, window_plan
from sw_model.cycles.core import Traffic
from sw_model.cycles.critical_path import critical_path, shares
from sw_model.cycles.frame import (
    LAYERS,
    Run,
    compile_carry,
    compile_step,
    compile_store,
    compile_vision,
    compile_window_step,
)
from sw_model.cycles.workload_step import (
    LEVELS,
    StepNumbers,
    StoredNumbers,
    WorkloadStep,
    partition_step,
    stored_step,
    token_step,
    workload_step,
)
from sw_model.memory.live import DramTiming
from sw_model.model import retained_share, work_of
from sw_model.papers.programs import BOUNDED, POLICY, PROGRAMS, Point, formula_policy, workload
from sw_model.policies.mosaic import FRAMES_PER_PARTITION
from sw_model.systems import System, load_system, memory_model
from sw_model.workloads import LLAMA3_8B, Model
from util.progress import Progress, no_progress
from util.timing import FinalTiming, MemoryTiming

# the LM head is one product: its cycles follow from two parts of the vocabulary, in a model with a small layer
HEAD_VOCABULARIES = (8192, 16384)
HEAD_FFN = 64
PATH_COMMANDS = 4  # commands of the critical path in the record


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
    device = DramTiming(memory_model(system.memory), clock)
    return {"device": device, "host": NominalLink(system.link.nominal_gbps, clock)}


@dataclass(frozen=True)
class WindowNumbers:
    """Numbers of the steps of a policy with windows, means over the frames of a stride.

    tokens : of a step ; before : slots before it ; slots : of a window
    refreshed : steps of refreshed frames for each new frame ; refreshed_before : slots before them
    """

    tokens: int
    before: int
    slots: int
    refreshed: float = 0
    refreshed_before: int = 0


def step_numbers(point: Point, model: Model = LLAMA3_8B) -> StepNumbers | StoredNumbers | WindowNumbers:
    """Retrieved, resident and fetched tokens that the closed formula counts for each stream of a point.

    Raises ValueError if the clusters of the policy do not fit the core.
    """
    system = load_system(point.system)
    assume = system.assumptions
    assert system.core
    program, config = PROGRAMS[point.policy], system.core.config
    policy, (phase,) = formula_policy(point.policy, model), workload(point, model).phases
    work, batch = work_of(policy, system, model, phase, point.batch, assume, None), point.batch
    past, tokens, visual = point.past, phase.new_tokens, point.stage == "frame"
    if isinstance(program, machine.CodecSightPolicy):
        return _window_numbers(program, model, tokens, visual)
    if isinstance(program, machine.WindowPolicy):
        past = min(past, BOUNDED)
        return StoredNumbers(past, tokens, past + tokens, visual)
    if isinstance(program, machine.FullPolicy):
        attended, fetched = round(work.attended_tokens), work.fetch_bytes / work.attend_read_bytes
        resident = max(1, round(attended * (1 - fetched))) if fetched else attended + tokens
        return StoredNumbers(attended, tokens, resident, visual)
    size, rows, levels = 32, tokens * model.group, LEVELS  # 32 tokens of a cluster fill a page
    if isinstance(program, machine.RekvPolicy):
        size, rows = model.tokens_per_frame, 1
    elif isinstance(program, machine.InfiniGenPolicy):
        size, levels = 1, program.selection().wtu.refine_levels + 1
    elif isinstance(program, machine.MosaicPolicy):
        rows = 2
    most = (program.sizes(config, past, tokens).clusters - 1) * size
    if rows < tokens * model.group and past > most:  # all clusters are candidates
        raise ValueError(f"past must be at most {most} for policy {point.policy}, got {past}")
    fetch_bytes = work.fetch_bytes / batch * (1 - retained_share(policy, system, work, assume))
    cluster_bytes = size * model.kv_bytes * assume.kv_bits / 16
    return StepNumbers(
        past=past, tokens=tokens, cluster_tokens=size, selected=round(work.attended_tokens / size),
        fetched=round(fetch_bytes / cluster_bytes), rows=rows, passes=work.threshold_passes, levels=levels,
    )  # fmt: skip


def _window_numbers(program: machine.CodecSightPolicy, model: Model, tokens: int, visual: bool) -> WindowNumbers:
    plan, size = list(window_plan(1, program.rules()).values()), model.tokens_per_frame
    if not visual:
        return WindowNumbers(tokens, len(plan) * size, len(plan) * size + tokens)
    new, refreshed = ([n for n, each in enumerate(plan) if each == action] for action in (COMPUTE, REFRESH))
    before = [round(sum(numbers) / len(numbers) * size) for numbers in (new, refreshed)]
    return WindowNumbers(tokens, before[0], len(plan) * size, len(refreshed) / len(new), before[1])


def fits(point: Point) -> bool:
    """Whether the clusters of a point fit the core."""
    try:
        step_numbers(point)
    except ValueError:
        return False
    return True


def program_policy(point: Point, numbers: StepNumbers | StoredNumbers | WindowNumbers) -> machine.Policy:
    """The policy of a point, whose budget is the number of tokens that the closed formula counts."""
    program = PROGRAMS[point.policy]
    if isinstance(numbers, StepNumbers):
        if isinstance(program, machine.InfiniGenPolicy):  # the rows of a KV head select the same tokens
            return replace(program, budget=numbers.selected)
        if isinstance(program, machine.MosaicPolicy):  # one of the clusters is the text
            return replace(program, budget=(numbers.selected - 1) * numbers.cluster_tokens)
    return program


def step_data(point: Point, model: Model = LLAMA3_8B, progress: Progress = no_progress) -> WorkloadStep:
    """The data of the step of a point."""
    system, numbers = load_system(point.system), step_numbers(point, model)
    assert system.core
    program = program_policy(point, numbers)
    config = program.core(system.core.config)
    if isinstance(numbers, StoredNumbers):
        assert isinstance(program, machine.FullPolicy)
        return stored_step(config, program, numbers, progress=progress)
    assert isinstance(numbers, StepNumbers)
    if isinstance(program, machine.InfiniGenPolicy):
        return token_step(config, program, numbers, progress=progress)
    if isinstance(program, machine.MosaicPolicy):
        return partition_step(config, program, numbers, progress=progress)
    by_frames = isinstance(program, machine.RekvPolicy)
    return workload_step(config, numbers, by_frames=by_frames, progress=progress)


def simulate(point: Point, model: Model = LLAMA3_8B, progress: Progress = no_progress) -> dict[str, Any]:
    """Run the layers of a point on the cycle model: cycles and bytes of all and of a repeated layer, and its waits."""
    system, numbers = load_system(point.system), step_numbers(point, model)
    assert system.core
    visual, program = point.stage == "frame", program_policy(point, numbers)
    config = program.core(system.core.config)
    if isinstance(numbers, WindowNumbers):
        return _simulate_window(system, numbers, model, visual)
    step = step_data(point, model, progress)
    # keys of the longest row of scores; the first layer of InfiniGen attends to all tokens
    past = step.later.past(0) if point.policy not in (POLICY, "infinigenp") else point.past
    partitions = 0
    if isinstance(program, machine.MosaicPolicy):
        partitions = min(program.top_visual, ceil(point.past / (FRAMES_PER_PARTITION * model.tokens_per_frame)))
    programs = compile_step(
        config, model, step, tokens=numbers.tokens, past=past, policy=program, visual=visual, partitions=partitions,
        batch=point.batch,
    )  # fmt: skip
    entry = _layers(programs.run(timing(system)), copies=bool(step.later.fetched))
    if step.stored is None:
        return entry
    stores = [
        compile_store(config, model, step, tokens=numbers.tokens, past=past, layers=layers, policy=program)
        .run(timing(system))
        for layers in (LAYERS - 1, LAYERS)
    ]  # fmt: skip
    return _sum_of((entry, 1), (_repeated(*stores), 1))


def _simulate_window(system: System, numbers: WindowNumbers, model: Model, visual: bool) -> dict[str, Any]:
    """A new frame with its share of the refreshed frames and of the change to the next window, or a text token."""
    assert system.core
    config, policy = system.core.config, PROGRAMS["codecsight"]
    assert isinstance(policy, machine.CodecSightPolicy)

    def step(before: int) -> dict[str, Any]:
        programs = compile_window_step(
            config, model, policy, tokens=numbers.tokens, before=before, slots=numbers.slots, visual=visual
        )
        return _layers(programs.run(timing(system)), copies=False)

    if not visual:
        return step(numbers.before)
    carries = carried(policy, model.tokens_per_frame)
    carry = _repeated(*(
        compile_carry(config, model, policy, carries, slots=numbers.slots, layers=layers).run(timing(system))
        for layers in (LAYERS - 1, LAYERS)
    ))  # fmt: skip
    return _sum_of(
        (step(numbers.before), 1), (step(numbers.refreshed_before), numbers.refreshed), (carry, 1 / policy.stride)
    )


def carried(policy: machine.CodecSightPolicy, size: int) -> list[Carry]:
    """Slots that a window takes over from the one before, all by the same angles; frames have `size` tokens."""
    plan, first = window_plan(1, policy.rules()), policy.stride
    carries = list[Carry]()
    for frame, action in plan.items():
        number = frame - first
        if action != REUSE:
            continue
        if carries and carries[-1].target + carries[-1].count == number * size:
            last = carries.pop()
            carries.append(replace(last, count=last.count + size))
        else:
            carries.append(Carry(frame * size, number * size, size, 1))
    return carries


def check() -> dict[str, Any]:
    """A run that takes seconds: a frame of a model with small layers, whose record a test holds to the code."""
    return simulate(Point("vrex8", "frame", 6000), replace(LLAMA3_8B, hidden=512, ffn=1024))


def simulate_vision(system: System, model: Model = LLAMA3_8B) -> dict[str, Any]:
    """Run the vision tower of a frame."""
    assert system.core
    return _entry(compile_vision(system.core.config, model).run(timing(system)))


def simulate_head(system: System, tokens: int, batch: int = 1, model: Model = LLAMA3_8B) -> dict[str, Any]:
    """Run the LM head after a step with two parts of the vocabulary; cycles of the whole one.

    `tokens` : of each of `batch` streams
    """
    assert system.core
    config, cycles, moved = system.core.config, list[int](), list[Traffic]()
    numbers = StepNumbers(
        past=32, tokens=tokens, cluster_tokens=32, selected=1, fetched=0, rows=tokens * model.group, passes=1
    )
    step = workload_step(config, numbers)
    for vocabulary in HEAD_VOCABULARIES:
        part = replace(model, vocab=vocabulary, ffn=HEAD_FFN)
        programs = compile_step(config, part, step, tokens=tokens, past=32, layers=1, answer=True, batch=batch)
        result = programs.run(timing(system))
        cycles.append(result.cycles - result.ends[-1])
        moved.append(result.traffic - result.moved[-1])
    (few, many), (first, second) = HEAD_VOCABULARIES, cycles
    parts = (model.vocab - few) / (many - few)
    traffic = [round(a + (b - a) * parts) for a, b in zip(*map(astuple, moved), strict=True)]
    return {"cycles": round(first + (second - first) * parts), "traffic": traffic}


def _entry(result: Run) -> dict[str, Any]:
    return {
        "cycles": result.cycles, "repeated": result.repeated, "layers": len(result.ends),
        "traffic": list(astuple(result.traffic)), "repeated traffic": list(astuple(result.repeated_traffic)),
    }  # fmt: skip


def _layers(result: Run, *, copies: bool) -> dict[str, Any]:
    """Entry of layers with their critical path. `copies` : pages are fetched"""
    path = shares(critical_path(result.model.commands), *result.ends[:2], copies=copies)
    waits = [dict(zip(("command", "unit", "memory", "share"), entry, strict=True)) for entry in path[:PATH_COMMANDS]]
    return _entry(result) | {"critical path": waits}


def _repeated(few: Run, many: Run) -> dict[str, Any]:
    """Entry of `LAYERS` layers whose ends are not marked, from a run with one layer less."""
    traffic = many.traffic, many.traffic - few.traffic
    return {
        "cycles": many.cycles, "repeated": many.cycles - few.cycles, "layers": LAYERS,
        "traffic": list(astuple(traffic[0])), "repeated traffic": list(astuple(traffic[1])),
    }  # fmt: skip


def _sum_of(*parts: tuple[Mapping[str, Any], float]) -> dict[str, Any]:
    """Entry of several runs, each a number of times; the critical path is that of the first one."""
    result = dict(parts[0][0])
    for name in ("cycles", "repeated"):
        result[name] = round(sum(times * entry[name] for entry, times in parts))
    for name in ("traffic", "repeated traffic"):
        result[name] = [
            round(sum(times * moved for moved, times in column))
            for column in zip(*([(moved, times) for moved in entry[name]] for entry, times in parts), strict=True)
        ]
    return result
