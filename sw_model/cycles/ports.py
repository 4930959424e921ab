"""AXI4 ports of a core: bursts with the timing of a memory, and the readers and writers that turn jobs into bursts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque

from hw.core.dma import BURST
from sw_model.cycles.processes import Bell, Clock, Counter, Process, Queue, Wait
from util.timing import MemoryTiming

BUFFERED = 2  # cycles through a buffered FIFO
BURSTS = 16  # bursts that a reader or writer has in flight
CONFIRMED = -1  # number of a burst whose answer has started


class Port:
    """AXI4 port with its master: one request per cycle and channel, one beat per cycle and direction."""

    def __init__(self, clock: Clock, timing: MemoryTiming, word_bytes: int, base: int):
        self.clock, self.timing, self.word_bytes, self.base = clock, timing, word_bytes, base
        self.ar_free = self.aw_free = self.w_free = 0
        self.reading: dict[ReadEngineModel, deque[list[int]]] = {}
        self.arrived = Bell(clock)
        clock.start(self._serve())

    def request_read(self, reader: ReadEngineModel, address: int, words: int) -> Wait:
        """Issue a burst of a reader; ends in the cycle in which the master accepts it."""
        start = max(self.clock.now, self.ar_free)
        self.ar_free = start + 1
        yield from self.clock.until(start)
        self.clock.start(self._read(reader, address, words), 2)

    def _read(self, reader: ReadEngineModel, address: int, words: int) -> Process:
        nbytes = words * self.word_bytes
        ready, number = self.timing.arrive(self.clock.now, self.base + address * self.word_bytes, nbytes, False)
        self.reading.setdefault(reader, deque()).append([max(ready, self.clock.now), number, words])
        self.arrived.ring()
        return
        yield

    def _serve(self) -> Process:
        """Transfer the beats of bursts whose data are ready, the earliest ready burst first."""
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
            if burst[1] != CONFIRMED:
                ready = self.timing.confirm(burst[1], clock.now)
                if ready > clock.now:
                    burst[0] = ready
                    continue
                burst[1] = CONFIRMED
            burst[2] -= 1
            if not burst[2]:
                self.reading[reader].popleft()
                reader.finish_burst()
            reader.beat()
            yield 1

    def request_write(self, writer: WriteEngineModel, address: int, words: int, report: bool) -> Wait:
        """Issue a burst of a writer that has all its words."""
        start = max(self.clock.now, self.aw_free)
        self.aw_free = start + 1
        yield from self.clock.until(start)
        begin = max(start + 2, self.w_free)
        self.w_free = begin + words
        self.clock.start(self._write(writer, address, words, report), begin - start)

    def _write(self, writer: WriteEngineModel, address: int, words: int, report: bool) -> Process:
        for _ in range(words):
            yield 1
            writer.free()
        yield 1
        clock, turn = self.clock, writer.bursts
        writer.bursts += 1
        nbytes = words * self.word_bytes
        ready, number = self.timing.arrive(clock.now, self.base + address * self.word_bytes, nbytes, True)
        while ready > clock.now or (ready := self.timing.confirm(number, clock.now)) > clock.now:
            yield from clock.until(ready)
        yield from writer.responses.reach(turn)
        writer.last_response = max(clock.now, writer.last_response + 1)
        yield from clock.until(writer.last_response)
        writer.answer(report)


class BurstSplitterModel(ABC):
    """Divides jobs into bursts. Accepts a job when the bursts of the previous one are issued."""

    def __init__(self, clock: Clock):
        self.clock, self.active, self.freed = clock, False, Bell(clock)
        self.in_flight, self.response_bell = 0, Bell(clock)

    def _accept(self, address: int, count: int, last: bool) -> Wait:
        """Wait until the job is accepted."""
        while self.active:
            yield self.freed
        self.active = True
        self.clock.start(self._bursts(address, count, last), 1)

    def _bursts(self, address: int, count: int, last: bool) -> Process:
        while count:
            words = min(count, BURST - address % BURST)
            while self.in_flight >= BURSTS:
                yield self.response_bell
            yield from self._burst(address, words, last and words == count)
            self.in_flight += 1
            address, count = address + words, count - words
            if count:
                yield 1
        self.active = False
        self.freed.ring()

    @abstractmethod
    def _burst(self, address: int, words: int, report: bool) -> Wait:
        """Issue a burst; ends in the cycle in which the port accepts it."""


class ReadEngineModel(BurstSplitterModel):
    """Turns jobs into words; issues a burst when its buffer has space for it."""

    def __init__(self, clock: Clock, port: Port, depth: int):
        super().__init__(clock)
        self.port, self.depth, self.used = port, depth, 0
        self.words, self.space_bell = Queue(clock, latency=BUFFERED), Bell(clock)
        self.read_at = -1  # cycle in which a word was removed last; its space is free in the next cycle

    def request(self, address: int, count: int) -> Wait:
        """Issue a job; ends in the cycle in which it is accepted."""
        return self._accept(address, count, False)

    def _burst(self, address: int, words: int, report: bool) -> Wait:
        while self.used + (self.read_at == self.clock.now) + words > self.depth:
            if self.used + words > self.depth:
                yield self.space_bell
            else:
                yield 1
        self.used += words
        yield from self.port.request_read(self, address, words)

    def beat(self) -> None:
        self.words.push(None)

    def finish_burst(self) -> None:
        self.in_flight -= 1
        self.response_bell.ring()

    def word(self) -> Wait:
        """Wait for a word and remove it."""
        yield from self.words.head()
        self.read()

    def read(self) -> None:
        """Remove the word that is available."""
        self.words.pop()
        self.used -= 1
        self.read_at = self.clock.now
        if self.space_bell.waiting:
            self.clock.at(self.clock.now + 1, self.space_bell.ring)


class WriteEngineModel(BurstSplitterModel):
    """Turns jobs and words into bursts; `stored` counts the jobs with `last` that memory has acknowledged."""

    def __init__(self, clock: Clock, port: Port, depth: int):
        super().__init__(clock)
        self.port, self.depth = port, depth
        self.waiting = self.level = 0  # words not yet assigned to a burst; all words
        self.word_bell, self.burst_bell = Bell(clock), Bell(clock)
        self.stored, self.last_response = Counter(clock), 0
        self.bursts, self.responses = 0, Counter(clock)  # bursts with all words written; responses

    def request(self, address: int, count: int, last: bool = False) -> Wait:
        """Issue a job; ends in the cycle in which it is accepted."""
        return self._accept(address, count, last)

    def put(self) -> Wait:
        """Write a word; ends in the cycle in which it is accepted."""
        while self.level >= self.depth:
            yield self.burst_bell
        self.level += 1
        self.clock.at(self.clock.now + 1, self._on_word)

    def _on_word(self) -> None:
        self.waiting += 1
        self.word_bell.ring()

    def _burst(self, address: int, words: int, report: bool) -> Wait:
        while self.waiting < words:
            yield self.word_bell
        self.waiting -= words
        yield from self.port.request_write(self, address, words, report)

    def free(self) -> None:
        self.level -= 1
        self.burst_bell.ring()

    def answer(self, report: bool) -> None:
        self.responses.add()
        self.in_flight -= 1
        self.response_bell.ring()
        if report:
            self.clock.at(self.clock.now + 1, self.stored.add)
