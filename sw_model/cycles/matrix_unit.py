"""MATRIX unit: processes for weights, activations and results, each one or two commands ahead of the next."""

from __future__ import annotations

from hw.core.isa import ExecUnit
from sw_model.cycles.columns import Command, Multiply
from sw_model.cycles.layout import READERS, Count, Engine, Machine, Queue
from sw_model.cycles.ports import request, write_word
from sw_model.cycles.scheduler import (
    Wait,
    add,
    get,
    head,
    item,
    pop,
    push,
    put,
    reach,
    start,
    take,
    until,
)  # fmt: skip
from sw_model.cycles.sequencer import accept, complete, next_command
from sw_model.cycles.unit import remaining

STORED = Count.STORED + Engine.WRITE_MATRIX - READERS


def accept_products(k: Machine, c: int) -> Wait:
    """Process: commands to the engine and to the output, run-time lengths resolved."""
    while True:
        i = yield from next_command(k, c, ExecUnit.MATRIX)
        accept(k, c, ExecUnit.MATRIX)
        yield 1
        blocks = (k.command[i, Command.LENGTH] + k.width - 1) // k.width
        block = k.command[i, Multiply.BLOCK]
        results = k.command[i, Multiply.M_BLOCKS]
        inputs = k.command[i, Multiply.K_BLOCKS]
        last = k.command[i, Multiply.LAST]
        if k.command[i, Multiply.LIMIT] == 1:
            results = remaining(blocks, block, results)
        if k.command[i, Multiply.LIMIT] == 2:
            inputs = remaining(blocks, block, inputs)
            last = block + inputs >= blocks
        if results == 0 or inputs == 0 or k.command[i, Multiply.VECTORS] == 0:
            results = 0
            last = 0
        yield from put(k, c, Queue.MULTIPLY, i, results, inputs, last)
        yield from put(k, c, Queue.RESULTS_OF, i, results, inputs, last)


def multiply(k: Machine, c: int) -> Wait:
    """Process: tiles, each loaded while the previous one is used."""
    change = -1  # cycles: the newest tile came into force; the last beat of the one before
    released = -1
    while True:
        yield from head(k, c, Queue.MULTIPLY)
        i = item(k, c, Queue.MULTIPLY, 0)
        tiles = item(k, c, Queue.MULTIPLY, 1) * item(k, c, Queue.MULTIPLY, 2)
        inputs = item(k, c, Queue.MULTIPLY, 2)
        last = item(k, c, Queue.MULTIPLY, 3)
        vectors = k.command[i, Multiply.VECTORS]
        pop(k, c, Queue.MULTIPLY)
        accepted = k.now
        loaded = accepted + 1
        for tile in range(tiles):
            loaded = max(loaded + 1, change + 1) + k.loads - 1  # its last beat of weights
            change = max(loaded + 1, released)
            beat = max(change, accepted + 1)
            if last and tile % inputs == inputs - 1:
                for _ in range(vectors):
                    beat += 1
                    yield from until(k, beat)
                    yield from reach(k, c, Count.CREDITS, 1)
                    k.value[c, Count.CREDITS] -= 1
                    beat = k.now
                    push(k, c, Queue.RESULTS, k.engine_latency, 0, 0, 0, 0)
            else:
                beat += vectors
            released = beat
        if tiles:
            yield from until(k, released)
        start(k, c, count_read, 1 if tiles else 0)
        yield 1


def count_read(k: Machine, c: int) -> Wait:
    """Process: the operands of a command are read."""
    add(k, c, Count.OPERANDS, 1)
    add(k, c, Count.OPERANDS_READ, 1)
    return
    yield


def write_results(k: Machine, c: int) -> Wait:
    """Process: results to memory."""
    while True:
        yield from head(k, c, Queue.RESULTS_OF)
        i = item(k, c, Queue.RESULTS_OF, 0)
        results = item(k, c, Queue.RESULTS_OF, 1)
        last = item(k, c, Queue.RESULTS_OF, 3)
        pop(k, c, Queue.RESULTS_OF)
        yield 1
        wide = k.command[i, Multiply.WIDE]
        vectors = k.command[i, Multiply.VECTORS]
        if last == 0:
            results = 0
        for m in range(results):
            for t in range(vectors):
                yield from get(k, c, Queue.RESULTS)
                final = m + 1 == results and t + 1 == vectors
                address = k.command[i, Multiply.OUT] + m * (1 + wide) + t * k.command[i, Multiply.STRIDE]
                start(k, c, request_results, 0, address, 1 + wide, final)
                yield from write_word(k, c, Engine.WRITE_MATRIX)
                if wide:
                    yield 1
                    yield from write_word(k, c, Engine.WRITE_MATRIX)
                start(k, c, give_credit, 2)
                yield 1
        yield from put(k, c, Queue.MATRIX_ENDS, last, 0, 0, 0)
        yield 1


def request_results(k: Machine, c: int, address: int, words: int, final: int) -> Wait:
    """Process: a job of the writer."""
    yield from request(k, c, Engine.WRITE_MATRIX, address, words, final)


def give_credit(k: Machine, c: int) -> Wait:
    """Process: a result slot is free."""
    add(k, c, Count.CREDITS, 1)
    return
    yield


def end_products(k: Machine, c: int) -> Wait:
    """Process: ends of commands, when operands are read and results stored."""
    stored = 0
    read = 0
    while True:
        last = yield from take(k, c, Queue.MATRIX_ENDS)
        read += 1
        yield from reach(k, c, Count.OPERANDS_READ, read)
        if last:
            stored += 1
            yield from reach(k, c, STORED, stored)
        complete(k, c, ExecUnit.MATRIX)
        yield 1
