"""Compiled kernels of LOAD and GATHER: words of the device memory to rows of an operand memory."""

from __future__ import annotations

from golden.core_interpreter import NUMBERS
from util.compiled import unowned

ALL_VALID = -1  # result of the kernels; any other result is the number of the invalid row


@unowned
def _copy(memory, row, words, first):
    """Copy one word to row `row` modulo `NUMBERS`; returns whether the row exists."""
    if row % NUMBERS >= len(memory):
        return False
    target = memory[row % NUMBERS]
    source = words[first : first + len(target)]
    for k in range(len(target)):
        target[k] = source[k]
    return True


@unowned
def load(words, source, stride, rows, beats, memory, to, step, tiled):
    """Copy rows of words to an operand memory: `step` rows apart, or as tiles, tiles of one row first.

    words   uint16, device memory
    source  first word; `stride`: words from one row to the next
    memory  uint16 (rows, inputs), changed; `to`: its first row

    Returns the number of an invalid row, before which all rows are copied, or `ALL_VALID`.
    """
    n = memory.shape[1]
    for row in range(rows):
        for beat in range(beats):
            at = to + row // n * n * beats + n * beat + row % n if tiled else to + row * step + beat
            if not _copy(memory, at, words, (source + row * stride + beat) * n):
                return at % NUMBERS
    return ALL_VALID


@unowned
def gather(words, addresses, beats, memory, to):
    """Copy vectors to the weights as tiles, one vector per tile row.

    addresses  int64, first word of each vector of `beats` words; others as for `load`
    """
    n = memory.shape[1]
    for token in range(len(addresses)):
        for beat in range(beats):
            at = to + token // n * n * beats + n * beat + token % n
            if not _copy(memory, at, words, (addresses[token] + beat) * n):
                return at % NUMBERS
    return ALL_VALID


@unowned
def gather_columns(words, addresses, beats, memory, to):
    """Copy vectors to the weights as tile columns; missing vectors of the last tiles are zero. As `gather`."""
    n = memory.shape[1]
    for first in range(0, len(addresses), n):
        count = min(n, len(addresses) - first)
        for element in range(beats * n):
            at = (to + first * beats + element) % NUMBERS
            if at >= len(memory):
                return at
            target = memory[at]
            for column in range(n):
                target[column] = words[addresses[first + column] * n + element] if column < count else 0
    return ALL_VALID
