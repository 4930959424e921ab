"""Search of the capacity: the largest number of streams that the devices serve within a limit of the frame latency."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sw_model.serving.arrivals import arrivals_of
from sw_model.serving.parameters import Serving
from sw_model.serving.result import Figures, ServingResult
from sw_model.serving.simulate import simulate
from sw_model.serving.step_times import StepTimes


@dataclass(frozen=True)
class Capacity:
    """The result of a search.

    streams  the capacity; 0: not even one stream
    limit    what prevents one more stream: `memory`; `frame`, `first_token` or `per_token` (too few requests within the
             limit); or `max_streams`
    best     the simulation of `streams` streams; None for 0
    next     the simulation of one stream more; None if `max_streams` ends the search
    """

    streams: int
    limit: str
    best: ServingResult | None
    next: ServingResult | None

    def figures(self) -> Figures:
        """The capacity as one flat row."""
        row: Figures = {"capacity_streams": self.streams, "limited_by": self.limit}
        for name, result in (("", self.best), ("next_", self.next)):
            values = result.figures() if result else {}
            names = ("frame_p50_ms", "frame_p95_ms", "frame_p99_ms", "frame_attained", "first_token_p99_ms",
                     "per_token_p99_ms", "busy_max", "memory_gb")  # fmt: skip
            row |= {f"{name}{key}": values.get(key) for key in names}
        return row


def capacity(serving: Serving, times: StepTimes, context: int, batch: int) -> Capacity:
    """The largest number of streams, up to `serving.max_streams`, that hold `serving.limit_ms`.

    The number is doubled until it does not hold, then bisected. The arrivals of a stream do not depend on the number of
    streams, so one more stream only adds requests. Arguments and errors are those of `simulate`.
    """
    most = serving.max_streams
    if serving.trace:
        most = arrivals_of(replace(serving, streams=most)).streams
    results: dict[int, ServingResult] = {}

    def holds(streams: int) -> bool:
        results[streams] = simulate(replace(serving, streams=streams), times, context, batch)
        return results[streams].holds()

    good, tried = 0, 1
    while holds(tried):
        good = tried
        if tried == most:
            return Capacity(good, "max_streams", results[good], None)
        tried = min(2 * tried, most)
    bad = tried
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if holds(middle) else (good, middle)
    return Capacity(good, reason(results[bad]), results.get(good), results[bad])


def reason(result: ServingResult) -> str:
    """Why a simulation does not hold its limits: the first of `memory`, and of the requests with too small a share."""
    if result.admission.refused:
        return "memory"
    attained = result.attained()
    return next(name for name in attained if attained[name] < result.serving.attainment)
