"""LOAD unit: commands LOAD and GATHER. One process requests reads, the other one writes to the operand memory."""

from __future__ import annotations

from hw.core.isa import ExecUnit
from sw_model.cycles.columns import Command, Gather, Load
from sw_model.cycles.layout import Bell, Count, Engine, Kind, Machine, Queue
from sw_model.cycles.ports import read_word, read_words, remove_word, request
from sw_model.cycles.scheduler import Wait, add, bell, head, item, pop, put, reach, start, until
from sw_model.cycles.sequencer import accept, complete, next_command
from sw_model.cycles.unit import remaining

USED = 256  # an entry of RUNS has the first word and the words that are used of each key or value as one number


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
        encoding = 0
        words = beats  # of a row in memory
        if k.decodes and k.command[i, Load.LIMIT] == 3:
            encoding = k.command[i, Load.BLOCK] & 3
        if encoding:
            words = beats // k.width * (k.tile_headers[encoding] + k.tile_codes[encoding])
            beats = beats // k.width * k.width
        yield from put(k, c, Queue.FILL, rows, beats, 0, encoding)
        yield 1
        if beats == 0:
            rows = 0
        if k.encoded:
            if rows:
                yield from put(k, c, Queue.RUNS, 0, rows * words, 0, 0)
            yield 1
        for row in range(rows):
            yield from request(
                k, c, Engine.READ_LOAD, k.command[i, Load.SOURCE] + row * k.command[i, Load.STRIDE], words, 0
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
    run_sent = 0  # of the tokens of the step
    while tokens:
        yield 1  # NEXT
        count = 1
        if k.tokens_read[c] < past:
            yield from next_page(k, c)
            page = k.command[i, Gather.PAGE] + k.page[c]
            if k.encoded:
                first = k.slot[c] % k.block_tokens
                count = min(tokens, min(k.page_of[page, 1] - k.slot[c], k.block_tokens - first))
                unit = first * k.key_units % k.word_units
                used = k.command[i, Gather.WORD] * USED + words
                yield from put(k, c, Queue.RUNS, 1, count * k.head_words, unit, used)
                yield 1
                address = (
                    k.page_of[page, 0]
                    + k.slot[c] // k.block_tokens * 2 * k.key_block_words
                    + k.command[i, Gather.VALUES] * k.key_block_words
                    + first * k.key_units // k.word_units
                )
                size = (unit + count * k.key_units + k.word_units - 1) // k.word_units
            else:
                address = k.page_of[page, 0] + (2 * k.slot[c] + k.command[i, Gather.VALUES]) * k.head_words
                address += k.command[i, Gather.WORD]
                size = words
            leave_slots(k, c, page, count)
        else:
            if k.encoded and not run_sent:
                yield from put(k, c, Queue.RUNS, 0, tokens * words, 0, 0)
                yield 1
                run_sent = 1
            address = k.command[i, Gather.STEP_WORD] + (k.tokens_read[c] - past) * k.command[i, Gather.STRIDE]
            address += k.command[i, Gather.WORD]
            size = words
        yield from request(k, c, Engine.READ_LOAD, address, size, 0)
        yield 1
        k.tokens_read[c] += count
        tokens -= count
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
            elif item(k, c, Queue.FILL, 3):
                yield from decoded_words(k, c, rows * beats // k.width, item(k, c, Queue.FILL, 3))
            else:
                yield from operand_words(k, c, rows * beats)
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
        yield from operand_words(k, c, count * beats)
        yield 1
        before = newest
        newest = max(k.now + 1, newest + 1) + k.width * beats - 1
        left -= count
    yield from until(k, newest)


def decoded_words(k: Machine, c: int, tiles: int, encoding: int) -> Wait:
    """Encoded tiles through the decoder of weights; ends in the cycle in which the last row is written."""
    r = Engine.READ_LOAD
    cycle = k.now - 1  # of the word before
    free = 0  # cycle from which the next codes are accepted
    if k.encoded:
        yield from next_run(k, c)
        cycle = max(cycle, k.now - 1)
    header = k.tile_headers[encoding]
    for _ in range(tiles):
        for word in range(header + k.tile_codes[encoding]):
            while k.words[c, r] == 0:
                yield bell(c, Bell.WORD + r)
            cycle = max(cycle + 1, k.word_at[c, r, k.word_head[c, r]])
            if word >= header:
                cycle = max(cycle, free)
                free = cycle + k.width // k.tile_codes[encoding]
            remove_word(k, c, r, cycle)
    if k.encoded:
        k.run_left[c] = 0
        k.taken[c] = cycle
        k.delivered[c] = cycle
    yield from until(k, free + 1)


def operand_words(k: Machine, c: int, count: int) -> Wait:
    """Words for the operand memory; ends in the cycle in which the last one arrives."""
    if not k.encoded:
        yield from read_words(k, c, Engine.READ_LOAD, count)
    else:
        k.taken[c] = max(k.taken[c], k.now - k.decoder_latency - 1)  # the decoder holds the words of as many cycles
        left = count
        while left:
            if k.run_left[c] == 0:
                yield from next_run(k, c)
            if k.run_encoded[c]:
                sent = yield from take_record(k, c)
                left -= sent
                k.delivered[c] = k.taken[c] + k.decoder_latency
            else:
                words = min(left, k.run_left[c])
                yield from read_words(k, c, Engine.READ_LOAD, words)
                k.taken[c] = k.now
                k.delivered[c] = k.now
                k.run_left[c] -= words
                left -= words
        yield from until(k, k.delivered[c])


def next_run(k: Machine, c: int) -> Wait:
    """Begin the next run; plain words wait until the decoder is empty."""
    yield from head(k, c, Queue.RUNS)
    k.taken[c] = max(k.taken[c] + 1, k.at[c, Queue.RUNS, k.head[c, Queue.RUNS]])
    k.run_encoded[c] = item(k, c, Queue.RUNS, 0)
    k.run_left[c] = item(k, c, Queue.RUNS, 1)
    k.run_at[c] = k.word_units + item(k, c, Queue.RUNS, 2)
    k.run_first[c] = item(k, c, Queue.RUNS, 3) // USED
    k.run_end[c] = k.run_first[c] + item(k, c, Queue.RUNS, 3) % USED
    k.run_record[c] = 0
    pop(k, c, Queue.RUNS)
    if not k.run_encoded[c]:
        yield from until(k, max(k.taken[c], k.delivered[c]) + 1)


def take_record(k: Machine, c: int) -> Wait:
    """Take a record from the words; returns whether it is sent on."""
    r = Engine.READ_LOAD
    while k.words[c, r] == 0:
        yield bell(c, Bell.WORD + r)
    if k.run_at[c] + k.record_units > 2 * k.word_units:  # it ends in the next word
        k.taken[c] = max(k.taken[c] + 1, k.word_at[c, r, k.word_head[c, r]])
        remove_word(k, c, r, k.taken[c])
        k.run_at[c] -= k.word_units
        while k.words[c, r] == 0:
            yield bell(c, Bell.WORD + r)
    k.taken[c] = max(k.taken[c] + 1, k.word_at[c, r, k.word_head[c, r]])
    k.run_at[c] += k.record_units
    k.run_left[c] -= 1
    if k.run_left[c] == 0 or k.run_at[c] + k.record_units > 2 * k.word_units:
        remove_word(k, c, r, k.taken[c])
        k.run_at[c] -= k.word_units
    used = k.run_first[c] <= k.run_record[c] < k.run_end[c]
    k.run_record[c] = (k.run_record[c] + 1) % k.head_words
    return used
