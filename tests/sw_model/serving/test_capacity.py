"""The search of the capacity, and its runs in a sweep."""

from dataclasses import replace

import pytest

from sw_model.request import parse
from sw_model.serving.capacity import capacity
from sw_model.serving.parameters import Serving
from sw_model.serving.simulate import simulate
from sw_model.sweep import parse_sweep, sweep

SERVING = Serving(fps=4, seconds=10, questions_per_minute=5, answer_tokens=5, limit_ms=200)


def test_capacity_is_the_largest_number_that_holds(linear_times):
    times = linear_times()
    found = capacity(SERVING, times, 500, 8)
    assert found.limit == "frame" and found.streams > 4
    results = [simulate(replace(SERVING, streams=found.streams + more), times, 500, 8) for more in (0, 1)]
    assert [result.holds() for result in results] == [True, False]
    assert found.best.figures() == results[0].figures() and found.next.figures() == results[1].figures()
    assert found.figures()["frame_p99_ms"] <= 200
    assert capacity(replace(SERVING, limit_ms=100), times, 500, 8).streams < found.streams
    assert capacity(replace(SERVING, devices=2), times, 500, 8).streams > 1.5 * found.streams


@pytest.mark.parametrize(
    ("values", "context", "streams", "limit"),
    [
        ({"limit_ms": 10}, 500, 0, "frame"),
        ({"max_streams": 3}, 500, 3, "max_streams"),
        ({"first_token_limit_ms": 15}, 500, None, "first_token"),
        ({"per_token_limit_ms": 25, "questions_per_minute": 30}, 500, None, "per_token"),
        ({"limit_ms": 1e6, "fps": 0.2}, 60000, None, "memory"),
    ],
)
def test_limits(linear_times, values, context, streams, limit):
    found = capacity(replace(SERVING, **values), linear_times(), context, 8)
    assert found.limit == limit and streams in (None, found.streams)
    assert (found.best is None) == (found.streams == 0)
    row = found.figures()
    assert (row["frame_p99_ms"] is None) == (found.streams == 0)


def test_search_ends_with_the_streams_of_a_trace(linear_times, tmp_path):
    (tmp_path / "t.csv").write_text("time_s,stream,kind,answer_tokens\n0,0,frame,\n1,4,frame,\n")
    found = capacity(replace(SERVING, trace=str(tmp_path / "t.csv")), linear_times(), 500, 8)
    assert (found.streams, found.limit) == (5, "max_streams")


def test_sweep_of_simulations(tmp_path):
    """One and two processes write the same table; a second sweep runs nothing."""
    plan = parse_sweep(
        {
            "name": "serve",
            "fixed": {"system": "a100", "policy": "hybrid", "tokens": 1000, "batch": 4, "serve.seconds": 4},
            "grid": {"workload": ["serve", "capacity"], "serve.seed": [0, 1]},
        }
    )
    plan = replace(plan, requests=tuple(r.replace(changes={"serve.max_streams": 4}) for r in plan.requests))
    rows = sweep(plan, tmp_path / "one.csv", workers=1)
    sweep(plan, tmp_path / "two.csv", workers=2)
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()
    assert [row["streams"] for row in rows[:2]] == [4, 4] and rows[0]["frame_p99_ms"] != rows[1]["frame_p99_ms"]
    assert rows[2]["capacity_streams"] >= 1 and sweep(plan, tmp_path / "one.csv", workers=1) == rows


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"serve.lanes": 1}, "serve.NAME must be one of .*got 'lanes'"),
        ({"serve.streams": 0}, "serve.streams must be"),
        ({"workload": "serving"}, "workload must be one of capacity, coin, frame, serve, stream, text, got 'serving'"),
    ],
)
def test_bad_requests(values, message):
    with pytest.raises(ValueError, match=message):
        parse(values)


def test_a_simulation_is_no_single_run():
    with pytest.raises(ValueError, match="workload of one run must be one of frame, text, coin, stream, got 'serve'"):
        parse({"workload": "serve"}).run()
