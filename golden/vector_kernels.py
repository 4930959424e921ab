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


def constant(value: float) -> np.ndarray:
    """FP32 bit pattern of a number."""
    return bf16.encode(value, FP32)


def _multiply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return bf16.multiply(a, b, FP32)


def _add(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return bf16.add(a, b, FP32)


def lane_sum(values: np.ndarray, lanes: int) -> np.ndarray:
    """Sum of each row (R, n): FP32 bit patterns (R,)."""
    rows, n = values.shape
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
    wide, n = widen(bf16.codes("x", x)), x.shape[1]
    total = lane_sum(_multiply(wide, wide), lanes)
    scaled = _multiply(wide, widen(bf16.codes("weight", weight)))
    mean = _multiply(_add(total, constant(n * epsilon)), constant(1 / n))
    initial_estimate = widen(rsqrt(narrow(mean)))
    work = _multiply(_multiply(initial_estimate, initial_estimate), mean)
    work = _multiply(bf16.subtract(constant(3), work, FP32), initial_estimate)
    return narrow(_multiply(scaled, _multiply(work, constant(0.5))[:, None]))


def exponentials(scores: np.ndarray, head_dim: int) -> np.ndarray:
    """exp((S - max) / sqrt(head_dim)): BF16 bit patterns of a row of FP32 scores (n,)."""
    top = scores[0]
    for score in scores[1:]:
        top = maximum(top, score)
    return exp.exp(scores, top, exp.scale(head_dim))


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


def residual(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x + y: BF16 bit patterns of BF16 x and FP32 y."""
    return narrow(_add(widen(bf16.codes("x", x)), y))


def signs(projections: np.ndarray) -> np.ndarray:
    """Hash codes uint32 (T,): bit j is 1 if projection j of FP32 bit patterns (T, bits) is positive."""
    checks.integer("bits", projections.shape[1], 1, 32)
    positive = bf16.decode(projections, FP32) > 0
    return (positive << np.arange(projections.shape[1], dtype=np.uint32)).sum(axis=1, dtype=np.uint32)
