"""`FastInterpreter`: `golden.core_interpreter.CoreInterpreter` with compiled kernels."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, MutableSequence, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from typing import Any

import numpy as np

from compiler.machine import matrix, operands, vector
from golden import bf16
from golden.core_interpreter import DESTINATIONS, FITS, LOADS, PRODUCTS, CoreInterpreter, _remaining
from golden.dot import ALIGN_BITS
from golden.page_layout import PageLayout
from golden.weight_formats import BF16_BITS
from util import checks

THREAD_WORK = 1 << 20  # multiply-accumulates from which a MULTIPLY command uses several threads
PROGRAMS = 1024  # encoded vector programs that are kept
Run = tuple[np.ndarray, np.ndarray, tuple[int, int, int, int]]


class FastInterpreter(CoreInterpreter):
    """`CoreInterpreter` at the speed of compiled code. All results equal those of `CoreInterpreter` in every bit.

    The kernels work on memories that have the buffer protocol, for example `bytearray`. LOAD, GATHER and VECTOR
    commands on other memories, and commands with addresses outside the memory, take the code of `CoreInterpreter`.

    Parameters
    ----------
    threads : threads of a large MULTIPLY command
    others : as for `CoreInterpreter`. Functions in `programs` must be hashable, and return equal programs for equal
        arguments.

    Attributes
    ----------
    reads, writes : empty; accesses are not recorded
    others : as for `CoreInterpreter`

    Raises
    ------
    ValueError
        As `CoreInterpreter`, with the same state at the time of the error.
    """

    def __init__(
        self,
        memories: Sequence[MutableSequence[int]],
        *,
        inputs: int,
        weight_rows: int,
        activation_rows: int,
        slots: int,
        vector_rows: int,
        head_words: int,
        align_bits: int = 24,
        layout: PageLayout | None = None,
        weight_bits: int = BF16_BITS,
        programs: Mapping[int, Callable[[int, int], Sequence[Any]]],
        threads: int = 2,
    ):
        super().__init__(
            memories, inputs=inputs, weight_rows=weight_rows, activation_rows=activation_rows, slots=slots,
            vector_rows=vector_rows, head_words=head_words, align_bits=align_bits, layout=layout,
            weight_bits=weight_bits, programs=programs,
        )  # fmt: skip
        checks.integer("align_bits", align_bits, *ALIGN_BITS)
        n = inputs
        self.threads = min(checks.integer("threads", threads, 1), n)
        self._sum_codes = np.zeros((slots, n), np.uint32)  # `sums` has views of its rows
        self._started = np.zeros(slots, np.uint8)  # the sums of `sums` that are not None
        self._scales = np.ldexp(1.0, np.arange(2 * bf16.EXPONENT_MAX + 1) - 252 - align_bits)
        self._x = (
            np.zeros((activation_rows, n), np.int16),
            np.zeros((activation_rows, n), np.int32),
            np.zeros(activation_rows, np.uint8),
        )
        self._w = np.zeros((n, n), np.int16), np.zeros((n, n), np.int16), np.zeros(n, np.uint8)
        self._significands = np.zeros(n, np.int16)
        self._tops, self._totals = np.zeros(n, np.int16), np.zeros(n, np.int64)
        self._encode_program = lru_cache(PROGRAMS)(vector.encode_program)
        self._work, self._space = np.zeros(2 * n, np.uint32), np.zeros(0, np.uint32)

    # memory

    def _read(self, unit: str, word_address: int, words: int, side: int = 0) -> bytes:
        size = 2 * self.inputs
        return bytes(self.memories[side][word_address * size : (word_address + words) * size])

    def _write(self, unit: str, word_address: int, data: bytes, side: int = 0) -> None:
        start = 2 * self.inputs * word_address
        self.memories[side][start : start + len(data)] = data

    def _write_bytes(self, unit: str, address: int, data: bytes) -> None:
        self.memories[0][address : address + len(data)] = data

    def _device(self) -> np.ndarray | None:
        """The device memory as uint16, a multiple of 4 bytes; None if no writable buffer gives access to it."""
        memory: Any = self.memories[0]
        try:
            view = memoryview(memory)
        except TypeError:
            return None
        return None if view.readonly else np.frombuffer(view, np.uint16, view.nbytes // 4 * 2)

    def _inside(self, words: np.ndarray, first: int, end: int) -> bool:
        """Whether the words from `first` to `end` - 1 are in the device memory."""
        return first >= 0 and end * self.inputs <= len(words)

    # commands

    def _load(self, f: Any) -> None:
        rows, beats, length = f.rows, f.beats, self._length(f)
        if LOADS[f.limit] == "ROWS":
            rows = _remaining(length, f.block * self.inputs, rows)
        if LOADS[f.limit] == "WORDS":
            beats = _remaining(self._blocks(length), f.block, beats)
        words, form, n = self._device(), self._format(f), self.inputs
        beats = beats // n * n if form else beats
        stored = beats // n * form.tile_words(n) if form else beats  # memory words of a row
        if words is None or not self._inside(words, f.source, f.source + max(rows - 1, 0) * f.stride + stored):
            words = None  # `bytearray` cannot grow while a view of it exists
            super()._load(f)
            return
        memory, source, stride = self.activations if f.activations else self.weights, f.source, f.stride
        if form and rows and beats:
            starts = source + stride * np.arange(rows)
            encoded = np.concatenate([words[n * at : n * (at + stored)] for at in starts])
            words, source, stride = form.decode_tiles(encoded.reshape(-1, n)).reshape(-1), 0, beats
        invalid = operands.load(words, source, stride, rows, beats, memory, f.target, f.step, f.tiled)
        _raise_row(invalid, memory)

    def _gather(self, f: Any) -> None:
        n, words = self.inputs, self._device()
        position = 0 if f.restart else self.gather_position
        step_word = f.step_word + f.word if f.restart else self.step_word
        beats = f.words if 0 < f.words < self.head_words else self.head_words
        pages = np.array(self.pages[f.head], np.int64).reshape(-1, 2)
        ends = np.cumsum(pages[:, 1])
        past = int(ends[-1]) if len(ends) else 0
        start = position + _remaining(past + f.tokens, position, f.skip * n)
        step_word += f.stride * max(0, start - max(past, position))
        count = _remaining(past + f.tokens, start, f.blocks * n)
        tokens = np.arange(start, min(past, start + count))
        page = np.searchsorted(ends, tokens, side="right")
        slots = tokens - (ends - pages[:, 1])[page]
        new = count - len(tokens)
        own = step_word + f.stride * np.arange(new)
        if self.layout is None:
            addresses = np.concatenate([pages[page, 0] + (2 * slots + f.values) * self.head_words + f.word, own])
            ends = addresses + beats
        else:
            addresses = np.concatenate([pages[page, 0], own])
            ends = addresses + np.repeat([self.layout.head_page_bytes // (2 * n), beats], [len(tokens), new])
        if words is None or not self._inside(words, int(addresses.min(initial=0)), int(ends.max(initial=0))):
            super()._gather(f)
            return
        if self.layout is not None:
            rows = [self._decoded(words, pages[page, 0], slots, f)[:, f.word : f.word + beats]]
            rows += [words[first * n : (first + beats) * n].reshape(1, beats, n) for first in own.tolist()]
            words, addresses = np.concatenate(rows).reshape(-1), np.arange(count) * beats
        self.gather_position, self.step_word = start + count, step_word + f.stride * new
        copy = operands.gather_columns if f.values else operands.gather
        _raise_row(copy(words, addresses, beats, self.weights, f.target), self.weights)

    def _decoded(self, words: np.ndarray, pages: np.ndarray, slots: np.ndarray, f: Any) -> np.ndarray:
        """Decoded keys or values of slots of head pages, uint16 (T, words, inputs); `pages` : their first words."""
        layout = self.layout
        assert layout is not None
        offsets = np.array([layout.offset(slot, f.values) for slot in range(layout.page_tokens)])
        first = pages * (2 * self.inputs) + offsets[slots]
        stored = words.view(np.uint8)[first[:, None] + np.arange(layout.key_bytes)]
        return layout.decode(stored).reshape(len(slots), self.head_words, self.inputs)

    def _multiply(self, f: Any) -> None:
        n, vary, total = self.inputs, PRODUCTS[f.limit], self._blocks(self._length(f))
        m_blocks, k_blocks, first, last = f.m_blocks, f.k_blocks, f.first, f.last
        if vary == "RESULTS":
            m_blocks = _remaining(total, f.block, m_blocks)
        if vary == "INPUTS":
            k_blocks = _remaining(total, f.block, k_blocks)
            first, last = f.block == 0, f.block + f.k_blocks >= total
        if not k_blocks:
            return
        p = np.array(
            [f.weights, f.m_stride, f.k_stride, m_blocks, k_blocks, f.activations, f.x_stride, f.vectors, first, last,
             f.spread, len(self.sums)], np.int64,
        )  # fmt: skip
        before = self._started.copy()
        invalid, number, count = matrix.check(p, len(self.weights) // n, len(self.activations), self._started)
        complete, part = divmod(count, max(f.vectors * k_blocks, 1))  # result blocks
        written = complete * f.vectors + max(part - (k_blocks - 1) * f.vectors, 0) if last else 0
        results = np.empty((written, n), np.uint32)
        self._compute(p, count, results)
        self.products += count + (invalid == matrix.SUM)
        for slot in np.flatnonzero(self._started != before).tolist():
            self.sums[slot] = self._sum_codes[slot] if self._started[slot] else None
        self._write_results(f, results)
        if invalid == matrix.TILE:
            raise ValueError(f"tile must be below {len(self.weights) // n}, got {number}")
        if invalid == matrix.ROW:
            raise ValueError(f"row must be below {len(self.activations)}, got {number}")
        if invalid == matrix.SUM:
            raise ValueError(f"sum {number} must be started before it is continued")

    def _compute(self, p: np.ndarray, count: int, results: np.ndarray) -> None:
        """The first `count` products of a MULTIPLY; large ones in several threads, each for some rows of the tiles."""
        if not count:
            return
        n = self.inputs
        threads = self.threads if count * n * n >= THREAD_WORK else 1
        matrix.decode_activations(p, count, self.activations, *self._x, self._significands, self.align_bits - 16)

        def products(thread: int) -> None:
            matrix.products(
                p, count, thread * n // threads, (thread + 1) * n // threads, self.align_bits, self._scales,
                self.weights, self.activations, *self._x, *self._w, self._tops, self._totals, self._sum_codes, results,
            )  # fmt: skip

        jobs = [_pool(threads - 1, os.getpid()).submit(products, thread) for thread in range(1, threads)]
        products(0)
        for job in jobs:
            job.result()

    def _write_results(self, f: Any, results: np.ndarray) -> None:
        """Write the completed sums of a MULTIPLY to memory, in order."""
        words, size = self._device(), 1 + f.wide
        if not f.wide:
            matrix.to_bf16(results)
        if words is not None and len(results):
            blocks = -(-len(results) // f.vectors)
            if self._inside(words, f.out, f.out + (f.vectors - 1) * f.stride + blocks * size):
                matrix.write(words, results, f.vectors, f.out, f.stride, f.wide)
                return
        words = None  # `bytearray` cannot grow while a view of it exists
        for number, codes in enumerate(results):
            block, t = divmod(number, f.vectors)
            data = codes.astype("<u4") if f.wide else (codes >> 16).astype("<u2")
            self._write("matrix", f.out + t * f.stride + block * size, data.tobytes())

    def _vector(self, f: Any) -> None:
        n, engine, words = self.inputs, self.engine, self._device()
        length = self._length(f)
        padded = self._blocks(length + f.pad) * n
        fits = padded <= engine.rows * n
        rows = f.repeat if length and {"ANY": True, "FITS": fits, "EXCEEDS": not fits}[FITS[f.fit]] else 0
        runs = None if words is None else self._runs(f, rows, length, padded, len(words))
        if words is None or runs is None:
            words = None  # `bytearray` cannot grow while a view of it exists
            super()._vector(f)
            return
        if DESTINATIONS[f.destination] == "CODES":
            self.piece, self.new_tokens = self.new_tokens[: f.repeat], self.new_tokens[f.repeat :]
        for p, program, sizes in runs:
            space, ends = self._workspace(sum(sizes)), np.cumsum(sizes)
            stream, a, b, out = (space[end - size : end] for end, size in zip(ends.tolist(), sizes, strict=True))
            invalid, number, available = vector.run(
                p, program, stream, a, b, self._work, out, engine.memory, engine.scalars, *vector.tables(), words,
                words.view(np.uint32),
            )  # fmt: skip
            if invalid == vector.SHORT:
                raise ValueError(f"stream must have the {number} beats that an instruction reads, got {available}")
            if invalid == vector.PACKED:
                raise ValueError(f"elements of PACK must be at most 32, got {number}")
            if invalid == vector.LONG:
                raise ValueError(f"stream must have the {number} beats that the program reads, got {available}")

    def _runs(self, f: Any, rows: int, length: int, padded: int, size: int) -> list[Run] | None:
        """Repetitions of a VECTOR command of equal length: their array `p`, program, and sizes of the buffers.

        None if an address is not in the device memory of `size` elements, or a row is longer than its padded length.
        """
        n, runs, row = self.inputs, list[Run](), 0
        to_memory, by_length = DESTINATIONS[f.destination] == "MEMORY", not f.out_beats
        while row < rows:
            elements = length + (row // f.group if f.group else 0)
            count = min(rows - row, f.group) if f.group else rows
            beats = self._blocks(elements)
            program = self._encode_program(self.programs[f.code], beats, elements % n)
            largest, results = (number * n for number in vector.beats_of(program))
            a_beats, a_times = f.a_beats or beats, 1 + f.a_again
            b_beats = (f.b_beats or beats) if f.b_used else 0
            starts = [word + row * stride for word, stride in
                      ((f.a, f.a_stride), (f.b, f.b_stride), (f.out, f.out_stride))]  # fmt: skip
            padding = padded - elements if by_length else 0
            size_out = min(elements, results) if by_length else results
            ends = [
                (starts[0] + (count - 1) * f.a_stride + a_beats * (1 + f.a_wide)) * n,
                (starts[1] + (count - 1) * f.b_stride + b_beats * (1 + f.b_wide)) * n if b_beats else 0,
                (starts[2] + (count - 1) * f.out_stride) * n + (size_out + padding) * (1 + f.out_wide)
                if to_memory else 0,
            ]  # fmt: skip
            if max(ends) > size or (to_memory and padding < 0):
                return None
            p = np.array(
                [count, starts[0], f.a_stride, a_beats, f.a_wide, a_times, starts[1], f.b_stride, b_beats, f.b_wide,
                 to_memory, starts[2], f.out_stride, size_out, padding, f.out_wide], np.int64,
            )  # fmt: skip
            runs.append((p, program, ((a_times * a_beats + b_beats) * n, largest, largest, results)))
            row += count
        return runs

    def _workspace(self, size: int) -> np.ndarray:
        """Buffer of at least `size` FP32 codes."""
        if len(self._space) < size:
            self._space = np.empty(size, np.uint32)
        return self._space


@cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Threads that all interpreters of a process share; a forked process has no threads of its parent."""
    return ThreadPoolExecutor(threads)


def _raise_row(number: int, memory: np.ndarray) -> None:
    if number != operands.ALL_VALID:
        raise ValueError(f"row must be below {len(memory)}, got {number}")
