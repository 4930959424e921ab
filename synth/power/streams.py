"""The record of a stimulus: input streams, port values and golden answers of one run of a unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

IDLE, RANDOM = "idle", "random"
IDLE_CYCLES = 1000
BEATS = 200  # tokens of a stream
STEP = 10  # tokens of one step, as of a frame


@dataclass(frozen=True)
class Stimulus:
    """Streams and port values of one run, as arguments of `sim.bench.run.simulate`.

    `answers` are the golden model's beats of the output streams as payload columns, for the units with answers.
    `memory` is the image of the memory behind the jobs of a unit that has them.
    """

    name: str
    inputs: Mapping[str, Any]
    outputs: Mapping[str, int]
    config: Mapping[str, int] = field(default_factory=dict)
    echo: Mapping[str, str] = field(default_factory=dict)
    drain_cycles: int = 8
    answers: Mapping[str, Any] = field(default_factory=dict)
    memory: np.ndarray | None = None


def drain(count: int) -> int:
    """Cycles after the last beat; an idle run consists of these."""
    return 8 if count else IDLE_CYCLES
