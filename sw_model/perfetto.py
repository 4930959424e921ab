"""A run as a Chrome trace for ui.perfetto.dev or chrome://tracing: one track per resource, one slice per task."""

from __future__ import annotations

from typing import Any

from sw_model.result import Result

ORDER = ("GPU", "LXE", "VPE", "HCU", "WTU", "KVMU", "CODE", "DRAM", "PCIe", "SSD")  # of the tracks, top first


def trace_events(result: Result) -> dict[str, Any]:
    """The Chrome trace of a run, times in microseconds.

    Of the equal steps of a phase the first one is shown. The phases follow each other.
    """
    names = {task.resource for timeline in result.timelines for task in timeline.tasks}
    tracks = {name: number for number, name in enumerate((n for n in ORDER if n in names), start=1)}
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": f"{result.system}, {result.policy}"}}
    ]
    for name, number in tracks.items():
        events.append({"ph": "M", "pid": 1, "tid": number, "name": "thread_name", "args": {"name": name}})
        events.append({"ph": "M", "pid": 1, "tid": number, "name": "thread_sort_index", "args": {"sort_index": number}})
    begin = 0
    for phase, (timeline, count) in enumerate(zip(result.timelines, result.counts, strict=True)):
        for task, start, end in zip(timeline.tasks, timeline.start_ps, timeline.end_ps, strict=True):
            if end == start:
                continue
            events.append(
                {
                    "ph": "X",
                    "pid": 1,
                    "tid": tracks[task.resource],
                    "name": task.stage,
                    "ts": (begin + start) / 1e6,
                    "dur": (end - start) / 1e6,
                    "args": {"phase": phase, "steps": count, "layer": task.layer, "bytes": task.bytes_moved},
                }
            )
        begin += timeline.makespan_ps
    metadata = {"workload": result.workload, "link": result.link, "total_ms": result.total_s * 1e3}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": metadata}
