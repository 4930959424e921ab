"""Comparison of policies on one machine and one workload: latency, bytes, energy and quality.

The system model gives the cost, with each policy's published (or constructed) share of the context. Attention on a key
stream gives the quality; without a trained model it orders policies, and is no measure of accuracy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sw_model.media.stream import Chunk, Geometry
from sw_model.policies import COMPARED
from sw_model.quality import Quality, policies_for, quality_table
from sw_model.request import Request
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
    """

    policy: str
    tokens: int
    latency_ms: float
    link_gb: float
    memory_gb: float
    energy_j: float


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
            result = base.replace(policy=policy, tokens=tokens).run()
            bytes_moved = result.bytes_moved
            sides.append(
                Side(
                    result.policy,
                    tokens,
                    result.total_s * 1e3,
                    bytes_moved.get("PCIe", 0) / 1e9,
                    bytes_moved.get("DRAM", 0) / 1e9,
                    result.total_j,
                )
            )
            progress("policies", len(sides), len(contexts) * len(policies))
    return sides


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
    head = ("policy", "tokens", "ms", "link GB", "memory GB", "J")
    rows = [
        (s.policy, str(s.tokens), f"{s.latency_ms:.2f}", f"{s.link_gb:.3f}", f"{s.memory_gb:.2f}", f"{s.energy_j:.3f}")
        for s in sides
    ]
    best = [(str(tokens), *(", ".join(names[m]) for m in MEASURES)) for tokens, names in winners(sides).items()]
    return text.table(head, rows) + "\n\nsmallest, within 1 %\n" + text.table(("tokens", *MEASURES), best)
