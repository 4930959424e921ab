"""A run as a trace: each task once, no overlap on a track, bytes and time as in the result."""

import itertools
from dataclasses import replace

import pytest

from sw_model.perfetto import trace_events
from sw_model.request import Request


def test_trace_has_every_task_of_the_schedule():
    result = Request(workload="coin", tokens=5000).run()
    trace = trace_events(result)
    tracks = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    slices = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert set(tracks.values()) == set(result.utilisation)
    busy, moved = dict.fromkeys(result.utilisation, 0.0), dict.fromkeys(result.bytes_moved, 0)
    for e in slices:
        name, steps = tracks[e["tid"]], e["args"]["steps"]
        busy[name] += steps * e["dur"]
        if e["args"]["bytes"]:
            moved[name] += steps * e["args"]["bytes"]
    assert busy == pytest.approx({k: share * result.total_s * 1e6 for k, share in result.utilisation.items()})
    assert moved == result.bytes_moved
    for track in tracks:
        own = sorted((e for e in slices if e["tid"] == track), key=lambda e: e["ts"])
        assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-6 for a, b in itertools.pairwise(own))
    end = max(e["ts"] + e["dur"] for e in slices)
    assert end == pytest.approx(sum(line.makespan_ps for line in result.timelines) / 1e6)


def test_tasks_without_time_have_no_slice():
    result = Request(tokens=1000).run()
    (line,) = result.timelines
    still = replace(result, timelines=[replace(line, end_ps=line.start_ps)])
    assert not [e for e in trace_events(still)["traceEvents"] if e["ph"] == "X"]
