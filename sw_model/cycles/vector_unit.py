"""VECTOR unit: commands VECTOR and MEANS. Processes for instructions, input, engine and output."""

from __future__ import annotations

from hw.core.isa import Destination, ExecUnit
from hw.lxe.vpe_lane import STAGES
from sw_model.cycles.columns import Command, Mean, Means, Op, Step, Vector
from sw_model.cycles.layout import READERS, Bell, Count, Engine, Kind, Machine, Queue
from sw_model.cycles.ports import next_word, read_word, remove_word, request, write_word
from sw_model.cycles.scheduler import (
    Wait,
    bell,
    drop,
    get,
    head,
    item,
    pop,
    push,
    put,
    put_late,
    reach,
    ring,
    start,
    take,
    until,
)  # fmt: skip
from sw_model.cycles.sequencer import accept, complete, next_command

STORED = Count.STORED + Engine.WRITE_VECTOR - READERS
TO_CODES: int = Destination.CODES.value
TO_MEMORY: int = Destination.MEMORY.value
TO_NOTHING: int = Destination.NONE.value
# MEANS: instructions at the start of the table
MEAN_OF_NEW, MEAN_OF_OLD, ADD_TOKEN, STORE_MEAN = range(4)


def accept_vectors(k: Machine, c: int) -> Wait:
    """Process: commands to instructions, input and output; the next one when all three have received a command."""
    while True:
        i = yield from next_command(k, c, ExecUnit.VECTOR)
        accept(k, c, ExecUnit.VECTOR)
        yield 1
        if k.command[i, Command.KIND] == Kind.MEANS:
            yield 2
        push(k, c, Queue.INSTRUCT, 0, i, 0, 0, 0)
        push(k, c, Queue.FETCH, 0, i, 0, 0, 0)
        push(k, c, Queue.DRAIN, 0, i, 0, 0, 0)
        while k.count[c, Queue.INSTRUCT]:
            yield bell(c, Bell.GET + Queue.INSTRUCT)
        while k.count[c, Queue.FETCH]:
            yield bell(c, Bell.GET + Queue.FETCH)
        while k.count[c, Queue.DRAIN]:
            yield bell(c, Bell.GET + Queue.DRAIN)


def receive(k: Machine, c: int, q: int) -> Wait:
    """Wait for the command of one of the three engines; the place of the command is free in the same cycle."""
    yield from head(k, c, q)
    i = item(k, c, q, 0)
    drop(k, c, q)
    ring(k, c, Bell.GET + q)
    return i


def elements_of(k: Machine, i: int, row: int) -> int:
    """Elements of a repetition."""
    group = k.command[i, Vector.GROUP]
    return k.command[i, Command.LENGTH] + (row // group if group else 0)


def beats_of(k: Machine, i: int, row: int) -> int:
    """Beats of a repetition."""
    return (elements_of(k, i, row) + k.width - 1) // k.width


def instruct(k: Machine, c: int) -> Wait:
    """Process: instructions of every repetition."""
    while True:
        i = yield from receive(k, c, Queue.INSTRUCT)
        yield 1
        if k.command[i, Command.KIND] == Kind.MEANS:
            push(k, c, Queue.JOINED, 0, 0, 0, 0, 0)
            yield from get(k, c, Queue.AVERAGED)
            continue
        ops = k.command[i, Vector.OPS]
        words = (ops * k.code_words + k.word_codes - 1) // k.word_codes
        start(k, c, request_code, 0, k.command[i, Vector.CODE], words, k.command[i, Vector.ROWS])
        sent = k.now - 1
        for row in range(k.command[i, Vector.ROWS]):
            for number in range(ops):
                op = k.command[i, Vector.OP] + number
                if k.code_words > 1:
                    for _ in range(k.code_words):
                        yield from read_word(k, c, Engine.READ_CODE)
                        yield 1
                elif number % k.word_codes == 0:
                    yield from read_word(k, c, Engine.READ_CODE)
                beats = k.op[op, Op.BEATS]
                if k.op[op, Op.VARIES] and k.command[i, Vector.A_BEATS] == 0:
                    beats = beats_of(k, i, row)
                yield from put(k, c, Queue.CODE, op, beats, 0, 0)
                sent = k.now
                if k.code_words == 1:
                    yield 1
            if k.word_codes > 1 and ops % k.word_codes:
                yield 1  # the rest of the word
        yield from until(k, sent + 2)


def request_code(k: Machine, c: int, address: int, words: int, count: int) -> Wait:
    """Process: read the instructions once for every repetition."""
    for _ in range(count):
        yield from request(k, c, Engine.READ_CODE, address, words, 0)
        yield 1


def average(k: Machine, c: int, i: int) -> Wait:
    """MEANS: one event after the other; instructions, input and output of an event finish before the next."""
    beats = k.kv_heads * k.head_words
    means = k.command[i, Means.MEANS]
    for number in range(means):
        mean = k.command[i, Means.MEAN] + number
        address = k.step_of[k.command[i, Command.STEP], Step.MEAN_KEYS] + k.mean[mean, Mean.CLUSTER] * beats
        yield 2
        if k.mean[mean, Mean.OPENED]:
            yield from put(k, c, Queue.CODE, MEAN_OF_NEW, beats, 0, 0)
        else:
            yield from put(k, c, Queue.CODE, MEAN_OF_OLD, beats, 0, 0)
            yield from put(k, c, Queue.PIECES, beats, 0, 0, 0)
            yield from request(k, c, Engine.READ_VECTOR, address, beats, 0)
        yield 1
        for n in range(k.mean[mean, Mean.TOKENS]):
            token = k.mean_token[k.mean[mean, Mean.TOKEN] + n, 0]
            source = k.command[i, Means.KEYS] + token * k.command[i, Means.STRIDE]
            yield from put(k, c, Queue.CODE, ADD_TOKEN, beats, 0, 0)
            yield from put(k, c, Queue.PIECES, beats, 0, 0, 0)
            yield from request(k, c, Engine.READ_VECTOR, source, beats, 0)
            yield 1
        yield from put(k, c, Queue.CODE, STORE_MEAN, beats, 0, 0)
        yield from request(k, c, Engine.WRITE_VECTOR, address, beats, number + 1 == means)
        for _ in range(beats):
            yield 1
            yield from get(k, c, Queue.OUT)
            yield from write_word(k, c, Engine.WRITE_VECTOR)
        yield 1
    push(k, c, Queue.AVERAGED, 0, 0, 0, 0, 0)
    push(k, c, Queue.AVERAGED, 0, 0, 0, 0, 0)


def fetch_rows(k: Machine, c: int) -> Wait:
    """Process: input rows of every repetition."""
    while True:
        i = yield from receive(k, c, Queue.FETCH)
        yield 1
        if k.command[i, Command.KIND] == Kind.MEANS:
            push(k, c, Queue.JOINED, 0, 0, 0, 0, 0)
            yield from get(k, c, Queue.AVERAGED)
            continue
        for row in range(k.command[i, Vector.ROWS]):
            for _ in range(1 + k.command[i, Vector.A_AGAIN]):
                beats = k.command[i, Vector.A_BEATS]
                yield from fetch_row(
                    k, c, beats if beats else beats_of(k, i, row), k.command[i, Vector.A_WIDE],
                    k.command[i, Vector.A] + row * k.command[i, Vector.A_STRIDE],
                )  # fmt: skip
            if k.command[i, Vector.B_USED]:
                beats = k.command[i, Vector.B_BEATS]
                yield from fetch_row(
                    k, c, beats if beats else beats_of(k, i, row), k.command[i, Vector.B_WIDE],
                    k.command[i, Vector.B] + row * k.command[i, Vector.B_STRIDE],
                )  # fmt: skip
        yield 1


def fetch_row(k: Machine, c: int, beats: int, wide: int, address: int) -> Wait:
    """Read an input row."""
    yield from put(k, c, Queue.PIECES, beats, wide, 0, 0)
    yield from request(k, c, Engine.READ_VECTOR, address, beats << wide, 0)
    yield 1


def feed(k: Machine, c: int) -> Wait:
    """Process: words of the input as beats."""
    while True:
        yield from head(k, c, Queue.PIECES)
        beats = item(k, c, Queue.PIECES, 0)
        wide = item(k, c, Queue.PIECES, 1)
        pop(k, c, Queue.PIECES)
        for _ in range(beats):
            if wide:
                yield from read_word(k, c, Engine.READ_VECTOR)
                yield 1
            yield from next_word(k, c, Engine.READ_VECTOR)
            yield from put(k, c, Queue.BEATS, 0, 0, 0, 0)
            while k.count[c, Queue.BEATS]:
                yield bell(c, Bell.GET + Queue.BEATS)


def compute(k: Machine, c: int) -> Wait:
    """Process: beats in the order and cycles in which the sequencer of the engine issues them."""
    last = -STAGES  # cycle of the last issue; first cycle in which one is held up no more
    hold = -STAGES
    fold = 0
    while True:
        yield from head(k, c, Queue.CODE)
        op = item(k, c, Queue.CODE, 0)
        beats = item(k, c, Queue.CODE, 1)
        pop(k, c, Queue.CODE)
        yield 1
        begun = max(k.now, last + 1, hold)
        if k.op[op, Op.WAITS]:
            begun = max(begun, last + fold + STAGES)
        divide = k.divide_cycles if k.op[op, Op.DIVIDES] else 0
        for _ in range(k.op[op, Op.ROWS]):
            for beat in range(beats):
                final = beat == beats - 1
                phases = 1
                if k.op[op, Op.ROTATES]:
                    phases = 0 if beat & 1 else 4
                for phase in range(phases):
                    streams = k.op[op, Op.STREAMS] and phase != 3
                    leaves = k.op[op, Op.TO_STREAM] and (
                        final if k.op[op, Op.REDUCES] else k.op[op, Op.ROTATES] == 0 or phase & 1
                    )
                    issued = begun
                    if streams or leaves:
                        yield from until(k, begun)
                        if streams:
                            yield from head(k, c, Queue.BEATS)
                            if phase != 1:
                                pop(k, c, Queue.BEATS)
                                remove_word(k, c, Engine.READ_VECTOR, k.now)
                        if leaves:
                            yield from put_late(k, c, Queue.OUT, STAGES)
                        issued = k.now
                    last = issued
                    fold = k.fold_cycles if k.op[op, Op.FOLDS] and final else 0
                    hold = last + 1 + fold + divide
                    begun = hold
        if last > k.now:
            yield from until(k, last)


def drain(k: Machine, c: int) -> Wait:
    """Process: output of every repetition."""
    while True:
        i = yield from receive(k, c, Queue.DRAIN)
        yield 1
        if k.command[i, Command.KIND] == Kind.MEANS:
            yield from get(k, c, Queue.JOINED)
            yield from get(k, c, Queue.JOINED)
            yield from average(k, c, i)
            has_tokens = k.command[i, Command.TOKENS_END] > k.command[i, Command.TOKENS]
            yield from put(k, c, Queue.VECTOR_ENDS, has_tokens, 0, 0, 0)
            yield 1
            continue
        to = k.command[i, Vector.DESTINATION]
        rows = 0 if to == TO_NOTHING else k.command[i, Vector.ROWS]
        for row in range(rows):
            final = row + 1 == rows
            if to == TO_CODES:
                yield from get(k, c, Queue.OUT)
                yield from put(k, c, Queue.CODES, final, 0, 0, 0)
                yield 1
                continue
            width = k.command[i, Vector.OUT_BEATS]
            beats = width
            if width == 0:
                width = (elements_of(k, i, 0) + k.command[i, Vector.PAD] + k.width - 1) // k.width
                beats = beats_of(k, i, row)
            wide = k.command[i, Vector.OUT_WIDE]
            yield from request(
                k, c, Engine.WRITE_VECTOR, k.command[i, Vector.OUT] + row * k.command[i, Vector.OUT_STRIDE],
                width << wide, final,
            )  # fmt: skip
            for beat in range(width):
                yield 1
                if beat < beats:
                    yield from head(k, c, Queue.OUT)
                yield from write_word(k, c, Engine.WRITE_VECTOR)
                if wide:
                    yield 1
                    yield from write_word(k, c, Engine.WRITE_VECTOR)
                if beat < beats:
                    pop(k, c, Queue.OUT)
            yield 1
        yield from put(k, c, Queue.VECTOR_ENDS, to == TO_MEMORY and rows > 0, 0, 0, 0)
        yield 1


def end_vectors(k: Machine, c: int) -> Wait:
    """Process: ends of commands, when their output is stored."""
    stored = 0
    while True:
        memory = yield from take(k, c, Queue.VECTOR_ENDS)
        if memory:
            stored += 1
            yield from reach(k, c, STORED, stored)
        complete(k, c, ExecUnit.VECTOR)
        yield 1
