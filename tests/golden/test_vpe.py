"""Programs of the vector engine on its golden model, compared with formulas in float64."""

import numpy as np
import pytest

from compiler import vector_programs as programs
from golden import bf16, rope
from golden.bf16 import FP32
from golden.hashing import hash_codes
from golden.mean_keys import MeanKeys
from golden.vpe import VectorEngine, maximum
from hw.lxe.microcode import Instruction, Post, Pre, Times
from tests.hw.lxe.vpe_cases import beats, from_pairs, numbers, reals, rope_stream

LANES, ROWS = 8, 64
HALF_UNIT = 2.0**-8  # of a BF16 number, relative to the power of two above it
LENGTHS = (1, 7, 8, 9, 100, LANES * ROWS // 2)


def execute(program, stream):
    return VectorEngine(LANES, ROWS).run(program, stream)


def value(codes):
    return bf16.decode(codes.astype(np.uint32), FP32)


@pytest.mark.parametrize("n", LENGTHS)
def test_softmax(rng, n):
    scores = numbers(rng, n, 60)
    got = reals(execute(programs.softmax(n, LANES, 64), beats(scores, LANES)), n)[0]
    weights = np.exp((value(scores) - value(scores).max()) / 8)
    # exponentials have a one-sided error up to 0.67 % before rounding; then the sum, the quotient, BF16
    np.testing.assert_allclose(got, weights / weights.sum(), rtol=0.0067 * 2 + HALF_UNIT, atol=1e-37)
    assert abs(got.sum() - 1) < 0.004
    row = beats(scores, LANES)
    exponentials = execute(programs.long_exponentials(n, LANES, 64), np.concatenate([row, row]))
    long = reals(execute(programs.divide_by_sum(n, LANES), np.concatenate([exponentials, exponentials])), n)[0]
    np.testing.assert_array_equal(long, got)


@pytest.mark.parametrize("n", LENGTHS)
def test_exponentials(rng, n):
    scores = numbers(rng, n, 60)
    got = reals(execute(programs.exponentials(n, LANES, 128), beats(scores, LANES)), n)[0]
    np.testing.assert_allclose(got, np.exp((value(scores) - value(scores).max()) / np.sqrt(128)), rtol=0.0067)


@pytest.mark.parametrize("n", LENGTHS)
def test_rms_norm(rng, n):
    x, weight = numbers(rng, (3, n), 5), numbers(rng, n)
    rows = [beats(row, LANES) for row in x]
    operands = [part for row in rows for part in (execute(programs.rms_factor(n, LANES), row), row)]
    got = reals(execute(programs.rms_scale(n, LANES, 3), np.concatenate([beats(weight, LANES), *operands])), n)
    mean = np.square(value(x)).mean(axis=1, keepdims=True)
    np.testing.assert_allclose(got, value(x) / np.sqrt(mean + 1e-5) * value(weight), rtol=HALF_UNIT + 2e-4)


@pytest.mark.parametrize("d", [16, 64])
def test_rope_and_back(rng, d):
    vectors = numbers(rng, (5, d), 3)
    program = programs.rope(d, LANES, 5)
    rotated = {}
    for position in (1234.0, -77.0):
        stream = rope_stream(vectors, position * rope.frequencies(d), LANES)
        rotated[position] = from_pairs(execute(program, stream), d, LANES)
        pairs = np.hypot(value(vectors)[:, : d // 2], value(vectors)[:, d // 2 :])
        bound = np.concatenate([pairs, pairs], axis=1) * (HALF_UNIT + 2**-21)
        assert np.all(np.abs(rotated[position] - rope.rotate(value(vectors), position)) <= bound)


@pytest.mark.parametrize("bits", [1, 8, 31, 32])
def test_hash_bits(rng, bits):
    planes, keys = rng.standard_normal((16, bits)), rng.integers(-2, 3, (6, 16)).astype(float)
    keys[0] = 0
    dots = bf16.encode(keys @ planes, FP32)
    codes = execute(programs.hash_bits(bits, LANES, 6), beats(dots, LANES))
    np.testing.assert_array_equal(codes[:, 0], hash_codes(keys, planes))
    assert not codes[:, 1:].any()


@pytest.mark.parametrize("n", LENGTHS)
def test_key_norms(rng, n):
    keys = numbers(rng, (4, n), 2)
    got = value(execute(programs.key_norms(n, LANES, 4), beats(keys, LANES)))[:, 0]
    np.testing.assert_allclose(got, np.square(value(keys)).sum(axis=1), rtol=HALF_UNIT + 1e-5)


@pytest.mark.parametrize(("old", "members"), [(0, 1), (1, 1), (31, 4), (65530, 5)])
def test_running_mean_matches_mean_keys(rng, old, members):
    """The result equals the representative keys of the cluster table bit for bit."""
    n = 50
    mean = numbers(rng, n) if old else np.zeros(n, np.uint32)
    keys = numbers(rng, (members, n))
    stream = np.concatenate([beats(mean, LANES), beats(keys, LANES)])
    got = execute(programs.running_mean(n, LANES, old, members), stream).reshape(-1)[:n]
    table = MeanKeys(n)
    short = (keys >> np.uint32(16)).astype(np.uint16).view(table.means.dtype)
    if old:
        table.means = (mean >> np.uint32(16)).astype(np.uint16).view(table.means.dtype)[None]
    table.update(short, np.zeros(members, int), np.array([old + members]))
    np.testing.assert_array_equal(got >> np.uint32(16), table.means[0].view(np.uint16))


@pytest.mark.parametrize("n", LENGTHS)
def test_gated(rng, n):
    gate, up = numbers(rng, n, 4), numbers(rng, n)
    got = reals(execute(programs.gated(n, LANES), np.concatenate([beats(gate, LANES), beats(up, LANES)])), n)[0]
    x = value(gate)
    np.testing.assert_allclose(got, x / (1 + np.exp(-x)) * value(up), rtol=2**-7 + HALF_UNIT)


def test_maximum(rng):
    a, b = (rng.integers(0, 1 << 32, 4000, dtype=np.uint32) for _ in "ab")
    with np.errstate(invalid="ignore"):
        expected = np.maximum(value(a), value(b))
    np.testing.assert_array_equal(value(maximum(a, b)), expected)
    zeros = np.array([0, 0x80000000, 1, 0x80000001], np.uint32)
    grid = np.meshgrid(zeros, zeros)
    np.testing.assert_array_equal(maximum(*grid), (grid[0] & grid[1]) & 0x80000000)


def test_reduction_excludes_tail():
    stream = beats(bf16.encode(np.arange(1.0, 17.0), FP32), LANES)
    for post, tail, expected in ((Post.SUM, 3, 66), (Post.MAX, 3, 11), (Post.SUM, 0, 136), (Post.LAST, 0, 9)):
        program = [Instruction(post=post, tail=tail, beats=2, to_stream=True)]
        assert value(execute(program, stream))[0, 0] == expected


def test_invalid_streams_and_programs_raise():
    with pytest.raises(ValueError, match="power of two"):
        VectorEngine(6, 8)
    with pytest.raises(ValueError, match="must have the 2 beats"):
        execute([Instruction(beats=2)], np.zeros((1, LANES), np.uint32))
    with pytest.raises(ValueError, match="must have the 2 beats that the program reads, got 3"):
        execute([Instruction(beats=2)], np.zeros((3, LANES), np.uint32))
    with pytest.raises(ValueError, match="beats of ROTATE must be even, got 3"):
        Instruction(post=Post.ROTATE, times=Times.B, beats=3)
    with pytest.raises(ValueError, match="of ROTATE must be A, B, NONE, got ADD, B, NONE"):
        Instruction(post=Post.ROTATE, pre=Pre.ADD, times=Times.B, beats=2)
    with pytest.raises(ValueError, match="at most 32"):
        execute([Instruction(post=Post.PACK, beats=5)], np.zeros((5, LANES), np.uint32))
    for call in (
        lambda: programs.softmax(0, LANES, 64),
        lambda: programs.softmax(4, LANES, 0),
        lambda: programs.rope(24, LANES),
        lambda: programs.running_mean(4, LANES, 3, 0),
    ):
        with pytest.raises(ValueError, match="must be"):
            call()
