"""Cycle model of the COPY unit."""

from __future__ import annotations

from hw.core.isa import ExecUnit
from sw_model.cycles.processes import Process, Queue
from sw_model.cycles.unit import UnitModel


class CopyUnitModel(UnitModel):
    """Commands COPY and STORE."""

    def begin(self) -> None:
        self.final_queue = Queue(self.clock)
        self.clock.start(self._issue())
        self.clock.start(self._end())

    def _issue(self) -> Process:
        core, copier = self.core, self.core.copier
        while True:
            command = yield from core.next(ExecUnit.COPY)
            f = command.fields
            yield 1  # through a register
            if command.name == "COPY":
                sides = bool(f.get("from_host", 0)), bool(f.get("to_host", 0))
                number = yield from copier.copy(f["source"], f["target"], f["words"], *sides)
                self.final_queue.push((number, sides[1], False))
            else:
                yield 1
                unit = core.config.page_tokens * 2 * core.head
                for token, slot_address in enumerate(command.data.places[n] for n in command.tokens):
                    for head in range(core.config.kv_heads):
                        for value, name in enumerate(("key", "value")):
                            source = f[f"{name}s"] + token * f[f"{name}_stride"] + head * core.head
                            target = slot_address // core.word_bytes + head * unit + value * core.head
                            number = yield from copier.copy(source, target, core.head, False, False)
                            yield 1
                self.final_queue.push((number, False, True))
            core.accept(ExecUnit.COPY)
            yield 1

    def _end(self) -> Process:
        core = self.core
        while True:
            number, host, slots_written = yield from self.final_queue.get()
            yield from core.copier.wait(number, host)
            core.complete(ExecUnit.COPY)
            if slots_written:
                core.slots_written.add()
            yield 1
