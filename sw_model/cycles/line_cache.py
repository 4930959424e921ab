"""Line cache of the KVMU: hits, misses, write-backs and the undo log, with the rules of `hw.dre.kvmu.line_cache`.

A function starts in the first cycle of the request and ends in the first cycle in which the client continues.
"""

from __future__ import annotations

from sw_model.cycles.layout import READERS, Count, Engine, Machine
from sw_model.cycles.ports import read_word, request, write_word
from sw_model.cycles.scheduler import Wait, reach

ACCESSES, FILLS, WRITEBACKS, LOGGED = range(4)  # counts
STORED = Count.STORED + Engine.WRITE_STORE - READERS
READ, WRITE, LOG = range(3)
NOTHING = -1  # tag of a free line


def access(k: Machine, c: int, block: int, kind: int) -> Wait:
    """READ, WRITE or LOG of a block. After LOG the line has left the cache and is in the undo log."""
    k.counts[c, ACCESSES] += 1
    line = block // k.line_blocks
    slot = slot_of(k, c, line)
    if slot < 0:
        slot = first_unused(k, c)
        yield 1
        if k.dirty[c, slot]:
            yield from written(k, c)
            yield 1
            yield from write_back(k, c, slot)
            k.dirty[c, slot] = 0
            k.evicted[c] = k.tag[c, slot]
        if line == k.evicted[c]:
            yield from written(k, c)
        k.tag[c, slot] = NOTHING
        k.counts[c, FILLS] += 1
        yield from request(k, c, Engine.READ_STORE, line * k.line_words, k.line_words, 0)
        yield 1
        for _ in range(k.line_words):
            yield from read_word(k, c, Engine.READ_STORE)
            yield 1
        k.tag[c, slot] = line
    if kind != LOG:
        use(k, c, slot)
    if kind == READ:
        yield 2
    elif kind == LOG or k.dirty[c, slot] == 0:
        yield 1
        address = k.log_word[c] + 2 * k.line_words * k.log_entries[c]
        k.log_entries[c] += 1
        k.counts[c, LOGGED] += 1
        yield from write_words(k, c, address, 2 * k.line_words)
        if kind == LOG:
            k.tag[c, slot] = NOTHING
        else:
            k.dirty[c, slot] = 1
    if kind == WRITE:
        yield 1


def slot_of(k: Machine, c: int, line: int) -> int:
    """Slot of a line; -1: it is not in the cache."""
    for slot in range(k.lines):
        if k.tag[c, slot] == line:
            return slot
    return -1


def first_unused(k: Machine, c: int) -> int:
    """First slot that was not used lately."""
    for slot in range(k.lines):
        if not k.recent[c, slot]:
            return slot
    return 0


def use(k: Machine, c: int, slot: int) -> None:
    """Mark a slot as used lately; when all are, only the newest one is."""
    k.recent[c, slot] = 1
    used = 0
    for other in range(k.lines):
        used += k.recent[c, other]
    if used == k.lines:
        for other in range(k.lines):
            k.recent[c, other] = 0
        k.recent[c, slot] = 1


def invalidate(k: Machine, c: int) -> Wait:
    """INVALIDATE: drop all lines."""
    drop_lines(k, c)
    yield 2


def drop_lines(k: Machine, c: int) -> None:
    """Empty the cache."""
    for slot in range(k.lines):
        k.tag[c, slot] = NOTHING
        k.recent[c, slot] = 0


def flush(k: Machine, c: int) -> Wait:
    """FLUSH: write all changed lines to memory."""
    yield 1
    yield from written(k, c)
    yield 1
    for slot in range(k.lines):
        if k.dirty[c, slot]:
            yield 1
            yield from write_back(k, c, slot)
            k.dirty[c, slot] = 0
    yield 1
    yield from written(k, c)
    yield 2


def written(k: Machine, c: int) -> Wait:
    """Wait until memory has acknowledged all writes."""
    yield from reach(k, c, STORED, k.jobs[c])


def write_back(k: Machine, c: int, slot: int) -> Wait:
    """Write a changed line to memory."""
    k.counts[c, WRITEBACKS] += 1
    yield from write_words(k, c, k.tag[c, slot] * k.line_words, k.line_words)


def write_words(k: Machine, c: int, address: int, words: int) -> Wait:
    """Write words to memory with one job."""
    k.jobs[c] += 1
    yield from request(k, c, Engine.WRITE_STORE, address, words, 1)
    yield 1
    for _ in range(words):
        yield from write_word(k, c, Engine.WRITE_STORE)
        yield 1
