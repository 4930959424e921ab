"""Vector engine (VPE) of the LXE: programs of micro-instructions on rows of FP32 numbers, bit exact.

A program is a sequence of instructions: objects with the attributes that `VectorEngine` reads. Their operations are
enumeration members, distinguished by `name`. Every element of an instruction's `rows * beats * lanes` elements becomes

    v = pre(a, b)      p = v * times      f = function(p)      and over its row      post(f)

in FP32. Each step is rounded to nearest even; subnormals are zero. A BF16 number is an FP32 bit pattern whose lower
half is 0.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from golden import bf16, exp
from golden.bf16 import BF16, FP32
from golden.elementary import reciprocal, rsqrt, silu
from util import checks

ONE = np.uint32(0x3F800000)
MINUS_ZERO = np.uint32(0x80000000)  # neutral element of addition
MINUS_INFINITY = np.uint32(0xFF800000)
SCALARS = 8


def widen(code: np.ndarray) -> np.ndarray:
    """BF16 bit patterns as FP32 bit patterns."""
    return code.astype(np.uint32) << np.uint32(16)


def narrow(code: np.ndarray) -> np.ndarray:
    """FP32 bit patterns rounded to BF16 bit patterns."""
    return bf16.convert(code, FP32, BF16)


def maximum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """FP32 bit patterns of the larger numbers. NaN if one is NaN; subnormals are zero; -0 < +0."""
    x, y = bf16.decode(a, FP32), bf16.decode(b, FP32)
    a_wins = (x > y) | ((x == y) & ~np.signbit(x))
    return np.where(np.isnan(x) | np.isnan(y), FP32.nan, bf16.encode(np.where(a_wins, x, y), FP32)).astype(np.uint32)


def fold(combine: Any, lanes: np.ndarray) -> np.ndarray:
    """Combine the lanes of a row to one: lane i with lane i + n/2, for n = lanes, lanes / 2, ... 2."""
    while len(lanes) > 1:
        lanes = combine(lanes[: len(lanes) // 2], lanes[len(lanes) // 2 :])
    return lanes[0]


class VectorEngine:
    """State of the vector engine, and execution of programs.

    Parameters
    ----------
    lanes : elements of a beat, a power of two
    rows : rows of the vector memory

    Attributes
    ----------
    memory : FP32 bit patterns, uint32 (rows, lanes)
    scalars : FP32 bit patterns, uint32 (8,)
    """

    def __init__(self, lanes: int, rows: int):
        self.lanes, self.rows = checks.integer("lanes", lanes, 1), checks.integer("rows", rows, 1)
        if lanes & (lanes - 1):
            raise ValueError(f"lanes must be a power of two, got {lanes}")
        self.memory = np.zeros((rows, lanes), np.uint32)
        self.scalars = np.zeros(SCALARS, np.uint32)

    def run(self, program: Sequence[Any], stream: np.ndarray) -> np.ndarray:
        """Execute `program` on the input beats `stream`, FP32 bit patterns uint32 (n, lanes). Returns the output beats.

        ValueError unless the program reads exactly all beats.
        """
        beats = bf16.codes("stream", np.asarray(stream), FP32).reshape(-1, self.lanes)
        out: list[np.ndarray] = []
        n_used = 0
        for op in program:
            n_used += self._execute(op, beats[n_used:], out)
        if n_used != len(beats):
            raise ValueError(f"stream must have the {n_used} beats that the program reads, got {len(beats)}")
        return np.concatenate(out) if out else np.zeros((0, self.lanes), np.uint32)

    def _execute(self, op: Any, stream: np.ndarray, out: list[np.ndarray]) -> int:
        """Execute one instruction and return the number of input beats that it read."""
        count = op.rows * op.beats
        a, b = self._operand(op, "a", stream, count), self._operand(op, "b", stream, count)
        c = np.asarray(op.immediate if op.c_immediate else self.scalars[op.c], np.uint32)
        if op.post.name == "ROTATE":
            result = self._rotate(a, b)
        else:
            result = _function(op.function.name, _times(op.times.name, _pre(op.pre.name, a, b), b, c), c)
        scalars = self._reduce(op, result.reshape(op.rows, op.beats, self.lanes))
        if op.round:
            result = widen(narrow(result))
        if op.to_memory:
            self.memory[(op.to_row + np.arange(count)) % self.rows] = result
        if scalars is not None:
            if op.round:
                scalars = widen(narrow(scalars))
            self.scalars[op.to_scalar] = scalars[-1]
            result = np.zeros((op.rows, self.lanes), np.uint32)
            result[:, 0] = scalars
        if op.to_stream:
            out.append(result)
        return count if op.a.name == "STREAM" else 0

    def _operand(self, op: Any, name: str, stream: np.ndarray, count: int) -> np.ndarray:
        source, start = getattr(op, name).name, getattr(op, f"{name}_row")
        if source == "STREAM":
            if len(stream) < count:
                raise ValueError(f"stream must have the {count} beats that an instruction reads, got {len(stream)}")
            return stream[:count]
        if source == "MEMORY":
            beat = np.arange(count) if name == "a" else np.arange(count) % op.beats
            return self.memory[(start + beat) % self.rows]
        value = self.scalars[start] if source == "SCALAR" else np.uint32(op.immediate)
        return np.full((count, self.lanes), value)

    def _rotate(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Rotate pairs of beats (x, y) by (cos, sin); every product and every sum is rounded."""
        x, y, cos, sin = a[0::2], a[1::2], b[0::2], b[1::2]
        result = np.empty_like(a)
        result[0::2] = bf16.subtract(bf16.multiply(x, cos, FP32), bf16.multiply(y, sin, FP32), FP32)
        result[1::2] = bf16.add(bf16.multiply(y, cos, FP32), bf16.multiply(x, sin, FP32), FP32)
        return result

    def _reduce(self, op: Any, values: np.ndarray) -> np.ndarray | None:
        """Reduction of `values` (rows, beats, lanes): FP32 bit patterns (rows,), or None if there is none."""
        post, tail = op.post.name, op.tail or self.lanes
        if post == "LAST":
            return values[:, -1, 0]
        if post == "PACK":
            bits = (bf16.decode(values, FP32) > 0).reshape(op.rows, -1)[:, : (op.beats - 1) * self.lanes + tail]
            if bits.shape[1] > 32:
                raise ValueError(f"elements of PACK must be at most 32, got {bits.shape[1]}")
            return (bits << np.arange(bits.shape[1], dtype=np.uint32)).sum(axis=1, dtype=np.uint32)
        if post in ("SUM", "MAX"):
            neutral = MINUS_ZERO if post == "SUM" else MINUS_INFINITY

            def combine(x: np.ndarray, y: np.ndarray) -> np.ndarray:
                return bf16.add(x, y, FP32) if post == "SUM" else maximum(x, y)

            values = values.copy()
            values[:, -1, tail:] = neutral
            totals = []
            for row in values:
                lanes = row[0]
                for beat in row[1:]:
                    lanes = combine(lanes, beat)
                totals.append(fold(combine, lanes))
            return np.array(totals, np.uint32)
        return None


def _pre(name: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if name == "ADD":
        return bf16.add(a, b, FP32)
    if name == "SUB":
        return bf16.subtract(a, b, FP32)
    if name == "RSUB":
        return bf16.subtract(b, a, FP32)
    if name == "MAX":
        return maximum(a, b)
    if name == "GREATER":
        return np.where(bf16.decode(a, FP32) > bf16.decode(b, FP32), ONE, np.uint32(0))
    return a


def _times(name: str, v: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    if name == "ONE":
        return v
    return bf16.multiply(v, {"B": b, "C": c, "SELF": v}[name], FP32)


def _function(name: str, p: np.ndarray, c: np.ndarray) -> np.ndarray:
    if name == "NONE":
        return p
    if name == "EXP":
        return widen(exp.power(p))
    if name == "DIVIDE":
        return widen(bf16.divide(p, c))
    return widen({"RECIPROCAL": reciprocal, "RSQRT": rsqrt, "SILU": silu}[name](narrow(p)))
