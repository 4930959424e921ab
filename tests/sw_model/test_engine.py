"""The event engine: order, accounting of the critical path, determinism, bad input."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sw_model.engine import Task, schedule


def test_second_load_hides_behind_the_first_use():
    """Two loads feed two uses: load 10, use 4; the second load hides the first use."""
    tasks = [
        Task("load", "DRAM", 10, bytes_moved=7),
        Task("use", "LXE", 4, (0,)),
        Task("load", "DRAM", 10, (0,), bytes_moved=9),
        Task("use", "LXE", 4, (1, 2)),
    ]
    line = schedule(tasks)
    assert line.start_ps == (0, 10, 10, 20)
    assert line.makespan_ps == 24
    assert line.exposed_ps() == {"load": 20, "use": 4}
    assert line.busy_ps() == {("load", "DRAM"): 20, ("use", "LXE"): 8}
    assert line.bytes_moved() == {("load", "DRAM"): 16}


def test_latency_frees_the_resource_but_delays_dependents():
    tasks = [Task("a", "R", 5, latency_ps=20), Task("b", "R", 5), Task("c", "S", 1, (0,))]
    line = schedule(tasks)
    assert line.start_ps == (0, 5, 25)
    assert line.exposed_ps() == {"a": 25, "c": 1}


def test_tasks_are_served_by_readiness_then_by_index():
    tasks = [Task("x", "A", 9), Task("late", "B", 3, (0,)), Task("early", "B", 20), Task("tie", "B", 1, (0,))]
    line = schedule(tasks)
    assert line.start_ps[2] == 0
    assert line.start_ps[1] == 20 and line.start_ps[3] == 23


def test_tasks_without_time_and_empty_task_list():
    assert schedule([]).makespan_ps == 0 and schedule([]).critical_path() == []
    line = schedule([Task("a", "R", 0), Task("b", "R", 0, (0,)), Task("c", "R", 3, (1,))])
    assert line.makespan_ps == 3 and sum(line.exposed_ps().values()) == 3


@pytest.mark.parametrize(
    "tasks", [[Task("a", "R", -1)], [Task("a", "R", 1, (0,))], [Task("a", "R", 1, (1,)), Task("b", "R", 1)]]
)
def test_invalid_tasks_raise_value_error(tasks):
    with pytest.raises(ValueError, match="task 0"):
        schedule(tasks)


@st.composite
def graphs(draw):
    n = draw(st.integers(1, 25))
    tasks = []
    for i in range(n):
        deps = tuple(sorted(draw(st.sets(st.integers(0, i - 1), max_size=3)))) if i else ()
        tasks.append(
            Task(
                draw(st.sampled_from("pqr")),
                draw(st.sampled_from(["DRAM", "LXE", "PCIe"])),
                draw(st.integers(0, 50)),
                deps,
                latency_ps=draw(st.sampled_from([0, 0, 7])),
            )
        )
    return tasks


@settings(derandomize=True, database=None, deadline=None, max_examples=300)
@given(graphs())
def test_random_schedules_are_valid_and_work_conserving(tasks):
    line = schedule(tasks)
    finish = [e + t.latency_ps for e, t in zip(line.end_ps, tasks, strict=True)]
    by_resource: dict[str, list[int]] = {}
    for i, task in enumerate(tasks):
        assert line.start_ps[i] >= max((finish[d] for d in task.deps), default=0)
        assert line.end_ps[i] - line.start_ps[i] == task.duration_ps
        by_resource.setdefault(task.resource, []).append(i)
    for members in by_resource.values():
        order = sorted(members, key=lambda i: (line.start_ps[i], line.end_ps[i]))
        for a, b in itertools.pairwise(order):
            assert line.start_ps[b] >= line.end_ps[a]
    for i, task in enumerate(tasks):
        # work conserving: when a task starts late, its resource was busy from its readiness on
        ready = max((finish[d] for d in task.deps), default=0)
        used = sum(
            min(line.end_ps[j], line.start_ps[i]) - max(line.start_ps[j], ready)
            for j in by_resource[task.resource]
            if line.start_ps[j] < line.start_ps[i] and line.end_ps[j] > ready
        )
        assert used == line.start_ps[i] - ready
    path = line.critical_path()
    assert path[0].start_ps == 0 and path[-1].end_ps == line.makespan_ps
    assert all(a.end_ps == b.start_ps for a, b in itertools.pairwise(path))
    assert sum(line.exposed_ps().values()) == line.makespan_ps
    assert max(line.resource_busy_ps().values(), default=0) <= line.makespan_ps
    again = schedule(tasks)
    assert (again.start_ps, again.waited_for) == (line.start_ps, line.waited_for)
