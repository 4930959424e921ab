"""The COPY unit."""

from __future__ import annotations

from hw.core.isa import ExecUnit
from sw_model.cycles.processes import Process, Queue
from sw_model.cycles.unit import UnitModel


class CopyUnitModel(UnitModel):
    """COPY and STORE."""

    def begin(self) -> None:
        self.finals = Queue(self.clock)
        self.clock.start(self._ask())
        self.clock.start(self._end())

    def _ask(self) -> Process:
        core, copier = self.core, self.core.copier
        while True:
            command = yield from core.next(ExecUnit.COPY)
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
            core.take(ExecUnit.COPY)
            yield 1

    def _end(self) -> Process:
        core = self.core
        while True:
            number, host, placed = yield from self.finals.get()
            yield from core.copier.wait(number, host)
            core.complete(ExecUnit.COPY)
            if placed:
                core.placed.add()
            yield 1
