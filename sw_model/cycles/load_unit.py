"""Cycle model of the LOAD unit."""

from __future__ import annotations

from hw.core.isa import ExecUnit
from hw.core.retrieval.page_lists import LIST_ENTRY, list_words
from sw_model.cycles.processes import Process, Queue, Wait
from sw_model.cycles.state import IssuedCommand
from sw_model.cycles.unit import UnitModel, remaining


class LoadUnitModel(UnitModel):
    """Commands LOAD and GATHER. One process requests reads, the other writes the words to the operand memory."""

    def begin(self) -> None:
        self.fill_queue = Queue(self.clock, depth=4)
        config, word = self.core.config, 8 * self.core.word_bytes
        self.entries_per_word, self.list_words = word // LIST_ENTRY.size, list_words(config.max_pages, word)
        self.entries = Queue(self.clock, latency=0)  # entries of the page list that have arrived
        self.at, self.tokens_read, self.slot = 0, 0, 0  # page of the list, tokens served, token of the page
        self.clock.start(self._request())
        self.clock.start(self._write_operands())

    def _request(self) -> Process:
        core, reader = self.core, self.core.readers["load"]
        while True:
            command = yield from core.next(ExecUnit.LOAD)
            core.accept(ExecUnit.LOAD)
            f = command.fields
            yield 1
            if command.name == "GATHER":
                yield from self._gather(command)
                continue
            n, total = core.width, core.length(command)
            rows, beats, block = f.get("rows", 0), f.get("beats", 0), f.get("block", 0)
            if f.get("limit", 0) == 1:
                rows = remaining(total, block * n, rows)
            if f.get("limit", 0) == 2:
                beats = remaining(-(-total // n), block, beats)
            yield from self.fill_queue.put((rows, beats, False))
            yield 1
            for row in range(rows if beats else 0):
                yield from reader.request(f["source"] + row * f.get("stride", 0), beats)
                yield 1
            yield 1

    def _gather(self, command: IssuedCommand) -> Wait:
        core, reader, f = self.core, self.core.readers["load"], command.fields
        head, values = f.get("head", 0), f.get("values", 0)
        past, pages = command.data.past(head), command.data.pages.get(head, ())
        if f.get("restart", 0):
            self.at = self.tokens_read = self.slot = 0
            words = -(-len(pages) // self.entries_per_word)
            self.entries = Queue(self.clock, latency=0)
            if past:
                self.clock.start(self._read_list(self.entries, head * self.list_words, words))
        tokens = remaining(past + f["tokens"], self.tokens_read, f["blocks"] * core.width)
        yield from self.fill_queue.put((tokens, core.head, bool(values)))
        yield 1
        for _ in range(tokens):
            yield 1  # NEXT
            if self.tokens_read < past:
                if not self.slot:
                    yield from self.entries.get()
                    yield 1  # PAGE
                place, count = pages[self.at]
                address = place // core.word_bytes + (2 * self.slot + values) * core.head
                self.slot += 1
                if self.slot == count:
                    self.slot, self.at = 0, self.at + 1
            else:
                address = f["step_word"] + (self.tokens_read - past) * f["stride"]
            yield from reader.request(address, core.head)
            yield 1
            self.tokens_read += 1
        yield 1

    def _read_list(self, entries: Queue, word_address: int, words: int) -> Process:
        """Read a page list ahead of its use. The lists are taken to be at the start of the region."""
        reader = self.core.readers["pages"]
        yield 1
        yield from reader.request(word_address, words)
        for _ in range(words):
            yield from reader.word()
            for _ in range(self.entries_per_word):
                entries.push(None)
            yield 1

    def _write_operands(self) -> Process:
        core, reader = self.core, self.core.readers["load"]
        while True:
            rows, beats, transposed = yield from self.fill_queue.head()
            if rows and beats:
                yield 1
                if transposed:
                    yield from self._transpose(rows, beats)
                else:
                    for word in range(rows * beats):
                        if word:
                            yield 1
                        yield from reader.word()
            self.fill_queue.pop()
            core.complete(ExecUnit.LOAD)
            yield 1

    def _transpose(self, rows: int, beats: int) -> Wait:
        """Pass rows through the transposer: a block of rows enters while the previous one leaves."""
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
