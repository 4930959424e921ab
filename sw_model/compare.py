"""Policies side by side on one machine and one workload: latency, bytes, energy, quality, and who wins where.

Cost comes from the system model with each policy's published (or constructed) share of the context. Quality comes from
attention on a key stream; without a trained model it orders policies, and says nothing about accuracy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sw_model.media.stream import Chunk, Geometry
from sw_model.policies import COMPARED
from sw_model.quality import Quality, policies_for, quality_table
from sw_model.request import Request
from util import text
from util.report.charts import pareto_front

CONTEXTS = (1000, 2000, 5000, 10000, 20000, 40000, 80000)
# what is compared, less being better
MEASURES: dict[str, Callable[[Side], float]] = {
    "latency": lambda side: side.latency_ms,
    "link bytes": lambda side: side.link_gb,
    "memory bytes": lambda side: side.memory_gb,
    "energy": lambda side: side.energy_j,
}
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Side:
    """One policy at one context length: ms, GB over the host link, GB through device memory, J of one step."""

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
    progress: Progress | None = None,
) -> list[Side]:
    """Every policy at every context length, contexts outermost; everything else is `base`'s."""
    sides = []
    for tokens in contexts:
        for policy in policies:
            result = base.replace(policy=policy, tokens=tokens).run()
            moved = result.bytes_moved
            sides.append(
                Side(
                    result.policy,
                    tokens,
                    result.total_s * 1e3,
                    moved.get("PCIe", 0) / 1e9,
                    moved.get("DRAM", 0) / 1e9,
                    result.total_j,
                )
            )
            if progress:
                progress("policies", len(sides), len(contexts) * len(policies))
    return sides


def winners(sides: Sequence[Side]) -> dict[int, dict[str, list[str]]]:
    """Per context length and measure, the policies within 1 % of the least, least first."""
    found: dict[int, dict[str, list[str]]] = {}
    for tokens in dict.fromkeys(side.tokens for side in sides):
        here = [side for side in sides if side.tokens == tokens]
        found[tokens] = {}
        for name, measure in MEASURES.items():
            least = min(map(measure, here))
            best = sorted((measure(side), side.policy) for side in here if measure(side) <= 1.01 * least)
            found[tokens][name] = [policy for _, policy in best]
    return found


def trade(
    sides: Sequence[Side], quality: Sequence[Quality], tokens: int, stage: str
) -> tuple[dict[str, tuple[float, float]], list[str]]:
    """(latency, output error) of each policy at one context length, and the policies that none beats in both.

    The context should be the one nearest to the stream's length, for the error of a fixed budget grows with it."""
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
    """The quality of policies on a stream, and the stream's length in tokens."""
    length = 0

    def counted() -> Iterator[Chunk]:
        nonlocal length
        for chunk in chunks:
            length += chunk.tokens
            yield chunk

    return quality_table(counted(), policies_for(geometry, tokens_per_frame, policies), every=every), length


def as_text(sides: Sequence[Side]) -> str:
    """All sides, then the winners."""
    head = ("policy", "tokens", "ms", "link GB", "memory GB", "J")
    rows = [
        (s.policy, str(s.tokens), f"{s.latency_ms:.2f}", f"{s.link_gb:.3f}", f"{s.memory_gb:.2f}", f"{s.energy_j:.3f}")
        for s in sides
    ]
    won = [(str(tokens), *(", ".join(best[name]) for name in MEASURES)) for tokens, best in winners(sides).items()]
    return text.table(head, rows) + "\n\nleast, within 1 %\n" + text.table(("tokens", *MEASURES), won)
