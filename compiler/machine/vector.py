"""Compiled kernel of the vector engine: VECTOR commands as `golden.vpe` executes them, all repetitions in one call.

An instruction passes its elements through one loop per step (pre, times, function, reduction, rounding). Each loop is
short enough that LLVM vectorises it. The loops hold FP32 codes, uint32, in the two buffers of the operands a and b.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from compiler.machine.arithmetic import (
    MINUS_INFINITY,
    MINUS_ZERO,
    NAN,
    add,
    divide_bf16,
    greater,
    is_nan,
    maximum,
    multiply,
    real,
    round_bf16,
    subtract,
)  # fmt: skip
from golden import elementary, exp
from util.compiled import unowned

PRE = ("A", "ADD", "SUB", "RSUB", "MAX", "GREATER")
TIMES = ("ONE", "B", "C", "SELF")
FUNCTIONS = ("NONE", "EXP", "DIVIDE", "RECIPROCAL", "RSQRT", "SILU")  # the last three by table
POSTS = ("NONE", "ROTATE", "LAST", "PACK", "SUM", "MAX")  # from LAST on reductions
SOURCES = ("STREAM", "MEMORY", "SCALAR", "IMMEDIATE")
A, ADD, SUB, RSUB, PRE_MAX, GREATER = range(6)
TIMES_ONE, TIMES_B, TIMES_C, TIMES_SELF = range(4)
NO_FUNCTION, EXP, DIVIDE, RECIPROCAL = range(4)
NO_POST, ROTATE, POST_LAST, PACK, POST_SUM, POST_MAX = range(6)
STREAM, MEMORY, SCALAR, IMMEDIATE = range(4)
NUMBERS_OF = {"pre": PRE, "times": TIMES, "function": FUNCTIONS, "post": POSTS, "a": SOURCES, "b": SOURCES}
FIELDS = (
    "pre", "times", "function", "post", "a", "b", "a_row", "b_row", "to_row", "c", "c_immediate", "to_scalar",
    "to_memory", "to_stream", "round", "beats", "rows", "tail", "immediate",
)  # fmt: skip
(
    F_PRE, F_TIMES, F_FUNCTION, F_POST, F_A, F_B, F_A_ROW, F_B_ROW, F_TO_ROW, F_C, F_C_IMMEDIATE, F_TO_SCALAR,
    F_TO_MEMORY, F_TO_STREAM, F_ROUND, F_BEATS, F_ROWS, F_TAIL, F_IMMEDIATE,
) = range(len(FIELDS))  # fmt: skip
PACK_BITS = 32
# elements of the int64 array of a command: repetitions; words and beats of the inputs; elements and words of the output
(
    REPEAT, A_WORD, A_STRIDE, A_BEATS, A_WIDE, A_TIMES, B_WORD, B_STRIDE, B_BEATS, B_WIDE, TO_MEMORY, OUT, OUT_STRIDE,
    OUT_ELEMENTS, OUT_PADDED, OUT_WIDE,
) = range(16)  # fmt: skip
ALL_DONE, SHORT, LONG, PACKED = range(4)  # result of `run`


def encode_program(build: Callable[[int, int], Sequence[Any]], beats: int, tail: int) -> np.ndarray:
    """A vector program for rows of `beats` beats as int64 array (instructions, fields)."""
    rows = [
        [
            NUMBERS_OF[name].index(getattr(op, name).name) if name in NUMBERS_OF else int(getattr(op, name))
            for name in FIELDS
        ]
        for op in build(beats, tail)
    ]
    return np.array(rows, np.int64).reshape(-1, len(FIELDS))


def beats_of(program: np.ndarray) -> tuple[int, int]:
    """Beats of the largest instruction, and beats of the output stream."""
    counts = program[:, F_ROWS] * program[:, F_BEATS]
    results = np.where(program[:, F_POST] >= POST_LAST, program[:, F_ROWS], counts)
    return int(counts.max(initial=0)), int(results[program[:, F_TO_STREAM] != 0].sum())


@cache
def tables() -> tuple[np.ndarray, np.ndarray]:
    """Functions of BF16 codes, uint16 (3, 65536), and BF16 codes of 2 ** (-steps / 256), uint16."""
    codes = np.arange(1 << 16).astype(np.uint16)
    functions = np.stack([getattr(elementary, name.lower())(codes) for name in FUNCTIONS[RECIPROCAL:]])
    steps = np.arange(exp.FARTHEST + 1).astype(np.float32).view(np.uint32)
    return functions, exp.power(steps)


@unowned
def _read(source, start, period, values, memory, scalars, immediate):
    """Fill `values` with the operand of an instruction that does not come from the stream.

    Rows of memory continue after `period` elements at the first row again.
    """
    if source == MEMORY:
        size = memory.size
        flat, lanes = memory.reshape(size), memory.shape[1]
        for first in range(0, len(values), period):
            part = values[first : first + period]
            at = start * lanes % size
            done = 0
            while done < len(part):
                count = min(len(part) - done, size - at)
                target, origin = part[done : done + count], flat[at : at + count]
                for k in range(count):
                    target[k] = origin[k]
                done += count
                at = 0
    else:
        value = scalars[start] if source == SCALAR else np.uint32(immediate)
        for k in range(len(values)):
            values[k] = value


@unowned
def _apply_pre(step, a, b):
    """a = pre(a, b)."""
    if step == ADD:
        for k in range(len(a)):
            a[k] = add(a[k], b[k])
    elif step == SUB:
        for k in range(len(a)):
            a[k] = subtract(a[k], b[k])
    elif step == RSUB:
        for k in range(len(a)):
            a[k] = subtract(b[k], a[k])
    elif step == PRE_MAX:
        for k in range(len(a)):
            a[k] = maximum(a[k], b[k])
    elif step == GREATER:
        for k in range(len(a)):
            a[k] = greater(a[k], b[k])


@unowned
def _apply_times(step, a, b, c):
    """a = a * b, a * c or a * a."""
    if step == TIMES_B:
        for k in range(len(a)):
            a[k] = multiply(a[k], b[k])
    elif step == TIMES_C:
        for k in range(len(a)):
            a[k] = multiply(a[k], c)
    elif step == TIMES_SELF:
        for k in range(len(a)):
            a[k] = multiply(a[k], a[k])


@unowned
def _apply_function(step, a, c, functions, powers):
    """a = function(a)."""
    if step == EXP:
        farthest = np.float32(len(powers) - 1)
        for k in range(len(a)):
            value = real(a[k])
            distance = value if value > 0 else np.float32(0)
            power = np.uint32(powers[np.uint32(distance if distance < farthest else farthest)]) << 16
            a[k] = NAN if is_nan(a[k]) else power
    elif step == DIVIDE:
        for k in range(len(a)):
            a[k] = divide_bf16(a[k], c)
    elif step >= RECIPROCAL:
        table = functions[step - RECIPROCAL]
        for k in range(len(a)):
            a[k] = np.uint32(table[np.uint32(round_bf16(a[k]) >> 16)]) << 16


@unowned
def _rotate(a, b, lanes):
    """Rotate pairs of beats (x, y) of `a` by (cos, sin) of `b`."""
    for first in range(0, len(a), 2 * lanes):
        x, y = a[first : first + lanes], a[first + lanes : first + 2 * lanes]
        cos, sin = b[first : first + lanes], b[first + lanes : first + 2 * lanes]
        for k in range(lanes):
            old_x, old_y = x[k], y[k]
            x[k] = subtract(multiply(old_x, cos[k]), multiply(old_y, sin[k]))
            y[k] = add(multiply(old_y, cos[k]), multiply(old_x, sin[k]))


@unowned
def _combine(post, x, y):
    """x = x + y, or their maximum."""
    if post == POST_SUM:
        for k in range(len(x)):
            x[k] = add(x[k], y[k])
    else:
        for k in range(len(x)):
            x[k] = maximum(x[k], y[k])


@unowned
def _reduce(post, row, lanes, tail, work):
    """Reduction of the beats of a row to an FP32 code; `work` has a beat. `row` is not changed."""
    if post == POST_LAST:
        return row[len(row) - lanes]
    if post == PACK:
        bits = np.uint32(0)
        for k in range(len(row) - lanes + tail):
            bits |= np.uint32(real(row[k]) > 0) << np.uint32(k)
        return bits
    neutral, totals, beats = MINUS_ZERO if post == POST_SUM else MINUS_INFINITY, work[:lanes], len(row) // lanes
    for beat in range(beats):
        new = row[beat * lanes : (beat + 1) * lanes]
        if beat == beats - 1 and tail < lanes:
            masked = work[lanes : 2 * lanes]
            for k in range(lanes):
                masked[k] = new[k] if k < tail else neutral
            new = masked
        if beat:
            _combine(post, totals, new)
        else:
            for k in range(lanes):
                totals[k] = new[k]
    half = lanes // 2
    while half:
        _combine(post, totals[:half], totals[half : 2 * half])
        half //= 2
    return totals[0]


@unowned
def _tail(op, lanes):
    """Elements of the last beat that take part in reductions."""
    return op[F_TAIL] if 0 < op[F_TAIL] < lanes else lanes


@unowned
def _execute(op, stream, a_buffer, b_buffer, work, memory, scalars, out, functions, powers):
    """Execute one instruction; returns the number of results."""
    lanes, post = memory.shape[1], op[F_POST]
    period = op[F_BEATS] * lanes
    count = op[F_ROWS] * period
    a, b, immediate = a_buffer[:count], b_buffer[:count], op[F_IMMEDIATE]
    if op[F_A] == STREAM:
        for k in range(count):
            a[k] = stream[k]
    else:
        _read(op[F_A], op[F_A_ROW], max(count, 1), a, memory, scalars, immediate)
    if op[F_PRE] != A or op[F_TIMES] == TIMES_B or post == ROTATE:
        _read(op[F_B], op[F_B_ROW], max(period, 1), b, memory, scalars, immediate)
    c = np.uint32(immediate) if op[F_C_IMMEDIATE] else scalars[op[F_C]]
    if post == ROTATE:
        _rotate(a, b, lanes)
    else:
        _apply_pre(op[F_PRE], a, b)
        _apply_times(op[F_TIMES], a, b, c)
        _apply_function(op[F_FUNCTION], a, c, functions, powers)
    reduces, results = post >= POST_LAST, 0
    if reduces:
        tail = _tail(op, lanes)
        for r in range(op[F_ROWS]):
            value = _reduce(post, a[r * period : (r + 1) * period], lanes, tail, work)
            if op[F_ROUND]:
                value = np.uint32(round_bf16(value))
            scalars[op[F_TO_SCALAR]] = value
            if op[F_TO_STREAM]:
                beat = out[results : results + lanes]
                for k in range(lanes):
                    beat[k] = 0
                beat[0] = value
                results += lanes
    if op[F_ROUND]:
        for k in range(count):
            a[k] = round_bf16(a[k])
    if op[F_TO_MEMORY]:
        size, at, done = memory.size, op[F_TO_ROW] * lanes % memory.size, 0
        flat = memory.reshape(size)
        while done < count:
            part = min(count - done, size - at)
            target, origin = flat[at : at + part], a[done : done + part]
            for k in range(part):
                target[k] = origin[k]
            done += part
            at = 0
    if op[F_TO_STREAM] and not reduces:
        for k in range(count):
            out[k] = a[k]
        results = count
    return results


@unowned
def _widen(values, at, word, count, wide, narrow_words, wide_words):
    """Copy `count` elements from the memory word of number `word` on to `values[at:]` as FP32 codes."""
    target = values[at : at + count]
    if wide:
        origin = wide_words[word // 2 : word // 2 + count]
        for k in range(count):
            target[k] = origin[k]
    else:
        source = narrow_words[word : word + count]
        for k in range(count):
            target[k] = np.uint32(source[k]) << 16


@unowned
def run(
    p, program, stream, a_buffer, b_buffer, work, out, memory, scalars, functions, powers, narrow_words, wide_words
):  # fmt: skip
    """Execute all repetitions of a VECTOR command whose rows have the same length.

    p              int64 array of the command, see `REPEAT` to `OUT_WIDE`
    program        int64 (instructions, fields), see `encode_program`
    stream, a_buffer, b_buffer, work, out  uint32 buffers: input, operands, two beats, results; changed
    memory, scalars                        uint32 (rows, lanes) and (8,), state of the vector engine; changed
    functions, powers                      `tables()`
    narrow_words, wide_words               device memory as uint16 and uint32; changed

    Returns (what is invalid, two numbers of the message); the state is that before the invalid instruction.
    """
    lanes = memory.shape[1]
    a_size, b_size = p[A_BEATS] * lanes, p[B_BEATS] * lanes
    beats = p[A_TIMES] * p[A_BEATS] + p[B_BEATS]
    for row in range(p[REPEAT]):
        first = (p[A_WORD] + row * p[A_STRIDE]) * lanes
        for n in range(p[A_TIMES]):
            _widen(stream, n * a_size, first, a_size, p[A_WIDE], narrow_words, wide_words)
        first = (p[B_WORD] + row * p[B_STRIDE]) * lanes
        _widen(stream, p[A_TIMES] * a_size, first, b_size, p[B_WIDE], narrow_words, wide_words)
        used, results = 0, 0
        for n in range(program.shape[0]):
            op = program[n]
            count = op[F_ROWS] * op[F_BEATS]
            if op[F_A] == STREAM and beats - used < count:
                return SHORT, count, beats - used
            bits = (op[F_BEATS] - 1) * lanes + _tail(op, lanes)
            if op[F_POST] == PACK and bits > PACK_BITS:
                return PACKED, bits, 0
            results += _execute(
                op, stream[used * lanes :], a_buffer, b_buffer, work, memory, scalars, out[results:], functions, powers
            )
            if op[F_A] == STREAM:
                used += count
        if used != beats:
            return LONG, used, beats
        if not p[TO_MEMORY]:
            continue
        first, size = (p[OUT] + row * p[OUT_STRIDE]) * lanes, min(p[OUT_ELEMENTS], results)
        if p[OUT_WIDE]:
            wide_target = wide_words[first // 2 : first // 2 + p[OUT_PADDED] + size]
            for k in range(len(wide_target)):
                wide_target[k] = out[k] if k < size else 0
        else:
            narrow_target = narrow_words[first : first + p[OUT_PADDED] + size]
            for k in range(len(narrow_target)):
                narrow_target[k] = np.uint16(out[k] >> 16) if k < size else 0
    return ALL_DONE, 0, 0
