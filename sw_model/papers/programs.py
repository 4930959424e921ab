"""Frames and text tokens from the programs of the cores, next to the paper and the closed formulas.

A run of the cycle model takes minutes, so `data/programs.json` records its cycles and bytes. The record is written by
`tests/sw_model/papers/bench_programs.py`; a test holds it to the code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache
from typing import Any

from compiler import policies as machine
from hw.dre.wtu.wtu import WtuDesign
from sw_model import workloads
from sw_model.assumptions import Assumptions
from sw_model.cycles.core import Traffic
from sw_model.energy import consumers_j
from sw_model.engine import PS_PER_S
from sw_model.model import policy_for, run
from sw_model.papers.figures import CONTEXTS, DATA, published
from sw_model.policies import Policy
from sw_model.policies.hybrid import Hybrid
from sw_model.systems import System, load_system
from sw_model.workloads import LLAMA3_8B, Model
from util import text
from util.files import read_json

RECORD, COMMAND = DATA / "programs.json", "python -m tests.sw_model.papers.bench_programs"
POLICY = "resv"
SYSTEMS = ("vrex8", "vrex48")
STAGES = ("frame", "text")
TABLE_CONTEXTS = (1000, 10000, 40000, 200000)
# policies of the machine as the closed formulas schedule them: what is fetched ahead is selected by the layer before.
# A frame is one step, so that QuickPrefill prunes each frame
PROGRAMS: dict[str, machine.Policy] = {
    policy.name: policy
    for policy in (
        machine.ResvPolicy(prefetch="next_layer"),
        machine.FullPolicy(prefetch="next_layer"),
        machine.OakenPolicy(prefetch="next_layer"),
        machine.RekvPolicy(),
        machine.QuickPrefillPolicy(group_frames=1, prefetch="next_layer"),
        machine.WindowPolicy(),
        machine.HybridPolicy(),
        machine.InfiniGenPPolicy(),
        machine.MosaicPolicy(prefetch="next_layer"),
        machine.CodecSightPolicy(),
    )
}
# systems of the table of all systems: `window` is `hybrid` without its branch, as its formula counts it
TABLE_POLICIES = (
    "resv", "full", "rekv", "infinigenp", "oaken", "mosaic", "quickprefill", "codecsight", "window", "hybrid",
)  # fmt: skip
SAME_FORMULA = {"window": "hybrid"}
BOUNDED = 1000  # past tokens after which the step of a policy that releases pages does not depend on the past
WTU_DESIGN = WtuDesign.HISTOGRAM.value  # of the cores, see `hw.dre.wtu.wtu.WTU.from_config`


@dataclass(frozen=True)
class Point:
    """A step of one stream or more after `past` tokens of each on a system.

    stage  `frame`: the language model on the tokens of a frame; `text`: on a text token; `vision`: the vision tower
    policy  of `PROGRAMS`
    batch   streams
    """

    system: str
    stage: str
    past: int = 0
    policy: str = POLICY
    batch: int = 1

    @property
    def name(self) -> str:
        """Key of its run in the record; a policy that releases pages has one for all longer pasts."""
        past = min(self.past, BOUNDED) if is_bounded(self.policy) else self.past
        words = [self.system, *([self.policy] if self.policy != POLICY else []), self.stage, *([past] if past else [])]
        return " ".join(map(str, words)) + batch_name(self.batch)

    @property
    def head(self) -> str:
        """Key of the run of its LM head in the record."""
        return f"{self.system} {self.stage} head" + batch_name(self.batch)


def batch_name(batch: int) -> str:
    """End of the key of a run with several streams."""
    return f" x {batch}" if batch > 1 else ""


def program_of(policy: str) -> str | None:
    """The policy of `PROGRAMS` that does what the closed formula of a policy counts; None if there is none."""
    name = {formula: program for program, formula in SAME_FORMULA.items()}.get(policy, policy)
    return name if name in PROGRAMS else None


def is_bounded(policy: str) -> bool:
    """Whether a policy of `PROGRAMS` attends to a constant number of tokens."""
    return isinstance(PROGRAMS.get(policy), machine.WindowPolicy | machine.CodecSightPolicy)


POINTS = [Point(system, stage, past) for system in SYSTEMS for stage in STAGES for past in CONTEXTS]
TABLE_POINTS = [
    Point("vrex8", stage, past, policy) for past in TABLE_CONTEXTS for policy in PROGRAMS for stage in STAGES
]
# the published machine, with keys and values of four bits, and with all that `vrex8-plus` has; their tower is the same
PLUS_SYSTEMS = ("vrex8", "vrex8-kv4", "vrex8-plus")
PLUS_CONTEXTS = (1000, 10000, 40000, 200000, 700000)
PLUS_POINTS = [Point(system, stage, past) for system in PLUS_SYSTEMS for stage in STAGES for past in PLUS_CONTEXTS]
# streams in one step in Fig. 13 of V-Rex
BATCHES = {"vrex8": 4, "vrex48": 8}
BATCH_POINTS = [
    Point(system, stage, past, batch=batch)
    for system, batch in BATCHES.items()
    for stage in STAGES
    for past in (CONTEXTS[0], 10_000, CONTEXTS[-1])
]
TOWERS = [Point(system, "vision") for system in SYSTEMS]
ROWS = [*POINTS, *TABLE_POINTS, *BATCH_POINTS, *TOWERS]  # of the page of the programs


def formula_policy(name: str, model: Model = LLAMA3_8B) -> Policy:
    """The closed formula of a policy, also of those of `PROGRAMS`: `window` is the hybrid without its branch."""
    program = PROGRAMS.get(name)
    if isinstance(program, machine.HybridPolicy):
        return Hybrid(model, ssm_inner=program.inner or 2 * model.q_heads * model.head_dim)
    return Hybrid(model) if isinstance(program, machine.WindowPolicy) else policy_for(name, model)


def workload(point: Point, model: Model = LLAMA3_8B) -> workloads.Workload:
    """The workload of a point for the closed formulas: the language model, without the vision tower."""
    load = {"frame": workloads.frame, "text": workloads.text}[point.stage](point.past, point.batch, model)
    return replace(load, phases=tuple(replace(phase, frames=0) for phase in load.phases))


@lru_cache
def recorded() -> Mapping[str, Any]:
    """Runs of the record by name: cycles, date and commit."""
    return read_json(RECORD, "record of programs")["runs"]


def program_cycles(point: Point, model: Model = LLAMA3_8B) -> int | None:
    """Cycles of a point: layers and LM head, or the vision tower; None if a run is not recorded."""
    parts = _parts(point, model)
    return None if parts is None else sum(run["cycles"] + repeats * run.get("repeated", 0) for run, repeats in parts)


def program_traffic(point: Point, model: Model = LLAMA3_8B) -> Traffic | None:
    """Bytes of a point: layers and LM head; None if a run is not recorded, or not its bytes."""
    parts, total = _parts(point, model), Traffic()
    if parts is None or any("traffic" not in run for run, _ in parts):
        return None
    for run_, repeats in parts:
        total = total.plus(Traffic(*run_["traffic"]))
        if repeats:
            total = total.plus(Traffic(*run_["repeated traffic"]), repeats)
    return total


def _parts(point: Point, model: Model) -> list[tuple[Mapping[str, Any], int]] | None:
    """Recorded runs of a point, with the number of times that the repeated layer of each is added."""
    if point.stage == "vision":
        names, layers = [point.name], model.vision.layers
    else:
        names, layers = [point.name, point.head], model.layers
    if any(name not in recorded() for name in names):
        return None
    first, *others = (recorded()[name] for name in names)
    return [(first, layers - first["layers"]), *((other, 0) for other in others)]


@dataclass(frozen=True)
class Cost:
    """Time, bytes and energy of a step.

    source  `program`: layers and LM head are those of the program; `formula`: of the closed formula
    """

    total_s: float
    device_bytes: float
    link_bytes: float
    energy_j: float
    source: str


def machine_of(system: System) -> System:
    """The system as the RTL and the programs are: the WTU's design, one core that retrieves for all, weights read again
    for each block of vectors."""
    return system.replace(core={"wtu_design": WTU_DESIGN, "retrieval": "one", "weight_reads": "blocks"})


def formula_cost(point: Point) -> Cost:
    """A point by the closed formula of its policy, for the machine of the programs."""
    if point.stage == "vision":  # a frame with its tower minus the frame
        whole = run(machine_of(load_system(point.system)), POLICY, workloads.frame(CONTEXTS[0]))
        rest = formula_cost(replace(point, stage="frame", past=CONTEXTS[0]))
        device, energy = whole.bytes_moved["DRAM"] - rest.device_bytes, whole.total_j - rest.energy_j
        return Cost(whole.total_s - rest.total_s, device, 0.0, energy, "formula")
    return formula_run(point)[0]


@cache  # tables, pages and reports ask for the same points
def formula_run(point: Point) -> tuple[Cost, Mapping[str, float]]:
    """A frame or a text token by the closed formula, and the seconds that each resource works."""
    result = run(machine_of(load_system(point.system)), formula_policy(point.policy), workload(point))
    moved, (timeline,) = result.bytes_moved, result.timelines
    busy_s = {name: ps / PS_PER_S for name, ps in timeline.resource_busy_ps().items()}
    return Cost(result.total_s, moved.get("DRAM", 0), moved.get("PCIe", 0), result.total_j, "formula"), busy_s


def program_cost(point: Point) -> Cost | None:
    """A point by its program; None if it has no program, or its cycles or bytes are not recorded.

    The units work as long as in the closed formula, whose cycles are those of the units. The link works as long as its
    nominal rate needs for the bytes of one direction.
    """
    cycles, traffic, system = program_cycles(point), program_traffic(point), load_system(point.system)
    if point.policy not in PROGRAMS or cycles is None or traffic is None:
        return None
    assert system.core
    total_s = cycles / system.core.clock_mhz / 1e6
    link_s = max(traffic.host_read, traffic.host_written) / system.link.nominal_gbps / 1e9
    busy_s = {**formula_run(point)[1], "PCIe": link_s}
    joules = consumers_j(system, total_s, busy_s, traffic.device, Assumptions().idle_share)
    return Cost(total_s, traffic.device, traffic.host, sum(joules.values()), "program")


@dataclass(frozen=True)
class ProgramRow:
    """A point: time of the paper in ms (None if it gives none), closed formula, program, and bound in ms.

    The bound is the larger one of the formula's bytes of device memory at its peak rate and the bytes of the link at
    its rate. `traffic` : bytes of the program; None if they are not recorded
    """

    point: Point
    paper_ms: float | None
    formula: Cost
    program_ms: float
    traffic: Traffic | None
    bound_ms: float
    bound: str
    waits: list[dict[str, Any]]

    @property
    def over_bound(self) -> float:
        """Time of the program as a multiple of the bound."""
        return self.program_ms / self.bound_ms

    @property
    def formula_error(self) -> float:
        """Relative difference of the time of the closed formula from the program."""
        return self.formula.total_s * 1e3 / self.program_ms - 1

    @property
    def limit(self) -> str:
        """The command with the largest share of the critical path of a layer."""
        return wait(self.waits[0]) if self.waits else ""

    def json(self) -> dict[str, Any]:
        """The row as plain values."""
        return asdict(self) | {
            "point": self.point.name, "policy": self.point.policy, "formula_ms": self.formula.total_s * 1e3,
            "program / bound": self.over_bound,
        }  # fmt: skip


def wait(entry: Mapping[str, Any]) -> str:
    """A command of a critical path with its unit, memory and share."""
    where = f", {entry['memory']}" if entry["memory"] else ""
    return f"{entry['command']} ({entry['unit']} unit{where}): {entry['share']:.0%}"


def program_rows(points: Sequence[Point] = ROWS) -> list[ProgramRow]:
    """The recorded ones of these points, each run once."""
    rows, different = [], dict[str, Point]()
    for point in points:
        different.setdefault(point.name, point)
    for point in different.values():
        cycles = program_cycles(point)
        if cycles is None:
            continue
        system, cost = load_system(point.system), formula_cost(point)
        assert system.core
        times = {
            "device memory": cost.device_bytes / system.device_memory.peak_gbps / 1e6,
            "host link": cost.link_bytes / system.link.nominal_gbps / 1e6,
        }
        bound = max(times, key=lambda name: times[name])
        program = cycles / system.core.clock_mhz / 1e3
        waits, traffic = recorded()[point.name].get("critical path", []), program_traffic(point)
        rows.append(ProgramRow(point, paper_ms(point), cost, program, traffic, times[bound], bound, waits))
    return rows


def paper_ms(point: Point) -> float | None:
    """Published time of a point; that of a frame includes the vision tower."""
    frames, ends = published(), (CONTEXTS[0], CONTEXTS[-1])
    if point.policy != POLICY or point.batch != 1:
        return None
    values = {
        "vrex8 frame": dict(zip(CONTEXTS, frames["vrex.fig13.frame_edge_b1"]["value"], strict=True)),
        "vrex48 frame": dict(zip(ends, frames["vrex.fig13.frame_server"]["value"], strict=True)),
        "vrex8 text": dict(zip(ends, frames["vrex.fig13.tpot_edge"]["value"], strict=True)),
        "vrex48 text": dict(zip(ends, frames["vrex.fig13.tpot_server"]["value"]["ms"], strict=True)),
    }
    return values.get(f"{point.system} {point.stage}", {}).get(point.past)


HEAD = ("system", "policy", "step", "streams", "past tokens", "paper ms", "formula ms", "program ms",
        "formula - program %", "device GB, formula", "program", "link GB, formula", "program", "bound ms", "bound by",
        "program / bound", "largest wait of a layer")  # fmt: skip


def cells(row: ProgramRow) -> tuple[str, ...]:
    """A row of a table with `HEAD`."""
    point, cost, paper = row.point, row.formula, "" if row.paper_ms is None else f"{row.paper_ms:g}"
    moved = ("", "") if row.traffic is None else (f"{row.traffic.device / 1e9:.2f}", f"{row.traffic.host / 1e9:.3f}")
    return (
        point.system, "" if point.stage == "vision" else point.policy, point.stage, str(point.batch),
        f"{point.past:,}" if point.past else "", paper, f"{cost.total_s * 1e3:.1f}", f"{row.program_ms:.1f}",
        f"{100 * row.formula_error:+.1f}", f"{cost.device_bytes / 1e9:.2f}", moved[0], f"{cost.link_bytes / 1e9:.3f}",
        moved[1], f"{row.bound_ms:.1f}", row.bound, f"{row.over_bound:.2f}", row.limit,
    )  # fmt: skip


def as_text(rows: Sequence[ProgramRow]) -> str:
    """A table of text."""
    return text.table(HEAD, [cells(row) for row in rows])
