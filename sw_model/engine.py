"""Event engine: tasks with dependencies on resources that serve one task at a time, in integer picoseconds.

A task starts when its dependencies are visible and its resource is free. Ready tasks of one resource are served in
order of readiness, then of index, so that a schedule is a pure function of its task list. The schedule is work
conserving. `Timeline.critical_path` goes back from the last task through the tasks that each task waited for, so the
exposed times of the stages add up to the makespan exactly. Busy time counts all work of a resource, hidden or not.
"""

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

PS_PER_S = 10**12


@dataclass(frozen=True, slots=True)
class Task:
    """One piece of work on one resource.

    stage        stage of the step that the task belongs to
    duration_ps  time that the task occupies its resource
    deps         indices of earlier tasks that must be visible before this one starts
    latency_ps   time from the release of the resource until dependents can start
    bytes_moved  bytes that cross the resource
    layer        decoder layer; -1: none
    """

    stage: str
    resource: str
    duration_ps: int
    deps: tuple[int, ...] = ()
    latency_ps: int = 0
    bytes_moved: int = 0
    layer: int = -1


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment of the critical path: from `start_ps` to `end_ps` the run waits for the task of index `task`."""

    task: int
    start_ps: int
    end_ps: int


@dataclass(frozen=True)
class Timeline:
    """A schedule: for each task its start and the end of its use of the resource, in picoseconds.

    waited_for  for each task the index of the task that delayed it last: a dependency, or the task before it on its
                resource; -1: none
    """

    tasks: tuple[Task, ...]
    start_ps: tuple[int, ...]
    end_ps: tuple[int, ...]
    waited_for: tuple[int, ...]

    @property
    def makespan_ps(self) -> int:
        """Time until the result of the last task is visible."""
        return max((e + t.latency_ps for e, t in zip(self.end_ps, self.tasks, strict=True)), default=0)

    def critical_path(self) -> list[Segment]:
        """The critical path in order of time; the segments cover [0, makespan] without gap or overlap."""
        if not self.tasks:
            return []
        visible_ps = [e + t.latency_ps for e, t in zip(self.end_ps, self.tasks, strict=True)]
        index, until = visible_ps.index(max(visible_ps)), max(visible_ps)
        path = []
        while index >= 0:
            path.append(Segment(index, self.start_ps[index], until))
            until = self.start_ps[index]
            index = self.waited_for[index]
        return path[::-1]

    def exposed_ps(self) -> dict[str, int]:
        """Time on the critical path per stage; the values sum to the makespan."""
        out: dict[str, int] = defaultdict(int)
        for segment in self.critical_path():
            out[self.tasks[segment.task].stage] += segment.end_ps - segment.start_ps
        return dict(out)

    def busy_ps(self) -> dict[tuple[str, str], int]:
        """Occupied time per (stage, resource)."""
        out: dict[tuple[str, str], int] = defaultdict(int)
        for task in self.tasks:
            out[task.stage, task.resource] += task.duration_ps
        return dict(out)

    def resource_busy_ps(self) -> dict[str, int]:
        """Occupied time per resource."""
        out: dict[str, int] = defaultdict(int)
        for task in self.tasks:
            out[task.resource] += task.duration_ps
        return dict(out)

    def bytes_moved(self) -> dict[tuple[str, str], int]:
        """Bytes per (stage, resource)."""
        out: dict[tuple[str, str], int] = defaultdict(int)
        for task in self.tasks:
            if task.bytes_moved:
                out[task.stage, task.resource] += task.bytes_moved
        return dict(out)


def schedule(tasks: Sequence[Task]) -> Timeline:
    """The schedule of a task list. Raises ValueError for a negative time or a dependency on a later task."""
    n = len(tasks)
    waiting = [0] * n
    children: list[list[int]] = [[] for _ in range(n)]
    for i, task in enumerate(tasks):
        if task.duration_ps < 0 or task.latency_ps < 0:
            times = f"duration_ps = {task.duration_ps}, latency_ps = {task.latency_ps}"
            raise ValueError(f"times of task {i} ({task.stage}) must be at least 0, got {times}")
        for d in task.deps:
            if not 0 <= d < i:
                raise ValueError(f"deps of task {i} ({task.stage}) must be indices of earlier tasks, got {d}")
            children[d].append(i)
        waiting[i] = len(task.deps)

    start, end, waited_for = [0] * n, [0] * n, [-1] * n
    ready_at, last_dep = [0] * n, [-1] * n
    queue: dict[str, list[tuple[int, int]]] = defaultdict(list)
    free_at: dict[str, int] = defaultdict(int)
    last_on: dict[str, int] = defaultdict(lambda: -1)
    running: dict[str, bool] = defaultdict(bool)
    # events: (time, kind, task). A visible result (kind 0) comes before a free resource (kind 1), so that a newly ready
    # task competes for a resource that is free at the same time
    events: list[tuple[int, int, int]] = []

    def launch(resource: str) -> None:
        at, i = heapq.heappop(queue[resource])
        free = free_at[resource]
        start[i] = max(at, free)
        waited_for[i] = last_dep[i] if at >= free else last_on[resource]
        end[i] = free_at[resource] = start[i] + tasks[i].duration_ps
        last_on[resource], running[resource] = i, True
        heapq.heappush(events, (end[i] + tasks[i].latency_ps, 0, i))
        heapq.heappush(events, (end[i], 1, i))

    def enqueue(i: int) -> None:
        heapq.heappush(queue[tasks[i].resource], (ready_at[i], i))

    for i in range(n):
        if not waiting[i]:
            enqueue(i)
    touched = set(queue)
    while True:
        for resource in sorted(touched):
            if not running[resource] and queue[resource]:
                launch(resource)
        if not events:
            break
        now = events[0][0]
        touched = set()
        while events and events[0][0] == now:
            _, kind, i = heapq.heappop(events)
            if kind:
                running[tasks[i].resource] = False
                touched.add(tasks[i].resource)
                continue
            for child in children[i]:
                waiting[child] -= 1
                if now > ready_at[child] or last_dep[child] < 0:
                    ready_at[child], last_dep[child] = now, i
                if not waiting[child]:
                    enqueue(child)
                    touched.add(tasks[child].resource)
    return Timeline(tuple(tasks), tuple(start), tuple(end), tuple(waited_for))
