"""COPY unit, and the copy engine between device memory and host link, which the retrieval unit uses too."""

from __future__ import annotations

from hw.core.isa import ExecUnit
from sw_model.cycles.columns import Command, Copy, Store, Token
from sw_model.cycles.layout import READERS, Count, Engine, Kind, Machine, Queue, Side
from sw_model.cycles.ports import read_word, request, write_word
from sw_model.cycles.scheduler import Wait, add, head, item, pop, push, put, reach, start, until
from sw_model.cycles.sequencer import accept, complete, next_command


def reader_of(host: int) -> int:
    """Reader of a copy."""
    return Engine.READ_HOST if host else Engine.READ_COPY


def writer_of(host: int) -> int:
    """Writer of a copy."""
    return Engine.WRITE_HOST if host else Engine.WRITE_COPY


def store(k: Machine, c: int, source: int, target: int, slot: int) -> Wait:
    """Copy a key or a value to its slot, encoded in the block at `target` if pages are; returns its number as `copy`"""
    if k.encoded:
        units = slot * k.key_units
        words = (units % k.word_units + k.key_units + k.word_units - 1) // k.word_units
        yield from put(k, c, Queue.ROUTES, k.head_words, 0, 0, words)
        yield from request(k, c, Engine.READ_COPY, source, k.head_words, 0)
        yield from request(k, c, Engine.WRITE_COPY, target + units // k.word_units, words, 1)
        k.written[c, Side.DEVICE] += 1
        number = k.written[c, Side.DEVICE]
    else:
        number = yield from copy(k, c, source, target, k.head_words, 0, 0)
    return number


def copy(k: Machine, c: int, source: int, target: int, words: int, from_host: int, to_host: int) -> Wait:
    """Issue a copy; ends in the cycle in which the engine accepts it: its number among the copies to its side."""
    yield from put(k, c, Queue.ROUTES, words, from_host, to_host, 0)
    yield from request(k, c, reader_of(from_host), source, words, 0)
    yield from request(k, c, writer_of(to_host), target, words, 1)
    k.written[c, to_host] += 1
    return k.written[c, to_host]


def wait_for_copy(k: Machine, c: int, number: int, to_host: int) -> Wait:
    """Wait until memory has acknowledged a copy."""
    yield from reach(k, c, Count.STORED + writer_of(to_host) - READERS, number)


def move_words(k: Machine, c: int) -> Wait:
    """Process: words of the copies, in order. Reads run ahead of writes."""
    while True:
        yield from head(k, c, Queue.ROUTES)
        words = item(k, c, Queue.ROUTES, 0)
        reader = reader_of(item(k, c, Queue.ROUTES, 1))
        writer = writer_of(item(k, c, Queue.ROUTES, 2))
        encoded = item(k, c, Queue.ROUTES, 3)  # words that are written
        pop(k, c, Queue.ROUTES)
        if encoded:
            for _ in range(words):
                yield from read_word(k, c, reader)
                yield 1
            start(k, c, write_encoded, k.encoder_latency - 1, encoded)
            k.encoder_end[c] = k.now + k.encoder_latency + encoded - 1
            continue
        if writer == Engine.WRITE_COPY:
            yield from until(k, k.encoder_end[c])
        for _ in range(words):
            yield from read_word(k, c, reader)
            yield from write_word(k, c, writer)
            yield 1


def write_encoded(k: Machine, c: int, words: int) -> Wait:
    """Process: the words of an encoded key or value."""
    for _ in range(words):
        yield from write_word(k, c, Engine.WRITE_COPY)
        yield 1


def issue_copies(k: Machine, c: int) -> Wait:
    """Process: commands COPY and STORE."""
    while True:
        i = yield from next_command(k, c, ExecUnit.COPY)
        yield 1  # through a register
        if k.command[i, Command.KIND] == Kind.COPY:
            to_host = k.command[i, Copy.TO_HOST]
            number = yield from copy(
                k, c, k.command[i, Copy.SOURCE], k.command[i, Copy.TARGET], k.command[i, Copy.WORDS],
                k.command[i, Copy.FROM_HOST], to_host,
            )  # fmt: skip
            push(k, c, Queue.COPIED, 0, number, to_host, 0, 0)
        else:
            yield 1
            first = k.command[i, Command.TOKENS]
            passed = 0  # tokens before this one, with those that are dropped
            for token in range(k.command[i, Command.TOKENS_END] - first):
                dropped = k.token[first + token, Token.DROPPED]
                if dropped:
                    yield dropped
                passed += dropped
                for head_number in range(k.kv_heads):
                    place = k.token[first + token, Token.PLACE] + head_number * k.page_words
                    slot = k.token[first + token, Token.SLOT]
                    value_at = k.head_words
                    if k.encoded:
                        value_at = k.key_block_words
                    key = k.command[i, Store.KEYS] + passed * k.command[i, Store.KEY_STRIDE]
                    number = yield from store(k, c, key + head_number * k.head_words, place, slot)
                    yield 1
                    value = k.command[i, Store.VALUES] + passed * k.command[i, Store.VALUE_STRIDE]
                    number = yield from store(k, c, value + head_number * k.head_words, place + value_at, slot)
                    yield 1
                passed += 1
            push(k, c, Queue.COPIED, 0, number, Side.DEVICE, 1, 0)
        accept(k, c, ExecUnit.COPY)
        yield 1


def end_copies(k: Machine, c: int) -> Wait:
    """Process: ends of commands, when their copies are stored."""
    while True:
        yield from head(k, c, Queue.COPIED)
        number = item(k, c, Queue.COPIED, 0)
        to_host = item(k, c, Queue.COPIED, 1)
        of_slots = item(k, c, Queue.COPIED, 2)
        pop(k, c, Queue.COPIED)
        yield from wait_for_copy(k, c, number, to_host)
        complete(k, c, ExecUnit.COPY)
        if of_slots:
            add(k, c, Count.SLOTS_WRITTEN, 1)
        yield 1
