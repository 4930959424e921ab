"""Vector kernels of a decoder layer as the vector engine computes them, on whole arrays, bit exact.

BF16 bit patterns are uint16, FP32 bit patterns uint32. Every product and sum is rounded to FP32; a BF16 result is
rounded once, at the end. A row is summed by `lanes` lanes: each lane adds its elements in order, then lane i adds lane
i + n / 2 for n = lanes, lanes / 2, ... 2.
"""

import numpy as np

from golden import bf16, exp
from golden.bf16 import FP32
from golden.elementary import reciprocal, rsqrt
from golden.elementary import silu as silu_codes
from golden.vpe import MINUS_ZERO, maximum, narrow, widen
from util import checks

QUICK_GELU = 1.702  # quick_gelu(x) = x sigmoid(1.702 x)
GELU_TERMS = {  # a, b of x sigmoid(a x + b x**3)
    "gelu": (1.6003, 0.0694),  # within 2.8e-4 of the GELU with erf, the smallest error of this form
    "gelu_pytorch_tanh": (2 * np.sqrt(2 / np.pi), 2 * np.sqrt(2 / np.pi) * 0.044715),
}
ACTIVATIONS = (*GELU_TERMS, "quick_gelu")


def constant(value: float) -> np.ndarray:
    """FP32 bit pattern of a number."""
    return bf16.encode(value, FP32)


def _multiply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return bf16.multiply(a, b, FP32)


def _add(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return bf16.add(a, b, FP32)


def _rows(name: str, value: np.ndarray, fmt: bf16.Format = bf16.BF16) -> np.ndarray:
    """Checked bit patterns (R, n), n at least 1."""
    rows = bf16.codes(name, value, fmt)
    if rows.ndim != 2 or not rows.shape[1]:
        raise ValueError(f"{name} must have shape (R, n), n at least 1, got {rows.shape}")
    return rows


def lane_sum(values: np.ndarray, lanes: int) -> np.ndarray:
    """Sum of each row (R, n): FP32 bit patterns (R,). `lanes` is a power of two."""
    rows, n = _rows("values", values, FP32).shape
    if checks.integer("lanes", lanes, 1) & lanes - 1:
        raise ValueError(f"lanes must be a power of two, got {lanes}")
    padded = np.full((rows, -(-n // lanes) * lanes), MINUS_ZERO)
    padded[:, :n] = values
    beats = padded.reshape(rows, -1, lanes)
    total = beats[:, 0]
    for k in range(1, beats.shape[1]):
        total = _add(total, beats[:, k])
    while total.shape[1] > 1:
        half = total.shape[1] // 2
        total = _add(total[:, :half], total[:, half:])
    return total[:, 0]


def rms_norm(x: np.ndarray, weight: np.ndarray, lanes: int, epsilon: float = 1e-5) -> np.ndarray:
    """x / sqrt(mean(x**2) + epsilon) * weight: BF16 bit patterns of rows (R, n).

    The reciprocal square root is the BF16 one, refined by one Newton step r (3 - m r r) / 2.
    """
    wide = widen(_rows("x", x))
    n = wide.shape[1]
    total = lane_sum(_multiply(wide, wide), lanes)
    scaled = _multiply(wide, widen(bf16.codes("weight", weight)))
    return narrow(_multiply(scaled, _rsqrt_of_mean(total, n, epsilon)[:, None]))


def layer_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, lanes: int, epsilon: float) -> np.ndarray:
    """(x - mean(x)) / sqrt(mean((x - mean(x))**2) + epsilon) * weight + bias: BF16 bit patterns of rows (R, n)."""
    wide = widen(_rows("x", x))
    n = wide.shape[1]
    mean = _multiply(lane_sum(wide, lanes), constant(1 / n))
    centred = bf16.subtract(wide, mean[:, None], FP32)
    factor = _rsqrt_of_mean(lane_sum(_multiply(centred, centred), lanes), n, epsilon)
    scaled = _multiply(_multiply(centred, factor[:, None]), widen(bf16.codes("weight", weight)))
    return narrow(_add(scaled, widen(bf16.codes("bias", bias))))


def _rsqrt_of_mean(total: np.ndarray, n: int, epsilon: float) -> np.ndarray:
    """1 / sqrt(total / n + epsilon), FP32: the BF16 reciprocal square root r, refined by r (3 - m r r) / 2."""
    mean = _multiply(_add(total, constant(n * epsilon)), constant(1 / n))
    initial_estimate = widen(rsqrt(narrow(mean)))
    work = _multiply(_multiply(initial_estimate, initial_estimate), mean)
    work = _multiply(bf16.subtract(constant(3), work, FP32), initial_estimate)
    return _multiply(work, constant(0.5))


def exponentials(scores: np.ndarray, head_dim: int) -> np.ndarray:
    """exp((S - max) / sqrt(head_dim)): BF16 bit patterns of a row of FP32 scores (n,)."""
    if bf16.codes("scores", scores, FP32).ndim != 1 or not len(scores):
        raise ValueError(f"scores must have shape (n,), n at least 1, got {np.shape(scores)}")
    top = scores
    while len(top) > 1:  # a number may take part twice
        half = (len(top) + 1) // 2
        top = maximum(top[:half], top[-half:])
    return exp.exp(scores, top[0], exp.scale(head_dim))


def softmax(scores: np.ndarray, head_dim: int, lanes: int) -> np.ndarray:
    """softmax(S / sqrt(head_dim)): BF16 bit patterns of a row of FP32 scores (n,).

    The reciprocal of the sum is the BF16 one, refined by one Newton step r (2 - s r).
    """
    weights = widen(exponentials(scores, head_dim))
    total = lane_sum(weights[None], lanes)[0]
    initial_estimate = widen(reciprocal(narrow(total)))
    initial_estimate = _multiply(bf16.subtract(constant(2), _multiply(total, initial_estimate), FP32), initial_estimate)
    return narrow(_multiply(weights, initial_estimate))


def rope(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """Rotate pairs (i, i + d/2) of FP32 vectors (T, H, d) by FP32 cosines and sines (T, d/2); returns BF16."""
    low, high = np.split(x, 2, axis=2)
    c, s = cos[:, None], sin[:, None]
    first = bf16.subtract(_multiply(low, c), _multiply(high, s), FP32)
    second = _add(_multiply(high, c), _multiply(low, s))
    return narrow(np.concatenate([first, second], axis=2))


def gated(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """SiLU(gate) * up: BF16 bit patterns of FP32 operands; the gate is rounded to BF16 first."""
    return narrow(_multiply(widen(silu_codes(narrow(gate))), up))


def activation(name: str, x: np.ndarray) -> np.ndarray:
    """Activation function `name` of `ACTIVATIONS`: BF16 bit patterns of FP32 x.

    With SiLU(u) = u sigmoid(u), quick_gelu(x) = SiLU(1.702 x) / 1.702. The others are SiLU(x w) / w with w = a + b x**2
    (`GELU_TERMS`). SiLU and 1 / w are the BF16 functions. For |x| up to 64 the error is at most 1.1 % of the function
    for x > 1, and 0.007 for x <= 1.
    """
    checks.one_of("activation", name, ACTIVATIONS)
    if name == "quick_gelu":
        value = widen(silu_codes(narrow(_multiply(x, constant(QUICK_GELU)))))
        return narrow(_multiply(value, constant(1 / QUICK_GELU)))
    a, b = GELU_TERMS[name]
    w = _multiply(_add(_multiply(x, x), constant(a / b)), constant(b))
    return narrow(_multiply(widen(silu_codes(narrow(_multiply(x, w)))), widen(reciprocal(narrow(w)))))


def residual(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x + y: BF16 bit patterns of BF16 x and FP32 y."""
    return narrow(_add(widen(bf16.codes("x", x)), y))


def signs(projections: np.ndarray) -> np.ndarray:
    """Hash codes uint32 (T,): bit j is 1 if projection j of FP32 bit patterns (T, bits) is positive."""
    checks.integer("bits", _rows("projections", projections, FP32).shape[1], 1, 32)
    positive = bf16.decode(projections, FP32) > 0
    return (positive << np.arange(projections.shape[1], dtype=np.uint32)).sum(axis=1, dtype=np.uint32)
