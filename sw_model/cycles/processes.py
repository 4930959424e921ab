"""Processes that share a clock: generators that wait for cycles, for each other, or for a place in a queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from heapq import heappop, heappush
from typing import Any


class Bell:
    """Wakes the processes that wait for it."""

    def __init__(self, clock: Clock):
        self.clock = clock
        self.waiting: list[Process] = []

    def ring(self) -> None:
        """Everyone who waits goes on in this cycle."""
        waiting, self.waiting = self.waiting, []
        for process in waiting:
            self.clock.start(process)


Process = Generator[int | Bell, None, None]
Wait = Generator[int | Bell, None, None]


class Clock:
    """Runs processes in the order of their cycles. A process yields cycles to wait, or a bell."""

    def __init__(self) -> None:
        self.now = 0
        self._count = 0
        self._heap: list[tuple[int, int, Process]] = []

    def start(self, process: Process, delay: int = 0) -> None:
        """Go on with a process in so many cycles."""
        self._count += 1
        heappush(self._heap, (self.now + delay, self._count, process))

    def run(self) -> None:
        """Until every process has ended or waits for a bell."""
        while self._heap:
            self.now, _, process = heappop(self._heap)
            wait = next(process, None)
            if isinstance(wait, Bell):
                wait.waiting.append(process)
            elif wait is not None:
                self.start(process, wait)

    def until(self, cycle: int) -> Wait:
        """Wait for a cycle that may have passed."""
        if cycle > self.now:
            yield cycle - self.now

    def at(self, cycle: int, action: Callable[[], None]) -> None:
        """Do something in a cycle to come."""

        def process() -> Process:
            action()
            return
            yield

        self.start(process(), cycle - self.now)


class Queue:
    """A FIFO whose items can be taken `latency` cycles after they were put; `depth` places, 0: any number."""

    def __init__(self, clock: Clock, *, depth: int = 0, latency: int = 2):
        self.clock, self.depth, self.latency = clock, depth, latency
        self.items: deque[tuple[int, Any]] = deque()
        self.put_bell, self.got_bell = Bell(clock), Bell(clock)

    def push(self, item: Any, later: int = 0) -> None:
        """Put it there; `later`: it comes in so many cycles."""
        self.items.append((self.clock.now + later + self.latency, item))
        self.put_bell.ring()

    def put(self, item: Any, later: int = 0) -> Wait:
        """Wait for a place, and put it there."""
        while self.depth and len(self.items) >= self.depth:
            yield self.got_bell
        self.push(item, later)

    def head(self) -> Generator[int | Bell, None, Any]:
        """Wait until an item can be taken; it stays."""
        while not self.items:
            yield self.put_bell
        yield from self.clock.until(self.items[0][0])
        return self.items[0][1]

    def pop(self) -> None:
        """Drop the item that `head` gave; its place is free in the next cycle."""
        self.items.popleft()
        self.clock.at(self.clock.now + 1, self.got_bell.ring)

    def get(self) -> Generator[int | Bell, None, Any]:
        """Wait for an item and take it."""
        item = yield from self.head()
        self.pop()
        return item


class Counter:
    """A number that processes wait for."""

    def __init__(self, clock: Clock, value: int = 0):
        self.value, self.bell = value, Bell(clock)

    def add(self, change: int = 1) -> None:
        self.value += change
        self.bell.ring()

    def reach(self, value: int) -> Wait:
        """Wait until it is at least that."""
        while self.value < value:
            yield self.bell
