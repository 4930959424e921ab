"""Times of steps from the event model, as a table that is filled where the simulation needs it.

A step has a kind, a number of streams (its batch), a mean context length, and bytes that each layer fetches over the
host link. The axes of the table are these four. A cell is one run of the event model (`sw_model.model.scheduled_work`)
on a batch of equal streams; between the cells the time is interpolated linearly. The axis of the bytes is fine, because
the time has a bend where the fetch becomes longer than the computation that hides it.
`exact_ps` is the time of a batch of different streams without the table: the work of the batch is the mean of the works
of its streams, each multiplied by the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

import numpy as np

from sw_model.assumptions import Assumptions
from sw_model.model import policy_for, scheduled_work
from sw_model.policies import Policy, Step, Work
from sw_model.serving.parameters import KINDS, MAX_BATCH
from sw_model.systems import System
from sw_model.workloads import LLAMA3_8B, Model, Phase

BATCHES = np.array([*range(1, 16), *range(16, 32, 2), *range(32, MAX_BATCH + 1, 4)], np.int64)
CONTEXTS = np.array([0, *(round(250 * 2 ** (k / 4)) for k in range(57))], np.int64)  # tokens; the last is 4,096,000
# bytes: fine where a fetch can be about as long as the computation of a layer; the last is 1.1e12
FETCHES = np.array([0, *(round(2**20 * 1.02**k) for k in range(386)), *(2**k for k in range(32, 41))], np.int64)
FETCH_POINTS = 1024  # contexts of a stream at which its fetched bytes are computed


class StepTimes:
    """Times of the steps of one policy on one system.

    table  int64 (kinds, batches, contexts, fetches), picoseconds; -1 where the event model did not run yet
    """

    def __init__(
        self,
        system: System,
        policy: str,
        *,
        question_tokens: int,
        link: str = "paper",
        assume: Assumptions | None = None,
        ratio: float | None = None,
        memory_detail: bool = False,
        model: Model = LLAMA3_8B,
    ) -> None:
        self.system, self.model, self.link, self.ratio = system, model, link, ratio
        self.policy: Policy = policy_for(policy, model)
        self.assume = assume or system.assumptions
        self.memory_detail = memory_detail
        self.new_tokens = (model.tokens_per_frame, question_tokens, 1)
        self.table = np.full((len(KINDS), len(BATCHES), len(CONTEXTS), len(FETCHES)), -1, np.int64)

    @property
    def max_resident(self) -> int:
        """Largest number of tokens of a stream that the policy keeps in device memory."""
        if self.system.kind in self.policy.offloads_all:
            return 0
        return self.assume.resident_tokens if self.assume.residency == "recent" else int(CONTEXTS[-1])

    def stage(self, kind: int) -> str:
        """Stage of a kind of step, which selects the retrieval ratio."""
        return "text" if kind else "frame"

    def work(self, kind: int, context: int, batch: int, resident: int = 0) -> Work:
        """The work of one layer for `batch` equal streams."""
        step = Step(
            self.new_tokens[kind], context, self.stage(kind), self.model, batch, self.ratio, resident,
            self.assume.kv_bits, self.system.kind,
        )  # fmt: skip
        return self.policy.account(step)

    def scheduled_ps(self, kind: int, batch: int, context: int, work: Work) -> int:
        """Time of a step with `work` in every layer, from the event model."""
        phase = Phase(self.stage(kind), context, self.new_tokens[kind], frames=int(kind == 0))
        scheduled = scheduled_work(
            self.policy, self.system, self.model, phase, batch, work, self.assume, self.link, self.memory_detail
        )
        return scheduled.timeline.makespan_ps

    def fill(self, kind: int, batch: int, context: int, fetch: int) -> None:
        """Compute one cell; the arguments after `kind` are indices of the axes."""
        size, tokens, fetched = int(BATCHES[batch]), int(CONTEXTS[context]), int(FETCHES[fetch])
        extent = self.work(kind, max(tokens, int(CONTEXTS[1])), size).extent_bytes  # an empty context has none
        work = self.work(kind, tokens, size)
        work = replace(work, fetch_bytes=float(fetched), fetch_extents=fetched / extent if extent else 0.0)
        self.table[kind, batch, context, fetch] = self.scheduled_ps(kind, size, tokens, work)

    def exact_ps(self, kind: int, contexts: Sequence[int], resident: int) -> int:
        """Time of a step of streams with different contexts, from the event model without the table."""
        batch = len(contexts)
        works = [self.work(kind, context, batch, min(context, resident)) for context in contexts]
        return self.scheduled_ps(kind, batch, round(sum(contexts) / batch), mean_work(works))

    def fetched_bytes(self, contexts: np.ndarray, resident: int) -> np.ndarray:
        """Bytes that one layer of one stream selects outside the `resident` tokens, float64 (kinds, len(contexts))."""
        return np.array(
            [[self.work(kind, int(n), 1, resident).fetch_bytes for n in contexts] for kind in range(len(KINDS))]
        )


def mean_work(works: Sequence[Work]) -> Work:
    """The mean of works of the same policy and kind."""
    values: dict[str, Any] = {}
    for field in fields(Work):
        column = [getattr(work, field.name) for work in works]
        if field.name == "matmuls":
            means = [np.mean([m[:-1] for m in same], axis=0).tolist() for same in zip(*column, strict=True)]
            values[field.name] = tuple(
                m._replace(vectors=v, inputs=i, outputs=o, times=n)
                for m, (v, i, o, n) in zip(column[0], means, strict=True)
            )
        elif field.name not in ("schedule", "common_selection"):
            values[field.name] = float(np.mean(column))
    return replace(works[0], **values)


@lru_cache(maxsize=8)
def step_times(
    system: System,
    policy: str,
    question_tokens: int,
    link: str,
    assume: Assumptions,
    ratio: float | None,
    memory_detail: bool,
) -> StepTimes:
    """The table of a system and a policy; runs of one process share it."""
    return StepTimes(
        system,
        policy,
        question_tokens=question_tokens,
        link=link,
        assume=assume,
        ratio=ratio,
        memory_detail=memory_detail,
    )
