"""Streams and programs for the vector engine, and its Verilog as a function."""

import numpy as np

from golden import bf16
from golden.bf16 import BF16, FP32
from golden.vpe import widen
from hw.lxe.microcode import Instruction
from sim.bench.run import simulate

SPECIAL = np.array(
    [
        *(0x00000000, 0x80000000, 0x00000001, 0x807FFFFF, 0x00800000, 0x80800000, 0x3F800000, 0xBF800000),
        *(0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFA00001, 0x3F808000, 0x3F818000),
        *(0x7F7F8000, 0x00FFFFFF, 0x3EFFFFFF, 0x40000000, 0x42B17218, 0xC2B17218, 0x3F80FFFF, 0x4B800001),
    ],
    np.uint32,
)


def numbers(rng, n, scale=1.0):
    """FP32 codes of normally distributed BF16 numbers."""
    return widen(bf16.encode(rng.standard_normal(n) * scale, BF16))


def edge_beats(rng, count, lanes):
    """Beats in which every second number is special, the others any FP32 codes."""
    any_code = rng.integers(0, 1 << 32, (count, lanes), dtype=np.uint32)
    return np.where(rng.random((count, lanes)) < 0.5, rng.choice(SPECIAL, (count, lanes)), any_code)


def beats(vectors, lanes, rng=None):
    """FP32 codes (m, n) as beats; the last beat of a vector is filled with any codes."""
    vectors = np.atleast_2d(vectors)
    missing = -vectors.shape[1] % lanes
    rng = rng or np.random.default_rng(0)
    fill = rng.choice(SPECIAL, (len(vectors), missing))
    return np.concatenate([vectors, fill], axis=1).astype(np.uint32).reshape(-1, lanes)


def reals(beat_rows, n):
    """The inverse of `beats`, as float64 (m, n)."""
    lanes = beat_rows.shape[1]
    return bf16.decode(beat_rows.astype(np.uint32), FP32).reshape(-1, -(-n // lanes) * lanes)[:, :n]


def rope_stream(vectors, angle, lanes):
    """Cosines and sines of angles (d / 2,), then vectors (m, d): all as pairs of beats."""
    turn = np.stack([bf16.encode(np.cos(angle), FP32), bf16.encode(np.sin(angle), FP32)])
    pairs = np.concatenate([turn[None], vectors.reshape(len(vectors), 2, -1)])
    return pairs.reshape(len(pairs), 2, -1, lanes).swapaxes(1, 2).reshape(-1, lanes)


def from_pairs(beat_rows, d, lanes):
    """Vectors that were streamed as pairs of beats, float64 (m, d)."""
    value = bf16.decode(beat_rows.astype(np.uint32), FP32)
    return value.reshape(-1, d // 2 // lanes, 2, lanes).swapaxes(1, 2).reshape(-1, d)


def run(unit, program, stream, **options):
    """The Verilog's record for a program and its input beats."""
    fields = [op.fields() for op in program]
    code = {name: np.array([f[name] for f in fields]) for name in Instruction().fields()}
    results = sum(op.results for op in program)
    return simulate(unit, "vpe", {"code": code, "i": stream}, {"o": results}, **options)


def close_pairs(rng, count, lanes):
    """Pairs of FP32 codes, a beat each, that are hard to add and to compare: (count, 2, lanes).

    Exponents up to 28 apart, either way and either sign; fractions equal above some bit, or any. Some special ones: NaN
    with any one bit, zeros, infinities.
    """
    shape = count, lanes
    fraction, exponent = rng.integers(0, 1 << 23, shape), rng.integers(60, 190, shape)
    flip = rng.integers(0, 1 << rng.integers(0, 24, shape))
    apart = np.where(rng.random(shape) < 0.5, 0, rng.integers(-28, 29, shape))
    sign = rng.integers(0, 2, (2, *shape)) << 31
    pairs = np.stack([sign[0] | exponent << 23 | fraction, sign[1] | exponent + apart << 23 | fraction ^ flip], axis=1)
    special = np.concatenate([SPECIAL, [0x7F800000 | 1 << k for k in range(23)], [0, 0x80000000] * 20])
    return np.where(rng.random(pairs.shape) < 0.15, rng.choice(special, pairs.shape), pairs).astype(np.uint32)


def tied_factors(rng, count, lanes):
    """FP32 codes, first and second factors, (2, count, lanes): odd numbers whose product has about 25 bits.

    With exactly 25 it lies half-way between two FP32 numbers.
    """
    shape = count, lanes
    bits = rng.integers(2, 24, shape)
    bits = np.stack([bits, np.minimum(rng.integers(25, 27, shape) - bits, 24)])
    odd = 1 << bits - 1 | rng.integers(0, 1 << bits - 1) | 1
    sign, exponent = rng.integers(0, 2, bits.shape) << 31, rng.integers(100, 150, bits.shape) << 23
    return (sign | exponent | (odd << 24 - bits & 0x7FFFFF)).astype(np.uint32)
