"""The LOAD unit."""

from __future__ import annotations

from collections.abc import Mapping

from hw.core.isa import ExecUnit
from sw_model.cycles.processes import Process, Queue, Wait
from sw_model.cycles.unit import UnitModel, part


class LoadUnitModel(UnitModel):
    """LOAD and GATHER: one half asks, the other places words."""

    def begin(self) -> None:
        self.fills = Queue(self.clock, depth=4)
        self.at, self.served, self.slot = 0, 0, 0  # page of the list, tokens served, token of the page
        self.clock.start(self._ask())
        self.clock.start(self._place())

    def _ask(self) -> Process:
        core, reader = self.core, self.core.readers["load"]
        while True:
            command = yield from core.next(ExecUnit.LOAD)
            core.take(ExecUnit.LOAD)
            f = command.fields
            yield 1
            if command.name == "GATHER":
                yield from self._gather(f)
                continue
            n, total = core.width, core.length(command)
            rows, beats, block = f.get("rows", 0), f.get("beats", 0), f.get("block", 0)
            if f.get("limit", 0) == 1:
                rows = part(total, block * n, rows)
            if f.get("limit", 0) == 2:
                beats = part(-(-total // n), block, beats)
            yield from self.fills.put((rows, beats, False))
            yield 1
            for row in range(rows if beats else 0):
                yield from reader.ask(f["source"] + row * f.get("stride", 0), beats)
                yield 1
            yield 1

    def _gather(self, f: Mapping[str, int]) -> Wait:
        core, reader = self.core, self.core.readers["load"]
        head, values = f.get("head", 0), f.get("values", 0)
        if f.get("restart", 0):
            self.at = self.served = self.slot = 0
        past, pages = core.past[head], core.data.pages[head] if core.data.pages else ()
        tokens = part(past + f["tokens"], self.served, f["blocks"] * core.width)
        yield from self.fills.put((tokens, core.head, bool(values)))
        yield 1
        for _ in range(tokens):
            yield 1  # NEXT
            if self.served < past:
                if not self.slot:
                    yield 1  # PAGE
                place, count = pages[self.at]
                address = place // core.word_bytes + (2 * self.slot + values) * core.head
                self.slot += 1
                if self.slot == count:
                    self.slot, self.at = 0, self.at + 1
            else:
                address = f["step_word"] + (self.served - past) * f["stride"]
            yield from reader.ask(address, core.head)
            yield 1
            self.served += 1
        yield 1

    def _place(self) -> Process:
        core, reader = self.core, self.core.readers["load"]
        while True:
            rows, beats, transposed = yield from self.fills.head()
            if rows and beats:
                yield 1
                if transposed:
                    yield from self._turn(rows, beats)
                else:
                    for word in range(rows * beats):
                        if word:
                            yield 1
                        yield from reader.word()
            self.fills.pop()
            core.complete(ExecUnit.LOAD)
            yield 1

    def _turn(self, rows: int, beats: int) -> Wait:
        """Through the transposer: blocks of rows come while the one before leaves."""
        clock, reader, width = self.clock, self.core.readers["load"], self.core.width
        out: list[int] = []  # when the last word of each block leaves
        while rows:
            if len(out) > 1:
                yield from clock.until(out[-2] + 1)
            count = min(rows, width)
            for _ in range(count * beats):
                yield from reader.word()
                yield 1
            begin = max(clock.now + 1, out[-1] + 1 if out else 0)
            out.append(begin + width * beats - 1)
            rows -= count
        yield from clock.until(out[-1])
