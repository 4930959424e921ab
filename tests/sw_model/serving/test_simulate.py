"""The event loop: equal to a plain loop, close to the event model, and no request lost or served twice."""

from dataclasses import replace

import numpy as np
import pytest

from sw_model.serving import kernel
from sw_model.serving.arrivals import generate
from sw_model.serving.check import differences
from sw_model.serving.parameters import FRAME, PRIORITIES, QUESTION, Serving
from sw_model.serving.simulate import simulate
from sw_model.serving.step_times import BATCHES, CONTEXTS, FETCHES, StepTimes
from sw_model.systems import load_system
from tests.sw_model.serving.reference import serve as reference

BUSY = Serving(streams=12, fps=5, seconds=20, questions_per_minute=20, answer_tokens=6, queue_frames=2)
OVERLOAD = replace(BUSY, streams=40, queue_questions=2)


def table_ps(times, resident):
    """Times of steps as the event loop takes them from the table."""
    missing = np.zeros(4, np.int64)

    def step_ps(kind, contexts):
        fetch = float(times.fetched_bytes(np.array(contexts), resident)[kind].sum())
        arguments = (times.table[kind], BATCHES, CONTEXTS, FETCHES, len(contexts), sum(contexts) / len(contexts), fetch)
        while (duration := kernel.interpolated(*arguments, missing)) < 0:
            times.fill(kind, *missing[1:])
        return duration

    return step_ps


@pytest.mark.parametrize("priority", PRIORITIES)
@pytest.mark.parametrize("overload", [False, True])
def test_equals_plain_loop(linear_times, overload, priority):
    """Every time of every request, to the rounding of the fetched bytes."""
    serving, times = replace(OVERLOAD if overload else BUSY, priority=priority), linear_times()
    result = simulate(serving, times, 6000, 8)
    (device,) = result.admission.devices
    step_ps = table_ps(times, device.resident_tokens)
    first, last, refused = reference(generate(serving), serving, 6000, 8, times.new_tokens, step_ps)
    assert set(np.flatnonzero(result.finish_ps == kernel.REFUSED)) == refused
    assert refused or not overload
    served = sorted(last)
    assert np.allclose(result.finish_ps[served], [last[i] for i in served], rtol=1e-9, atol=1e6)
    questions = sorted(first)
    assert np.allclose(result.first_token_ps[questions], [first[i] for i in questions], rtol=1e-9, atol=1e6)


@pytest.mark.parametrize("priority", PRIORITIES)
@pytest.mark.parametrize("devices", [1, 3])
def test_no_request_is_lost_or_served_twice(linear_times, priority, devices):
    """Under an overload of more than ten times the capacity, with a bounded queue."""
    serving = replace(OVERLOAD, streams=150, priority=priority, devices=devices, arrivals="poisson")
    result = simulate(serving, linear_times("vrex48"), 500, 4)
    arrivals, refused = result.arrivals, result.finish_ps == kernel.REFUSED
    assert len(result.admission.refused) == 0 and refused.any()
    assert np.array_equal(result.served, ~refused)  # each request ends once or is refused
    served = ~refused
    assert np.all(result.finish_ps[served] > arrivals.time_ps[served])
    frames, questions = arrivals.kind == FRAME, arrivals.kind == QUESTION
    assert result.members[:, 0].sum() == np.sum(served & frames)
    assert result.members[:, 1].sum() == np.sum(served & questions)
    assert result.members[:, 2].sum() == np.sum((arrivals.answer_tokens - 1)[served & questions])
    assert np.all(result.busy_ps.sum(axis=1) <= result.end_ps)
    # admission bounds the wait: the waiting frames of all streams, and the steps of answers between them
    if priority == "frames":
        slowest = (20 + 2 * 4 + 3) / 4 * 150 * (serving.queue_frames + 1)
        assert result.frame_ms().max() < slowest / devices * 1.5
    row = result.figures()
    assert row["frames"] == np.sum(frames) and row["refused_frames"] == np.sum(refused & frames)


def test_requests_of_a_stream_end_in_order(linear_times):
    result = simulate(OVERLOAD, linear_times(), 500, 8)
    for stream in range(OVERLOAD.streams):
        for kind in (FRAME, QUESTION):
            at = (result.arrivals.stream == stream) & (result.arrivals.kind == kind) & (result.served == 1)
            assert np.all(np.diff(result.finish_ps[at]) > 0)


def test_devices_share_nothing(linear_times):
    """The streams of one of three devices have the times of a simulation of these streams alone."""
    serving = replace(BUSY, devices=3)
    result = simulate(serving, linear_times(), 500, 8)
    assert [len(device.streams) for device in result.admission.devices] == [4, 4, 4]
    own, at = result.arrivals.of_streams(result.admission.devices[1].streams)
    times = linear_times()
    _, last, _ = reference(own, serving, 500, 8, times.new_tokens, table_ps(times, 4096))
    served = np.flatnonzero(result.served[at])
    assert result.finish_ps[at][served].tolist() == [last[i] for i in served]


def test_one_seed_gives_one_result(linear_times):
    times = linear_times()
    first, second = (simulate(OVERLOAD, times, 500, 8) for _ in range(2))  # the second one uses the filled table
    assert first.figures() == second.figures() and np.array_equal(first.finish_ps, second.finish_ps)
    assert simulate(replace(OVERLOAD, seed=1), times, 500, 8).figures() != first.figures()


def test_latencies_of_a_known_schedule(linear_times, tmp_path):
    """Three streams without context; a step of n streams lasts 20 + 2 n ms."""
    trace = tmp_path / "t.csv"
    trace.write_text(
        "time_s,stream,kind,answer_tokens\n0,0,frame,\n0.001,1,frame,\n0.002,2,frame,\n0.003,1,question,3\n"
    )
    serving = Serving(streams=3, trace=str(trace), limit_ms=40)
    result = simulate(serving, linear_times(), 0, 2)
    ms = 1e9
    step = [22 * ms, 24 * ms]  # 0.01 ms for 10 tokens of context
    assert result.finish_ps[:3] == pytest.approx([step[0], step[0] + step[1], step[0] + step[1]], rel=1e-3)
    assert result.first_token_ps[3] == pytest.approx(68 * ms, rel=1e-3)  # the question
    assert result.finish_ps[3] == pytest.approx((68 + 22 + 22) * ms, rel=1e-2)
    assert result.attained()["frame"] == pytest.approx(1 / 3) and not result.holds()
    assert result.first_token_ms() == pytest.approx([65], rel=1e-3)
    assert result.per_token_ms() == pytest.approx([22], rel=1e-2)


@pytest.mark.parametrize(
    ("system", "policy", "context"), [("vrex48", "resv", 12000), ("a100", "rekv", 4000), ("vrex8", "resv", 30000)]
)
def test_agrees_with_the_event_model(system, policy, context):
    """The plain loop with the event model's time of every batch: mean and p99 within 3 %."""
    serving = Serving(streams=3, fps=3, seconds=2, questions_per_minute=20, answer_tokens=3)
    times = StepTimes(load_system(system), policy, question_tokens=25)
    result = simulate(serving, times, context, 8)
    resident = result.admission.devices[0].resident_tokens
    arrivals = result.arrivals
    step_ps = lambda kind, contexts: times.exact_ps(kind, contexts, resident)  # noqa: E731
    _, last, refused = reference(arrivals, serving, context, 8, times.new_tokens, step_ps)
    assert refused == set(np.flatnonzero(result.finish_ps == kernel.REFUSED))
    at = np.array([i for i in sorted(last) if arrivals.kind[i] == FRAME])
    expected = (np.array([last[i] for i in at]) - arrivals.time_ps[at]) / 1e9
    got = result.frame_ms()
    for statistic in (np.mean, np.median, lambda x: np.percentile(x, 99)):
        assert statistic(got) == pytest.approx(statistic(expected), rel=0.03)
    assert max(differences(result, times, 6)) < 0.03


@pytest.mark.parametrize(
    ("tokens", "batch", "message"),
    [
        (-1, 1, "tokens must be at least 0, got -1"),
        (0, 65, "batch must be between 1 and 64, got 65"),
        (4_095_000, 1, "context at the end of the run in tokens must be"),
    ],
)
def test_bad_arguments(linear_times, tokens, batch, message):
    with pytest.raises(ValueError, match=message):
        simulate(Serving(streams=1), linear_times("a100", "full"), tokens, batch)
