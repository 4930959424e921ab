"""Rotary position embedding (RoPE) in half-split form (Llama, Qwen), and its form with several position axes (M-RoPE).

Pair (i, i + d/2) of a head vector is rotated by the angle `position * theta ** (-2 i / d)`. Rotations add up,
R(a) R(b) = R(a + b). A cached key therefore moves by `delta` positions with `rotate(key, delta)`, and back with
`rotate(key, -delta)`.

With several position axes (time, height, width) every pair follows one axis. In layout `chunked` the first
`sections[0]` pairs follow axis 0, the next `sections[1]` pairs axis 1 and so on (Qwen2-VL, Qwen2.5-VL). In layout
`interleaved` the axes alternate, and the remaining pairs follow axis 0 (Qwen3-VL).
"""

from collections.abc import Sequence

import numpy as np

from util import checks

THETA_LLAMA3 = 500_000.0
LAYOUTS = ("chunked", "interleaved")


def frequencies(d: int, theta: float = THETA_LLAMA3) -> np.ndarray:
    """Angle per position of each pair in radians, float64 (d/2,). ValueError if d is odd or theta is not positive."""
    if checks.integer("d", d, 2) % 2:
        raise ValueError(f"d must be even, got {d}")
    if not checks.real("theta", theta) > 0:
        raise ValueError(f"theta must be positive, got {theta}")
    return float(theta) ** (-2.0 * np.arange(d // 2) / d)


def pair_axes(d: int, sections: Sequence[int], layout: str = "chunked") -> np.ndarray:
    """Position axis of each pair, int64 (d/2,). ValueError unless `sections` sum to d/2."""
    checks.one_of("layout", layout, LAYOUTS)
    sizes = checks.integers("sections", sections, None, low=0)
    if sizes.sum() != d // 2:
        raise ValueError(f"sections must sum to d/2 = {d // 2}, got {sizes.tolist()}")
    if layout == "chunked":
        return np.repeat(np.arange(len(sizes)), sizes)
    axes = np.zeros(d // 2, np.int64)
    for axis, size in enumerate(sizes[1:], start=1):
        axes[axis : size * len(sizes) : len(sizes)] = axis
    return axes


def rotate(
    x: np.ndarray,
    position: np.ndarray | float,
    theta: float = THETA_LLAMA3,
    sections: Sequence[int] | None = None,
    layout: str = "chunked",
) -> np.ndarray:
    """Rotate the vectors `x` (..., d) by `position`, which is broadcast against the leading axes of `x`.

    Positions can be negative and fractional. With `sections`, `position` has one more trailing axis for the position
    axes: shape (..., len(sections)). float32 input gives float32 (angles are float64), any other type gives float64.
    Raises ValueError for an odd d, shapes that cannot be broadcast, a NaN or an infinity.
    """
    vectors = np.asarray(x)
    if vectors.ndim == 0:
        raise ValueError("x must have at least one axis, got a scalar")
    vectors = vectors if vectors.dtype == np.float32 else checks.reals("x", vectors)
    if not np.isfinite(vectors).all():
        raise ValueError("x must be finite, got a NaN or an infinity")
    d = vectors.shape[-1]
    frequency = frequencies(d, theta)
    positions = checks.reals("position", position)
    if sections is None:
        angle = positions[..., None] * frequency
    else:
        if positions.ndim == 0 or positions.shape[-1] != len(sections):
            raise ValueError(f"position must end in an axis of {len(sections)}, got shape {positions.shape}")
        angle = positions[..., pair_axes(d, sections, layout)] * frequency
    try:
        np.broadcast_shapes(angle.shape[:-1], vectors.shape[:-1])
    except ValueError as error:
        raise ValueError(
            f"position of shape {positions.shape} does not broadcast against x of shape {vectors.shape}"
        ) from error
    cos, sin = np.cos(angle).astype(vectors.dtype), np.sin(angle).astype(vectors.dtype)
    low, high = vectors[..., : d // 2], vectors[..., d // 2 :]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)
