"""The COPY unit, and the copies that it and the cache unit ask for."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from hw.core.isa import Unit
from sw_model.cycles.ports import Reader, Writer
from sw_model.cycles.processes import Process, Queue, Wait
from sw_model.cycles.unit import UnitModel

if TYPE_CHECKING:
    from sw_model.cycles.core import CoreModel


class Copier:
    """Copies in order between the two sides: reads run ahead of writes."""

    def __init__(self, core: CoreModel):
        self.core, self.clock = core, core.clock
        self.routes = Queue(core.clock, depth=16)
        self.written = {False: 0, True: 0}  # jobs given to each side's writer
        core.clock.start(self._move())

    def _reader(self, host: bool) -> Reader:
        return self.core.readers["host" if host else "copy"]

    def _writer(self, host: bool) -> Writer:
        return self.core.writers["host" if host else "copy"]

    def give(self, source: int, target: int, words: int, from_host: bool, to_host: bool) -> Generator[Any, None, int]:
        """A copy; ends in the cycle in which it is taken. Gives its number among those to its side."""
        yield from self.routes.put((words, from_host, to_host))
        yield from self._reader(from_host).ask(source, words)
        yield from self._writer(to_host).ask(target, words, True)
        self.written[to_host] += 1
        return self.written[to_host]

    def wait(self, number: int, to_host: bool) -> Wait:
        """Wait until a copy has been acknowledged."""
        yield from self._writer(to_host).stored.reach(number)

    def _move(self) -> Process:
        while True:
            words, from_host, to_host = yield from self.routes.get()
            for _ in range(words):
                yield from self._reader(from_host).word()
                yield from self._writer(to_host).put()
                yield 1


class Copying(UnitModel):
    """COPY and PLACE."""

    def begin(self) -> None:
        self.finals = Queue(self.clock)
        self.clock.start(self._ask())
        self.clock.start(self._end())

    def _ask(self) -> Process:
        core, copier = self.core, self.core.copier
        while True:
            command = yield from core.next(Unit.COPY)
            f = command.fields
            yield 1  # through a register
            if command.name == "COPY":
                sides = bool(f.get("from_host", 0)), bool(f.get("to_host", 0))
                number = yield from copier.give(f["source"], f["target"], f["words"], *sides)
                self.finals.push((number, sides[1], False))
            else:
                yield 1
                unit = core.config.page_tokens * 2 * core.head
                for token, place in enumerate(core.data.places):
                    for head in range(core.config.kv_heads):
                        for value, name in enumerate(("key", "value")):
                            source = f[f"{name}s"] + token * f[f"{name}_stride"] + head * core.head
                            target = place // core.word_bytes + head * unit + value * core.head
                            number = yield from copier.give(source, target, core.head, False, False)
                            yield 1
                self.finals.push((number, False, True))
            core.take(Unit.COPY)
            yield 1

    def _end(self) -> Process:
        core = self.core
        while True:
            number, host, placed = yield from self.finals.get()
            yield from core.copier.wait(number, host)
            core.complete(Unit.COPY)
            if placed:
                core.placed.add()
            yield 1
