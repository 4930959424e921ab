"""Cycle model of the line cache of the KVMU: hits, misses, write-backs and the undo log."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from hw.dre.kvmu.records import BLOCK_BYTES
from sw_model.cycles.ports import ReadEngineModel, WriteEngineModel
from sw_model.cycles.processes import Bell, Wait


@dataclass
class CacheCounts:
    """Counted events: accessed blocks, lines read, lines written back, entries of the undo log."""

    accesses: int = 0
    fills: int = 0
    writebacks: int = 0
    logged: int = 0


class LineCacheModel:
    """Lines of the store on chip, with the replacement rule of `hw.dre.kvmu.line_cache`.

    A method starts in the first cycle of the request and ends in the first cycle in which the client continues.

    Parameters
    ----------
    lines : lines on chip ; word_bytes : bytes of a memory word
    reader, writer : engines of the store

    Attributes
    ----------
    log_word : word address of the undo log
    """

    def __init__(self, lines: int, word_bytes: int, reader: ReadEngineModel, writer: WriteEngineModel):
        self.reader, self.writer = reader, writer
        self.line_words = max(BLOCK_BYTES, word_bytes) // word_bytes
        self.blocks = max(1, word_bytes // BLOCK_BYTES)
        self.tags = [-1] * lines  # line in each slot
        self.slots: dict[int, int] = {}  # slot of each line
        self.dirty: set[int] = set()  # slots
        self.recent: set[int] = set()
        self.evicted = -1
        self.jobs = 0  # jobs of the writer
        self.log_word = self.entries = 0
        self.counts = CacheCounts()

    def read(self, block: int) -> Wait:
        """READ."""
        yield from self._find(block)
        yield 2

    def write(self, block: int) -> Wait:
        """WRITE."""
        slot = yield from self._find(block)
        if slot not in self.dirty:
            yield 1
            yield from self._add_entry()
            self.dirty.add(slot)
        yield 1

    def log(self, block: int) -> Wait:
        """LOG: the line leaves the cache when its content is in the undo log."""
        slot = yield from self._find(block, use=False)
        yield 1
        yield from self._add_entry()
        self.slots.pop(self.tags[slot])
        self.tags[slot] = -1

    def invalidate(self) -> Wait:
        """INVALIDATE."""
        self.tags = [-1] * len(self.tags)
        self.slots.clear()
        self.recent.clear()
        yield 2

    def flush(self) -> Wait:
        """FLUSH."""
        yield 1
        yield from self.written()
        yield 1
        for slot in sorted(self.dirty):
            yield 1
            yield from self._write_back(slot)
        self.dirty.clear()
        yield 1
        yield from self.written()
        yield 2

    def written(self) -> Wait:
        """Wait until memory has acknowledged all writes."""
        yield from self.writer.stored.reach(self.jobs)

    def write_words(self, address: int, words: int) -> Wait:
        """Write words to memory with one job."""
        self.jobs += 1
        yield from self.writer.request(address, words, True)
        yield 1
        for _ in range(words):
            yield from self.writer.put()
            yield 1

    def _add_entry(self) -> Wait:
        """Write an entry of the undo log: the old content of a line, and its tag."""
        address = self.log_word + 2 * self.line_words * self.entries
        self.entries += 1
        self.counts.logged += 1
        yield from self.write_words(address, 2 * self.line_words)

    def _find(self, block: int, use: bool = True) -> Generator[int | Bell, None, int]:
        """Slot of the line with a block, after a miss has read it; with `use` it counts as used lately."""
        self.counts.accesses += 1
        line = block // self.blocks
        if line not in self.slots:
            yield from self._fill(line)
        slot = self.slots[line]
        if not use:
            return slot
        self.recent.add(slot)
        if len(self.recent) == len(self.tags):
            self.recent = {slot}
        return slot

    def _fill(self, line: int) -> Wait:
        slot = next(n for n in range(len(self.tags)) if n not in self.recent)
        yield 1
        if slot in self.dirty:
            yield from self.written()
            yield 1
            yield from self._write_back(slot)
            self.dirty.discard(slot)
            self.evicted = self.tags[slot]
        if line == self.evicted:
            yield from self.written()
        self.slots.pop(self.tags[slot], None)
        self.counts.fills += 1
        yield from self.reader.request(line * self.line_words, self.line_words)
        yield 1
        for _ in range(self.line_words):
            yield from self.reader.word()
            yield 1
        self.tags[slot], self.slots[line] = line, slot

    def _write_back(self, slot: int) -> Wait:
        self.counts.writebacks += 1
        yield from self.write_words(self.tags[slot] * self.line_words, self.line_words)
