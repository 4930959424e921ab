"""The result of a serving simulation: what happened to each request, and percentiles of latencies."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sw_model.serving.admission import Admission
from sw_model.serving.arrivals import Arrivals
from sw_model.serving.kernel import REFUSED
from sw_model.serving.parameters import FRAME, KINDS, PS_PER_MS, QUESTION, Serving

PERCENTILES = (50, 95, 99)
Figures = dict[str, float | int | bool | str | None]


@dataclass(frozen=True)
class LoggedStep:
    """One step: kind, contexts of its streams in tokens, resident tokens of each stream, time in picoseconds."""

    kind: int
    contexts: list[int]
    resident_tokens: int
    duration_ps: int


@dataclass(frozen=True)
class ServingResult:
    """The result of one simulation; arrays have one entry per request, in the order of `arrivals`.

    first_token_ps  end of the step of a question
    finish_ps       end of a frame's step, or of the last token of an answer; `kernel.REFUSED` for a refused request
    served          how often a request ended: 0 or 1
    busy_ps, steps, members  int64 (devices, kinds): time of the steps, steps, and streams in these steps
    end_ps          end of the last step
    log             some of the steps
    """

    serving: Serving
    arrivals: Arrivals
    admission: Admission
    first_token_ps: np.ndarray = field(repr=False)
    finish_ps: np.ndarray = field(repr=False)
    served: np.ndarray = field(repr=False)
    busy_ps: np.ndarray
    steps: np.ndarray
    members: np.ndarray
    end_ps: int
    log: tuple[LoggedStep, ...] = field(repr=False)

    def of_kind(self, kind: int, refused: bool = False) -> np.ndarray:
        """Positions of the frames or questions that were served, or refused."""
        return np.flatnonzero((self.arrivals.kind == kind) & ((self.finish_ps == REFUSED) == refused))

    def frame_ms(self) -> np.ndarray:
        """Latency of every served frame: end of its step less arrival."""
        at = self.of_kind(FRAME)
        return (self.finish_ps[at] - self.arrivals.time_ps[at]) / PS_PER_MS

    def first_token_ms(self) -> np.ndarray:
        """Time to first token (TTFT) of every served question: end of its step less arrival."""
        at = self.of_kind(QUESTION)
        return (self.first_token_ps[at] - self.arrivals.time_ps[at]) / PS_PER_MS

    def per_token_ms(self) -> np.ndarray:
        """Time per output token (TPOT): mean over the tokens of an answer after the first, for every such answer."""
        at = self.of_kind(QUESTION)
        at = at[self.arrivals.answer_tokens[at] > 1]
        span = self.finish_ps[at] - self.first_token_ps[at]
        return span / (self.arrivals.answer_tokens[at] - 1) / PS_PER_MS

    def attained(self) -> dict[str, float]:
        """Share of the offered requests that are within each limit; a refused request is not. 1 without requests.

        `frame`: frames within `limit_ms`; `first_token`: questions within their limit, or served if there is none;
        `per_token`: answers within their limit, or served if there is none.
        """
        serving = self.serving
        frames = int(np.sum(self.arrivals.kind == FRAME))
        questions, answers = len(self.arrivals) - frames, int(np.sum(self.arrivals.answer_tokens > 1))
        limits = {
            "frame": (self.frame_ms(), serving.limit_ms, frames),
            "first_token": (self.first_token_ms(), serving.first_token_limit_ms, questions),
            "per_token": (self.per_token_ms(), serving.per_token_limit_ms, answers),
        }
        within = {name: int(np.sum(values <= (limit or np.inf))) for name, (values, limit, _) in limits.items()}
        return {name: within[name] / offered if offered else 1.0 for name, (_, _, offered) in limits.items()}

    def holds(self) -> bool:
        """Whether all streams are admitted, and enough requests are within each limit."""
        return not self.admission.refused and min(self.attained().values()) >= self.serving.attainment

    def figures(self) -> Figures:
        """The result as one flat row. A percentile without requests is None; `refusal` is why a stream was refused."""
        frames = int(np.sum(self.arrivals.kind == FRAME))
        row: Figures = {
            "streams": self.arrivals.streams,
            "refused_streams": len(self.admission.refused),
            "refusal": next(iter(self.admission.refused.values()), ""),
            "frames": frames,
            "refused_frames": len(self.of_kind(FRAME, refused=True)),
            "questions": len(self.arrivals) - frames,
            "refused_questions": len(self.of_kind(QUESTION, refused=True)),
        }
        latencies = {"frame": self.frame_ms(), "first_token": self.first_token_ms(), "per_token": self.per_token_ms()}
        for name, values in latencies.items():
            for share in PERCENTILES:
                row[f"{name}_p{share}_ms"] = percentile(values, share)
        busy = self.busy_ps.sum(axis=1) / max(1, self.end_ps)
        row |= {
            **{f"{name}_attained": share for name, share in self.attained().items()},
            "holds": self.holds(),
            "busy_mean": float(busy.mean()),
            "busy_max": float(busy.max()),
            "resident_tokens": min(
                (device.resident_tokens for device in self.admission.devices if len(device.streams)), default=0
            ),
            "memory_gb": max(device.memory_bytes for device in self.admission.devices) / 1e9,
            "end_s": self.end_ps / 1e12,
        }
        steps, members = self.steps.sum(axis=0), self.members.sum(axis=0)
        row |= {f"batch.{kind}": float(members[k] / max(1, steps[k])) for k, kind in enumerate(KINDS)}
        return row


def percentile(values: np.ndarray, share: float) -> float | None:
    """The smallest value that at least `share` per cent of the values do not exceed; None without values."""
    return float(np.percentile(values, share, method="inverted_cdf")) if len(values) else None
