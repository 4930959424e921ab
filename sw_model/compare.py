"""Comparison of policies on one machine and one workload: latency, bytes, energy and quality.

The cost is that of the policy's program where the cycle model has executed it (`sw_model.papers.programs`), otherwise
that of the closed formula, with each policy's published (or constructed) share of the context. Attention on a key
stream gives the quality; without a trained model it orders policies, and is no measure of accuracy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sw_model.media.stream import Chunk, Geometry
from sw_model.model import policy_for, run
from sw_model.papers.programs import (
    SAME_FORMULA,
    STAGES,
    SYSTEMS,
    TABLE_CONTEXTS,
    TABLE_POLICIES,
    Cost,
    Point,
    formula_cost,
    formula_policy,
    program_cost,
    program_of,
    workload,
)
from sw_model.policies import COMPARED
from sw_model.quality import Quality, policies_for, quality_table
from sw_model.request import Request
from sw_model.result import Result
from sw_model.workloads import LLAMA3_8B
from util import text
from util.progress import Progress, no_progress
from util.report.charts import pareto_front

CONTEXTS = (1000, 2000, 5000, 10000, 20000, 40000, 80000)
# compared quantities; the smallest value is the best
MEASURES: dict[str, Callable[[Side], float]] = {
    "latency": lambda side: side.latency_ms,
    "link bytes": lambda side: side.link_gb,
    "memory bytes": lambda side: side.memory_gb,
    "energy": lambda side: side.energy_j,
}
MARGIN = 0.01  # a policy within this share of the smallest value is a winner too


@dataclass(frozen=True)
class Side:
    """The cost of one step under one policy at one context length.

    tokens      context length in tokens
    latency_ms  time of the step
    link_gb     10**9 bytes over the host link
    memory_gb   10**9 bytes through device memory
    energy_j    joules
    source      `program` or `formula`; the vision tower of a frame is always that of the formula
    """

    policy: str
    tokens: int
    latency_ms: float
    link_gb: float
    memory_gb: float
    energy_j: float
    source: str = "formula"


def compare(
    base: Request,
    policies: Sequence[str] = COMPARED,
    contexts: Sequence[int] = CONTEXTS,
    progress: Progress = no_progress,
) -> list[Side]:
    """The cost of every policy at every context length, ordered by context; `base` sets everything else.

    Raises ValueError for an unknown policy or an invalid context length.
    """
    sides = []
    for tokens in contexts:
        for policy in policies:
            request = base.replace(policy=policy, tokens=tokens)
            cost = program_side(request) or _cost(request.run())
            name, gb = policy_for(policy, LLAMA3_8B).name, (cost.link_bytes / 1e9, cost.device_bytes / 1e9)
            sides.append(Side(name, tokens, cost.total_s * 1e3, *gb, cost.energy_j, cost.source))
            progress("policies", len(sides), len(contexts) * len(policies))
    return sides


def program_side(request: Request) -> Cost | None:
    """The cost of a run from a recorded program, with the vision tower of the formula; None if there is none."""
    default = Request(tokens=request.tokens, system=request.system, policy=request.policy, workload=request.workload)
    if request != default or request.system not in SYSTEMS or request.workload not in STAGES:
        return None
    name = program_of(request.policy)
    if name is None:
        return None
    point = Point(request.system, request.workload, request.tokens, name)
    program = program_cost(point)
    if program is None:
        return None
    whole, rest = _cost(request.run()), _cost(run(request.machine(), formula_policy(name), workload(point)))
    parts = ("total_s", "device_bytes", "link_bytes", "energy_j")
    added = {part: getattr(program, part) + getattr(whole, part) - getattr(rest, part) for part in parts}
    return replace(program, **added)


def _cost(result: Result) -> Cost:
    moved = result.bytes_moved
    return Cost(result.total_s, moved.get("DRAM", 0), moved.get("PCIe", 0), result.total_j, "formula")


@dataclass(frozen=True)
class SystemRow:
    """One system of the papers after some tokens on V-Rex8: a frame and a text token without the vision tower.

    frame, text  costs of the steps
    quality      attention of frames on a stream of another length; None: the policy was not measured
    """

    policy: str
    tokens: int
    frame: Cost
    text: Cost
    quality: Quality | None


def system_table(
    quality: Sequence[Quality], contexts: Sequence[int] = TABLE_CONTEXTS, progress: Progress = no_progress
) -> list[SystemRow]:
    """Every system at every context length, from programs where they are recorded; `quality` : of its attention."""
    measured = {row.policy: row for row in quality if row.stage == "frame"}
    rows = list[SystemRow]()
    for tokens in contexts:
        for name in TABLE_POLICIES:
            points = [Point(SYSTEMS[0], stage, tokens, name) for stage in STAGES]
            frame, token = (program_cost(point) or formula_cost(point) for point in points)
            rows.append(SystemRow(name, tokens, frame, token, measured.get(SAME_FORMULA.get(name, name))))
            progress("systems", len(rows), len(contexts) * len(TABLE_POLICIES))
    return rows


SYSTEM_HEAD = ("system", "tokens", "frame ms", "token ms", "link MB", "device GB", "J", "recall %", "output error",
               "source of frame", "of token")  # fmt: skip


def measured_policies() -> list[str]:
    """Policies whose quality the table of systems shows."""
    return list(dict.fromkeys(SAME_FORMULA.get(name, name) for name in TABLE_POLICIES))


def system_text(rows: Sequence[SystemRow]) -> str:
    """The rows as a table of text."""
    return text.table(SYSTEM_HEAD, [system_cells(row) for row in rows])


def system_cells(row: SystemRow) -> tuple[str, ...]:
    """A row of a table with `SYSTEM_HEAD`; bytes and energy are those of the frame."""
    f, q = row.frame, row.quality
    return (
        row.policy, f"{row.tokens:,}", f"{f.total_s * 1e3:.1f}", f"{row.text.total_s * 1e3:.1f}",
        f"{f.link_bytes / 1e6:.1f}", f"{f.device_bytes / 1e9:.2f}", f"{f.energy_j:.2f}",
        "" if q is None else f"{100 * q.recall:.1f}", "" if q is None else f"{q.output_error:.4f}", f.source,
        row.text.source,
    )  # fmt: skip


def winners(sides: Sequence[Side]) -> dict[int, dict[str, list[str]]]:
    """Per context length and measure, the policies within 1 % of the smallest value, smallest first."""
    result: dict[int, dict[str, list[str]]] = {}
    for tokens in dict.fromkeys(side.tokens for side in sides):
        candidates = [side for side in sides if side.tokens == tokens]
        result[tokens] = {}
        for name, measure in MEASURES.items():
            minimum = min(map(measure, candidates))
            best = sorted((measure(s), s.policy) for s in candidates if measure(s) <= (1 + MARGIN) * minimum)
            result[tokens][name] = [policy for _, policy in best]
    return result


def trade(
    sides: Sequence[Side], quality: Sequence[Quality], tokens: int, stage: str
) -> tuple[dict[str, tuple[float, float]], list[str]]:
    """(latency in ms, output error) of each policy at one context length, and the names on the Pareto front.

    `tokens` should be the context length nearest to the length of the stream that gave `quality`, because the error of
    a policy with a fixed budget grows with the length.
    """
    errors: Mapping[str, float] = {row.policy: row.output_error for row in quality if row.stage == stage}
    points = {
        side.policy: (side.latency_ms, errors[side.policy])
        for side in sides
        if side.tokens == tokens and side.policy in errors
    }
    return points, pareto_front(points)


def measure(
    chunks: Iterable[Chunk], geometry: Geometry, tokens_per_frame: int, policies: Sequence[str], every: int
) -> tuple[list[Quality], int]:
    """The quality of policies on a stream, measured on every `every`-th step, and the stream's length in tokens."""
    length = 0

    def counted() -> Iterator[Chunk]:
        nonlocal length
        for chunk in chunks:
            length += chunk.tokens
            yield chunk

    return quality_table(counted(), policies_for(geometry, tokens_per_frame, policies), every=every), length


def as_text(sides: Sequence[Side]) -> str:
    """A table of the costs, then a table of the winners."""
    head = ("policy", "tokens", "ms", "link GB", "memory GB", "J", "source")
    rows = [
        (s.policy, str(s.tokens), f"{s.latency_ms:.2f}", f"{s.link_gb:.3f}", f"{s.memory_gb:.2f}",
         f"{s.energy_j:.3f}", s.source)
        for s in sides
    ]  # fmt: skip
    best = [(str(tokens), *(", ".join(names[m]) for m in MEASURES)) for tokens, names in winners(sides).items()]
    return text.table(head, rows) + "\n\nsmallest, within 1 %\n" + text.table(("tokens", *MEASURES), best)
