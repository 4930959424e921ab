"""Vector kernels compared with float64, and with the programs of the vector engine run on its golden model."""

import math

import numpy as np
import pytest

from compiler import vector_programs as programs
from compiler.vector_programs import residual
from golden import bf16, vector_kernels
from golden.bf16 import FP32
from golden.vpe import VectorEngine, narrow, widen

LANES = 8


def run(program, *inputs):
    """BF16 codes of the engine's output, flat; inputs are FP32 codes in complete beats."""
    return narrow(execute(program, *inputs)).ravel()


def execute(program, *inputs):
    """FP32 codes of the engine's output."""
    stream = np.concatenate([np.asarray(part, np.uint32).reshape(-1, LANES) for part in inputs])
    return VectorEngine(LANES, 64).run(program, stream)


def rms_norm(weight, x):
    """RMSNorm of BF16 rows by the two programs; rows in pieces of 8 elements."""
    factors = [execute(programs.rms_factor(x.shape[1], LANES), widen(row)) for row in x]
    pieces = []
    for start in range(0, x.shape[1], 8):
        columns = slice(start, start + 8)
        operands = [part for row, factor in zip(x, factors, strict=True) for part in (factor, widen(row[columns]))]
        pieces.append(run(programs.rms_scale(8, LANES, len(x)), widen(weight[columns]), *operands).reshape(len(x), 8))
    return np.concatenate(pieces, axis=1)


def reals(rng, *shape):
    return bf16.encode(rng.standard_normal(shape) * 3)


def test_rms_norm(rng):
    x, weight = reals(rng, 5, 24), reals(rng, 24)
    got = vector_kernels.rms_norm(x, weight, LANES)
    np.testing.assert_array_equal(got, rms_norm(weight, x))
    v = bf16.decode(x)
    want = v / np.sqrt((v * v).mean(axis=1, keepdims=True) + 1e-5) * bf16.decode(weight)
    np.testing.assert_allclose(bf16.decode(got), want, rtol=2**-8)


def layer_norm(weight, bias, x, epsilon):
    """LayerNorm of BF16 rows by the three programs; rows in pieces of 8 elements."""
    size = x.shape[1]
    factors = [execute(programs.layer_factors(size, LANES, epsilon), widen(row), widen(row)) for row in x]
    program = programs.layer_parameters(8, LANES)
    pieces = []
    for start in range(0, size, 8):
        columns = slice(start, start + 8)
        operands = [part for row, factor in zip(x, factors, strict=True) for part in (factor, widen(row[columns]))]
        scale = program + programs.layer_scale(8, LANES) * len(x)
        parts = run(scale, widen(weight[columns]), widen(bias[columns]), *operands)
        pieces.append(parts.reshape(len(x), 8))
    return np.concatenate(pieces, axis=1)


@pytest.mark.parametrize(("offset", "epsilon"), [(0, 1e-5), (20, 1e-6), (-300, 1e-5)])
def test_layer_norm(offset, epsilon, rng):
    """Also rows whose mean is much larger than their deviation: the mean is subtracted before the squares are added."""
    x, weight, bias = bf16.encode(rng.standard_normal((5, 24)) * 3 + offset), reals(rng, 24), reals(rng, 24)
    got = vector_kernels.layer_norm(x, weight, bias, LANES, epsilon)
    np.testing.assert_array_equal(got, layer_norm(weight, bias, x, epsilon))
    v = bf16.decode(x)
    centred = v - v.mean(axis=1, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + epsilon)
    want = normed * bf16.decode(weight) + bf16.decode(bias)
    # one rounding to BF16, a reciprocal square root within 2**-15, and the FP32 sum of 24 numbers for the mean
    scale = np.abs(normed * bf16.decode(weight))
    mean_error = 2.0**-22 * np.abs(v).max() / v.std(axis=1, keepdims=True) * np.abs(bf16.decode(weight))
    assert (np.abs(bf16.decode(got) - want) <= 2.0**-8 * np.abs(want) + 2.0**-15 * scale + mean_error).all()


ACTIVATIONS = {
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "gelu_pytorch_tanh": lambda x: x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))) / 2,
    "gelu": lambda x: x * (1 + np.vectorize(math.erf)(x / 2**0.5)) / 2,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation(name):
    """All BF16 numbers up to 64, and FP32 numbers between them; infinity is not an input of these functions.

    Positive x: three or four roundings to BF16 and the error of SiLU, 1 unit in the last place, that is 2**-7. Small
    and negative x: an absolute error, which a rounding of the exponent 2 x gives.
    """
    positive = np.arange(0x80, 0x4281, dtype=np.uint32) << 16
    numbers = np.concatenate([positive, positive + 0x7FFF, positive | 1 << 31, [0, 1 << 31]]).astype(np.uint32)
    numbers = np.pad(numbers, (0, -len(numbers) % 160))
    got = vector_kernels.activation(name, numbers)
    program = programs.activation(name, 160, LANES)
    sample = numbers.reshape(-1, 160)[::16]
    np.testing.assert_array_equal(got.reshape(-1, 160)[::16], np.stack([run(program, row) for row in sample]))
    x = bf16.decode(numbers, FP32)
    with np.errstate(over="ignore"):
        want = ACTIVATIONS[name](x)
    error = np.abs(bf16.decode(got) - want)
    large = x > 1
    relative = (error[large] / want[large]).max()
    print(f"{name}: relative error {relative:.2e} for x > 1, absolute error {error[~large].max():.2e} for x <= 1")
    assert relative <= 2.0**-7 + 4 * 2.0**-9 and error[~large].max() <= 2.0**-7
    small = np.abs(x) < 2.0**-6  # the linear part x / 2
    np.testing.assert_allclose(bf16.decode(got)[small], want[small], rtol=2.0**-5, atol=1e-37)
    assert (bf16.decode(got)[numbers == 0xC2800000] == 0).all()  # x = -64


def test_unknown_activation_raises():
    message = "activation must be one of gelu, gelu_pytorch_tanh, quick_gelu, got 'relu'"
    for function in (lambda: vector_kernels.activation("relu", np.zeros(8, np.uint32)),
                     lambda: programs.activation("relu", 8, LANES)):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            function()


@pytest.mark.parametrize("n", [1, 7, 8, 21])
def test_softmax(n, rng):
    scores = bf16.encode(rng.standard_normal(n) * 20, FP32)
    padded = np.pad(scores, (0, -n % LANES))
    got = vector_kernels.softmax(scores, 64, LANES)
    np.testing.assert_array_equal(got, run(programs.softmax(n, LANES, 64), padded)[:n])
    np.testing.assert_array_equal(
        vector_kernels.exponentials(scores, 64), run(programs.exponentials(n, LANES, 64), padded)[:n]
    )
    weights = run(programs.long_exponentials(n, LANES, 64), padded, padded)
    np.testing.assert_array_equal(got, run(programs.divide_by_sum(n, LANES), widen(weights), widen(weights))[:n])
    weights = np.exp(bf16.decode(scores, FP32) / 8)
    np.testing.assert_allclose(bf16.decode(got), weights / weights.sum(), rtol=0.02, atol=1e-30)


def test_rope(rng):
    x = bf16.encode(rng.standard_normal((1, 3, 16)), FP32)
    angle = rng.uniform(-3, 3, (1, 8))
    cos, sin = bf16.encode(np.cos(angle), FP32), bf16.encode(np.sin(angle), FP32)
    got = vector_kernels.rope(x, cos, sin)
    np.testing.assert_array_equal(got.ravel(), run(programs.rope(16, LANES, 3), cos, sin, x))
    low, high = np.split(bf16.decode(x, FP32), 2, axis=2)
    want = np.concatenate(
        [low * np.cos(angle) - high * np.sin(angle), high * np.cos(angle) + low * np.sin(angle)], axis=2
    )
    np.testing.assert_allclose(bf16.decode(got), want, atol=0.02)


def test_gated_and_residual(rng):
    gate, up = (bf16.encode(rng.standard_normal(24) * 4, FP32) for _ in range(2))
    got = vector_kernels.gated(gate, up)
    np.testing.assert_array_equal(got, run(programs.gated(24, LANES), gate, up))
    g = bf16.decode(bf16.convert(gate, FP32, bf16.BF16))
    # one unit of SiLU, at most 2**-7, and the rounding of the product, at most 2**-9 and 2**-24
    np.testing.assert_allclose(bf16.decode(got), g / (1 + np.exp(-g)) * bf16.decode(up, FP32), rtol=2**-7 + 2**-8)
    x = reals(rng, 24)
    got = vector_kernels.residual(x, up)
    np.testing.assert_array_equal(got, run(residual(24, LANES), widen(x), up))
    np.testing.assert_allclose(bf16.decode(got), bf16.decode(x) + bf16.decode(up, FP32), rtol=2**-8, atol=1e-30)


def test_signs(rng):
    projections = bf16.encode(np.where(rng.random((6, 13)) < 0.2, 0, rng.standard_normal((6, 13))), FP32)
    got = vector_kernels.signs(projections)
    for row, code in zip(bf16.decode(projections, FP32), got.tolist(), strict=True):
        assert code == sum(1 << j for j, value in enumerate(row) if value > 0)
