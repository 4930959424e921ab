"""Cycle model of the MATRIX unit."""

from __future__ import annotations

from hw.core.isa import ExecUnit, SyncEvent
from sw_model.cycles.processes import Counter, Process, Queue
from sw_model.cycles.unit import UnitModel, remaining


class MatrixUnitModel(UnitModel):
    """Command MULTIPLY: processes for weights, activations and results, each one or two commands ahead of the next."""

    def begin(self) -> None:
        clock = self.clock
        self.orders = {name: Queue(clock, depth=1, latency=0) for name in ("engine", "store")}
        self.results, self.ends = Queue(clock, latency=0), Queue(clock, depth=4)
        self.credits = Counter(clock, self.core.engine.latency + 1)  # result slots after the engine
        self.read = Counter(clock)
        self.clock.start(self._accept())
        self.clock.start(self._work())
        self.clock.start(self._store())
        self.clock.start(self._end())

    def _accept(self) -> Process:
        core = self.core
        while True:
            command = yield from core.next(ExecUnit.MATRIX)
            core.accept(ExecUnit.MATRIX)
            yield 1
            f, n = command.fields, core.width
            total, block = -(-core.length(command) // n), f.get("block", 0)
            results, inputs, vectors, last = (f.get(name, 0) for name in ("m_blocks", "k_blocks", "vectors", "last"))
            if f.get("limit", 0) == 1:
                results = remaining(total, block, results)
            if f.get("limit", 0) == 2:
                inputs, last = remaining(total, block, inputs), block + inputs >= total
            if not (results and inputs and vectors):
                results = last = 0
            order = results, inputs, vectors, last, f
            yield from self.orders["engine"].put(order)
            yield from self.orders["store"].put(order)

    def _work(self) -> Process:
        """Tiles: each is loaded while the previous one is used."""
        clock, engine = self.clock, self.core.engine
        change, release = -1, -1  # cycles: the newest tile came into force, the last beat of the one before
        while True:
            results, inputs, vectors, last, _ = yield from self.orders["engine"].get()
            accepted = clock.now
            loaded = accepted + 1
            for tile in range(results * inputs):
                loaded = max(loaded + 1, change + 1) + engine.loads - 1  # its last beat of weights
                change = max(loaded + 1, release)
                beat = max(change, accepted + 1)
                ending = last and tile % inputs == inputs - 1
                for _ in range(vectors):
                    beat += 1
                    yield from clock.until(beat)
                    if ending:
                        yield from self.credits.reach(1)
                        self.credits.value -= 1
                        beat = clock.now
                        self.results.push(None, engine.latency)
                release = beat
            clock.at(clock.now + (1 if results * inputs else 0), self._was_read)
            yield 1

    def _was_read(self) -> None:
        self.core.done[SyncEvent.OPERANDS].add()
        self.read.add()

    def _store(self) -> Process:
        clock, writer = self.clock, self.core.writers["matrix"]
        while True:
            results, _, vectors, last, f = yield from self.orders["store"].get()
            yield 1
            wide = f.get("wide", 0)
            for m in range(results if last else 0):
                for t in range(vectors):
                    yield from self.results.get()
                    final = m + 1 == results and t + 1 == vectors
                    address = f["out"] + m * (1 + wide) + t * f.get("stride", 0)
                    clock.start(self._job(address, 1 + wide, final))
                    yield from writer.put()
                    if wide:
                        yield 1
                        yield from writer.put()
                    clock.at(clock.now + 2, self._credit)
                    yield 1
            yield from self.ends.put(bool(last))
            yield 1

    def _job(self, address: int, count: int, final: bool) -> Process:
        yield from self.core.writers["matrix"].request(address, count, final)

    def _credit(self) -> None:
        self.credits.add()

    def _end(self) -> Process:
        core, stored, read = self.core, 0, 0
        while True:
            last = yield from self.ends.get()
            read += 1
            yield from self.read.reach(read)
            if last:
                stored += 1
                yield from core.writers["matrix"].stored.reach(stored)
            core.complete(ExecUnit.MATRIX)
            yield 1
