"""Copy engine between device memory and host link, shared by the COPY unit and the retrieval unit."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from sw_model.cycles.ports import ReadEngineModel, WriteEngineModel
from sw_model.cycles.processes import Clock, Process, Queue, Wait


class CopyEngineModel:
    """Copies in order between the two memories. Reads run ahead of writes."""

    def __init__(self, clock: Clock, readers: Mapping[str, ReadEngineModel], writers: Mapping[str, WriteEngineModel]):
        self.readers, self.writers = readers, writers
        self.routes = Queue(clock, depth=16)
        self.written = {False: 0, True: 0}  # jobs issued to each side's writer
        clock.start(self._move())

    def _reader(self, host: bool) -> ReadEngineModel:
        return self.readers["host" if host else "copy"]

    def _writer(self, host: bool) -> WriteEngineModel:
        return self.writers["host" if host else "copy"]

    def copy(self, source: int, target: int, words: int, from_host: bool, to_host: bool) -> Generator[Any, None, int]:
        """Issue a copy; ends in the cycle in which the engine accepts it.

        Returns its number among the copies to its side.
        """
        yield from self.routes.put((words, from_host, to_host))
        yield from self._reader(from_host).request(source, words)
        yield from self._writer(to_host).request(target, words, True)
        self.written[to_host] += 1
        return self.written[to_host]

    def wait(self, number: int, to_host: bool) -> Wait:
        """Wait until memory has acknowledged a copy."""
        yield from self._writer(to_host).stored.reach(number)

    def _move(self) -> Process:
        while True:
            words, from_host, to_host = yield from self.routes.get()
            for _ in range(words):
                yield from self._reader(from_host).word()
                yield from self._writer(to_host).put()
                yield 1
