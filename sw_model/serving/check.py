"""Comparison of simulated steps with the event model."""

from __future__ import annotations

from sw_model.serving.result import ServingResult
from sw_model.serving.step_times import StepTimes


def differences(result: ServingResult, times: StepTimes, steps: int) -> list[float]:
    """Relative differences between the times of some logged steps and of the event model.

    The event model computes each step from the contexts of its streams, without the table. `steps` is the largest
    number of compared steps; they are evenly spaced in the log.
    """
    log = result.log[:: max(1, len(result.log) // max(1, steps))][:steps]
    exact = [times.exact_ps(step.kind, step.contexts, step.resident_tokens) for step in log]
    return [abs(step.duration_ps / ps - 1) for step, ps in zip(log, exact, strict=True)]
