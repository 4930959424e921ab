"""The table of step times compared with the event model."""

import random

import numpy as np
import pytest

from sw_model import workloads
from sw_model.model import run
from sw_model.policies import POLICIES
from sw_model.serving import kernel
from sw_model.serving.step_times import BATCHES, CONTEXTS, FETCHES, StepTimes, mean_work
from sw_model.systems import load_system


def interpolated_ps(times, kind, contexts, resident):
    fetch = float(times.fetched_bytes(np.array(contexts), resident)[kind].sum())
    missing = np.zeros(4, np.int64)
    arguments = (BATCHES, CONTEXTS, FETCHES, len(contexts), sum(contexts) / len(contexts), fetch, missing)
    while (duration := kernel.compiled_interpolated(times.table[kind], *arguments)) < 0:
        times.fill(kind, *map(int, missing[1:]))
    return duration


@pytest.mark.parametrize(("system", "policy"), [("vrex8", "resv"), ("a100", "full"), ("agx-orin", "mosaic")])
def test_equal_streams_are_a_run_of_the_model(system, policy):
    """A batch of equal streams takes the time of `vrex model`; for the table to a bend in one of its cells."""
    machine = load_system(system)
    times = StepTimes(machine, policy, question_tokens=25)
    for kind, workload in ((0, workloads.frame), (2, workloads.text)):
        expected = run(machine, policy, workload(8000, 4)).total_s
        assert times.exact_ps(kind, [8000] * 4, times.max_resident) / 1e12 == expected
        assert interpolated_ps(times, kind, [8000] * 4, times.max_resident) / 1e12 == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(("system", "policy"), [("vrex8", "resv"), ("vrex48", "infinigenp"), ("a100", "oaken")])
def test_random_batches(system, policy):
    """Batches of different streams: 90 % of the times within 3 %, and the mean within 1 %.

    The event model itself jumps by several per cent at some context lengths, so the largest difference is larger.
    """
    times, rng, errors = StepTimes(load_system(system), policy, question_tokens=25), random.Random(system), []
    for _ in range(10):
        kind, batch, middle = rng.choice((0, 0, 1, 2)), rng.choice((1, 2, 5, 12)), rng.choice((3000, 15000))
        contexts = [int(middle * rng.uniform(0.7, 1.4)) for _ in range(batch)]
        resident = min(times.max_resident, rng.choice((1000, 4096)))
        errors.append(interpolated_ps(times, kind, contexts, resident) / times.exact_ps(kind, contexts, resident) - 1)
    errors = np.abs(errors)
    assert np.quantile(errors, 0.9) < 0.03 and errors.mean() < 0.01 and errors.max() < 0.08


@pytest.mark.parametrize("policy", POLICIES)
def test_mean_work_of_equal_works(policy):
    times = StepTimes(load_system("vrex8"), policy, question_tokens=25)
    work = times.work(0, 5000, 4, 1000)
    assert mean_work([work] * 4) == work
    other = times.work(0, 9000, 4, 1000)
    mixed = mean_work([work, other])
    assert mixed.fetch_bytes == pytest.approx((work.fetch_bytes + other.fetch_bytes) / 2)
    assert mixed.attended_tokens == pytest.approx((work.attended_tokens + other.attended_tokens) / 2)
    assert mixed.predict_flops >= work.predict_flops
