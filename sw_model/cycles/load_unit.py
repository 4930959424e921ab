"""LOAD unit: commands LOAD and GATHER. One process requests reads, the other one writes to the operand memory."""

from __future__ import annotations

from hw.core.isa import ExecUnit
from sw_model.cycles.columns import Command, Gather, Load
from sw_model.cycles.layout import Count, Engine, Kind, Machine, Queue
from sw_model.cycles.ports import read_word, read_words, request
from sw_model.cycles.scheduler import Wait, add, head, item, pop, put, reach, start, until
from sw_model.cycles.sequencer import accept, complete, next_command
from sw_model.cycles.unit import remaining


def request_operands(k: Machine, c: int) -> Wait:
    """Process: jobs of the reader, and their sizes for the operand memory."""
    while True:
        i = yield from next_command(k, c, ExecUnit.LOAD)
        accept(k, c, ExecUnit.LOAD)
        yield 1
        if k.command[i, Command.KIND] == Kind.GATHER:
            yield from gather(k, c, i)
            continue
        rows = k.command[i, Load.ROWS]
        beats = k.command[i, Load.BEATS]
        total = k.command[i, Command.LENGTH]
        if k.command[i, Load.LIMIT] == 1:
            rows = remaining(total, k.command[i, Load.BLOCK] * k.width, rows)
        if k.command[i, Load.LIMIT] == 2:
            beats = remaining((total + k.width - 1) // k.width, k.command[i, Load.BLOCK], beats)
        yield from put(k, c, Queue.FILL, rows, beats, 0, 0)
        yield 1
        if beats == 0:
            rows = 0
        for row in range(rows):
            yield from request(
                k, c, Engine.READ_LOAD, k.command[i, Load.SOURCE] + row * k.command[i, Load.STRIDE], beats, 0
            )
            yield 1
        yield 1


def gather(k: Machine, c: int, i: int) -> Wait:
    """Keys or values of past tokens, page by page, then those of the step."""
    past = k.command[i, Gather.PAST]
    if k.command[i, Gather.RESTART]:
        k.page[c] = 0
        k.tokens_read[c] = 0
        k.slot[c] = 0
        k.value[c, Count.ENTRIES_READ] = 0
        if past:
            words = (k.command[i, Gather.PAGES] + k.list_entries - 1) // k.list_entries
            start(k, c, read_list, 0, k.command[i, Gather.HEAD] * k.list_words, words)
    total = past + k.command[i, Gather.TOKENS]
    skipped = remaining(total, k.tokens_read[c], k.command[i, Gather.SKIP] * k.width)
    tokens = remaining(total, k.tokens_read[c] + skipped, k.command[i, Gather.BLOCKS] * k.width)
    words = k.head_words
    if k.command[i, Gather.WORDS]:
        words = min(k.command[i, Gather.WORDS], words)
    yield from put(k, c, Queue.FILL, tokens, words, k.command[i, Gather.VALUES], 0)
    yield 1
    while skipped:
        yield 1  # NEXT
        count = 1
        if k.tokens_read[c] < past:
            yield from next_page(k, c)
            page = k.command[i, Gather.PAGE] + k.page[c]
            count = min(skipped, k.page_of[page, 1] - k.slot[c])
            leave_slots(k, c, page, count)
        yield 1
        k.tokens_read[c] += count
        skipped -= count
    for _ in range(tokens):
        yield 1  # NEXT
        if k.tokens_read[c] < past:
            yield from next_page(k, c)
            page = k.command[i, Gather.PAGE] + k.page[c]
            address = k.page_of[page, 0] + (2 * k.slot[c] + k.command[i, Gather.VALUES]) * k.head_words
            leave_slots(k, c, page, 1)
        else:
            address = k.command[i, Gather.STEP_WORD] + (k.tokens_read[c] - past) * k.command[i, Gather.STRIDE]
        yield from request(k, c, Engine.READ_LOAD, address + k.command[i, Gather.WORD], words, 0)
        yield 1
        k.tokens_read[c] += 1
    yield 1


def next_page(k: Machine, c: int) -> Wait:
    """Wait for the entry of the page list, if the next token is the first one of a page."""
    if k.slot[c] == 0:
        yield from reach(k, c, Count.ENTRIES_READ, 1)
        k.value[c, Count.ENTRIES_READ] -= 1
        yield 1  # PAGE


def leave_slots(k: Machine, c: int, page: int, count: int) -> None:
    """Go on by some tokens of a page."""
    k.slot[c] += count
    if k.slot[c] == k.page_of[page, 1]:
        k.slot[c] = 0
        k.page[c] += 1


def read_list(k: Machine, c: int, address: int, words: int) -> Wait:
    """Process: read a page list ahead of its use. The lists are taken to be at the start of the region."""
    yield 1
    yield from request(k, c, Engine.READ_PAGES, address, words, 0)
    for _ in range(words):
        yield from read_word(k, c, Engine.READ_PAGES)
        add(k, c, Count.ENTRIES_READ, k.list_entries)
        yield 1


def write_operands(k: Machine, c: int) -> Wait:
    """Process: words to the operand memory."""
    while True:
        yield from head(k, c, Queue.FILL)
        rows = item(k, c, Queue.FILL, 0)
        beats = item(k, c, Queue.FILL, 1)
        if rows and beats:
            yield 1
            if item(k, c, Queue.FILL, 2):
                yield from transpose(k, c, rows, beats)
            else:
                yield from read_words(k, c, Engine.READ_LOAD, rows * beats)
        pop(k, c, Queue.FILL)
        complete(k, c, ExecUnit.LOAD)
        yield 1


def transpose(k: Machine, c: int, rows: int, beats: int) -> Wait:
    """Rows through the transposer: a block of rows enters while the previous one leaves."""
    left = rows
    before = -1  # cycles in which the last words of the two newest blocks leave
    newest = -1
    while left:
        yield from until(k, before + 1)
        count = min(left, k.width)
        yield from read_words(k, c, Engine.READ_LOAD, count * beats)
        yield 1
        before = newest
        newest = max(k.now + 1, newest + 1) + k.width * beats - 1
        left -= count
    yield from until(k, newest)
