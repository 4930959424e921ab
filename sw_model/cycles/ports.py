"""A core's AXI4 ports in the model: bursts with the timing of a memory, readers and writers that make them of jobs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque

from hw.core.dma import BURST
from sw_model.cycles.processes import Bell, Clock, Counter, Process, Queue, Wait
from util.timing import MemoryTiming

BUFFERED = 2  # cycles through a buffered FIFO
BURSTS = 16  # bursts that a reader or writer has in flight


class Port:
    """An AXI4 port with its master: a request per cycle and channel, a beat per cycle and direction."""

    def __init__(self, clock: Clock, timing: MemoryTiming, word_bytes: int, base: int):
        self.clock, self.timing, self.word_bytes, self.base = clock, timing, word_bytes, base
        self.ar_free = self.aw_free = self.w_free = 0
        self.reading: dict[ReadEngineModel, deque[list[int]]] = {}
        self.arrived = Bell(clock)
        clock.start(self._serve())

    def ask_read(self, reader: ReadEngineModel, address: int, words: int) -> Wait:
        """A burst of a reader's, in the cycle in which the master takes it."""
        start = max(self.clock.now, self.ar_free)
        self.ar_free = start + 1
        yield from self.clock.until(start)
        self.clock.start(self._read(reader, address, words), 2)

    def _read(self, reader: ReadEngineModel, address: int, words: int) -> Process:
        nbytes = words * self.word_bytes
        ready = self.timing.ready(self.clock.now, self.base + address * self.word_bytes, nbytes, False)
        self.reading.setdefault(reader, deque()).append([max(ready, self.clock.now), words])
        self.arrived.ring()
        return
        yield

    def _serve(self) -> Process:
        """Beats of the bursts that are ready, the one that was ready first before the others."""
        clock = self.clock
        while True:
            heads = [(of[0][0], reader) for reader, of in self.reading.items() if of]
            if not heads:
                yield self.arrived
                continue
            ready, reader = min(heads, key=lambda head: head[0])
            if ready > clock.now:
                clock.at(ready, self.arrived.ring)
                yield self.arrived
                continue
            burst = self.reading[reader][0]
            burst[1] -= 1
            if not burst[1]:
                self.reading[reader].popleft()
                reader.ended()
            reader.beat()
            yield 1

    def ask_write(self, writer: WriteEngineModel, address: int, words: int, report: bool) -> Wait:
        """A burst of a writer's whose words are there."""
        start = max(self.clock.now, self.aw_free)
        self.aw_free = start + 1
        yield from self.clock.until(start)
        begin = max(start + 2, self.w_free)
        self.w_free = begin + words
        self.clock.start(self._write(writer, address + words - 1, words, report), begin - start)

    def _write(self, writer: WriteEngineModel, last: int, words: int, report: bool) -> Process:
        for _ in range(words):
            yield 1
            writer.free()
        yield 1
        now = self.clock.now
        ready = self.timing.ready(now, self.base + last * self.word_bytes, self.word_bytes, True)
        writer.answered = max(ready, now, writer.answered + 1)
        yield from self.clock.until(writer.answered)
        writer.answer(report)


class BurstSplitterModel(ABC):
    """Takes a job when the bursts of the one before have been asked for."""

    def __init__(self, clock: Clock):
        self.clock, self.active, self.freed = clock, False, Bell(clock)
        self.flying, self.landed = 0, Bell(clock)

    def _take(self, address: int, count: int, last: bool) -> Wait:
        """Ends in the cycle in which the job is taken."""
        while self.active:
            yield self.freed
        self.active = True
        self.clock.start(self._bursts(address, count, last), 1)

    def _bursts(self, address: int, count: int, last: bool) -> Process:
        while count:
            words = min(count, BURST - address % BURST)
            while self.flying >= BURSTS:
                yield self.landed
            yield from self._burst(address, words, last and words == count)
            self.flying += 1
            address, count = address + words, count - words
            if count:
                yield 1
        self.active = False
        self.freed.ring()

    @abstractmethod
    def _burst(self, address: int, words: int, report: bool) -> Wait:
        """Ask for a burst; ends in the cycle in which the port takes it."""


class ReadEngineModel(BurstSplitterModel):
    """Jobs to words that come; asks for what it has room for."""

    def __init__(self, clock: Clock, port: Port, depth: int):
        super().__init__(clock)
        self.port, self.depth, self.used = port, depth, 0
        self.words, self.room = Queue(clock, latency=BUFFERED), Bell(clock)

    def ask(self, address: int, count: int) -> Wait:
        """A job; ends in the cycle in which it is taken."""
        return self._take(address, count, False)

    def _burst(self, address: int, words: int, report: bool) -> Wait:
        while self.used + words > self.depth:
            yield self.room
        self.used += words
        yield from self.port.ask_read(self, address, words)

    def beat(self) -> None:
        self.words.push(None)

    def ended(self) -> None:
        self.flying -= 1
        self.landed.ring()

    def word(self) -> Wait:
        """Wait for a word and take it."""
        yield from self.words.head()
        self.take()

    def take(self) -> None:
        """Take the word that is there."""
        self.words.pop()
        self.clock.at(self.clock.now + 1, self._popped)

    def _popped(self) -> None:
        self.used -= 1
        self.room.ring()


class WriteEngineModel(BurstSplitterModel):
    """Jobs and words to bursts; `stored` counts the jobs with `last` that memory has acknowledged."""

    def __init__(self, clock: Clock, port: Port, depth: int):
        super().__init__(clock)
        self.port, self.depth = port, depth
        self.waiting = self.level = 0  # words that no burst has promised; all
        self.come, self.gone = Bell(clock), Bell(clock)
        self.stored, self.answered = Counter(clock), 0

    def ask(self, address: int, count: int, last: bool = False) -> Wait:
        """A job; ends in the cycle in which it is taken."""
        return self._take(address, count, last)

    def put(self) -> Wait:
        """A word; ends in the cycle in which it is taken."""
        while self.level >= self.depth:
            yield self.gone
        self.level += 1
        self.clock.at(self.clock.now + 1, self._came)

    def _came(self) -> None:
        self.waiting += 1
        self.come.ring()

    def _burst(self, address: int, words: int, report: bool) -> Wait:
        while self.waiting < words:
            yield self.come
        self.waiting -= words
        yield from self.port.ask_write(self, address, words, report)

    def free(self) -> None:
        self.level -= 1
        self.gone.ring()

    def answer(self, report: bool) -> None:
        self.flying -= 1
        self.landed.ring()
        if report:
            self.clock.at(self.clock.now + 1, self.stored.add)
