"""Processes with a common clock: generators that wait for cycles, for each other, or for space in a queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from heapq import heappop, heappush
from typing import Any


class Bell:
    """Event that resumes the processes that wait for it."""

    def __init__(self, clock: Clock):
        self.clock = clock
        self.waiting: list[Process] = []

    def ring(self) -> None:
        """Resume all waiting processes in this cycle."""
        waiting, self.waiting = self.waiting, []
        for process in waiting:
            self.clock.start(process)


Process = Generator[int | Bell, None, None]
Wait = Generator[int | Bell, None, None]


class Clock:
    """Runs processes in the order of their cycles. A process yields a number of cycles to wait, or a bell."""

    def __init__(self) -> None:
        self.now = 0
        self._count = 0
        self._heap: list[tuple[int, int, Process]] = []

    def start(self, process: Process, delay: int = 0) -> None:
        """Resume a process after `delay` cycles."""
        self._count += 1
        heappush(self._heap, (self.now + delay, self._count, process))

    def run(self) -> None:
        """Run until every process has ended or waits for a bell."""
        while self._heap:
            self.now, _, process = heappop(self._heap)
            wait = next(process, None)
            if isinstance(wait, Bell):
                wait.waiting.append(process)
            elif wait is not None:
                self.start(process, wait)

    def until(self, cycle: int) -> Wait:
        """Wait for a cycle; no wait if it has passed."""
        if cycle > self.now:
            yield cycle - self.now

    def at(self, cycle: int, action: Callable[[], None]) -> None:
        """Call `action` in a later cycle."""

        def process() -> Process:
            action()
            return
            yield

        self.start(process(), cycle - self.now)


class Queue:
    """FIFO whose items can be removed `latency` cycles after they were put; `depth` 0: no limit."""

    def __init__(self, clock: Clock, *, depth: int = 0, latency: int = 2):
        self.clock, self.depth, self.latency = clock, depth, latency
        self.items: deque[tuple[int, Any]] = deque()
        self.put_bell, self.get_bell = Bell(clock), Bell(clock)

    def push(self, item: Any, delay: int = 0) -> None:
        """Append an item without waiting; it arrives after `delay` cycles."""
        self.items.append((self.clock.now + delay + self.latency, item))
        self.put_bell.ring()

    def put(self, item: Any, delay: int = 0) -> Wait:
        """Wait for space, then append an item."""
        while self.depth and len(self.items) >= self.depth:
            yield self.get_bell
        self.push(item, delay)

    def head(self) -> Generator[int | Bell, None, Any]:
        """Wait until an item is available and return it without removing it."""
        while not self.items:
            yield self.put_bell
        yield from self.clock.until(self.items[0][0])
        return self.items[0][1]

    def pop(self) -> None:
        """Remove the item that `head` returned; its space is free in the next cycle."""
        self.items.popleft()
        if self.depth:
            self.clock.at(self.clock.now + 1, self.get_bell.ring)

    def get(self) -> Generator[int | Bell, None, Any]:
        """Wait for an item, remove it and return it."""
        item = yield from self.head()
        self.pop()
        return item


class Counter:
    """Number that processes can wait for."""

    def __init__(self, clock: Clock, value: int = 0):
        self.value, self.bell = value, Bell(clock)

    def add(self, change: int = 1) -> None:
        self.value += change
        self.bell.ring()

    def reach(self, value: int) -> Wait:
        """Wait until the number is at least `value`."""
        while self.value < value:
            yield self.bell
