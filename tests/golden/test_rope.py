"""Rotary embedding compared with complex multiplication; its group laws and multi-axis layouts."""

import cmath

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden import rope

POSITIONS = st.integers(-100_000, 100_000)


def rotated(x: list[float], angles: list[float]) -> list[float]:
    """Rotate each pair as one complex number times e^(i angle), in plain Python."""
    half = len(x) // 2
    z = [complex(x[i], x[i + half]) * cmath.exp(1j * angles[i]) for i in range(half)]
    return [v.real for v in z] + [v.imag for v in z]


@pytest.mark.parametrize("d", [2, 8, 128])
def test_matches_complex_multiplication(rng, d):
    x = rng.standard_normal((7, d))
    got = rope.rotate(x, np.arange(7) * 13 - 20)
    for t in range(7):
        angles = [(t * 13 - 20) * 500_000.0 ** (-2 * i / d) for i in range(d // 2)]
        np.testing.assert_allclose(got[t], rotated(x[t].tolist(), angles), atol=1e-12)


@settings(derandomize=True, database=None, deadline=None)
@given(a=POSITIONS, b=POSITIONS, seed=st.integers(0, 2**32 - 1))
def test_rotation_is_additive_and_preserves_norms(a, b, seed):
    rng = np.random.default_rng(seed)
    q, k = rng.standard_normal((2, 16))
    twice = rope.rotate(rope.rotate(k, a), b)
    np.testing.assert_allclose(twice, rope.rotate(k, a + b), atol=1e-9)
    np.testing.assert_allclose(np.linalg.norm(twice), np.linalg.norm(k), rtol=1e-12)
    np.testing.assert_allclose(rope.rotate(rope.rotate(k, a), -a), k, atol=1e-9)
    # scores depend only on the distance
    score = rope.rotate(q, a) @ rope.rotate(k, b)
    np.testing.assert_allclose(score, rope.rotate(q, a - b) @ k, atol=1e-8)


def test_sections_rotate_pairs_by_their_axis(rng):
    x = rng.standard_normal((5, 3, 16))
    where = rng.integers(-50, 50, (5, 1, 3))
    for layout, axes in (
        ("chunked", [0, 0, 1, 1, 1, 2, 2, 2]),
        ("interleaved", [0, 1, 2, 0, 1, 2, 0, 1]),
    ):
        sections = [2, 3, 3] if layout == "chunked" else [3, 3, 2]
        assert rope.pair_axes(16, sections, layout).tolist() == axes
        got = rope.rotate(x, where, 1e4, sections, layout)
        for t in range(5):
            angles = [float(where[t, 0, axes[i]]) * 1e4 ** (-2 * i / 16) for i in range(8)]
            for h in range(3):
                np.testing.assert_allclose(got[t, h], rotated(x[t, h].tolist(), angles), atol=1e-12)


def test_interleaved_gives_the_remaining_pairs_to_time():
    # Qwen3-VL: 24 + 20 + 20 pairs of a 128-wide head
    axes = rope.pair_axes(128, [24, 20, 20], "interleaved")
    assert np.bincount(axes).tolist() == [24, 20, 20]
    assert axes[:7].tolist() == [0, 1, 2, 0, 1, 2, 0] and axes[60:].tolist() == [0, 0, 0, 0]


def test_equal_axes_are_ordinary_rope(rng):
    x = rng.standard_normal((4, 128))
    where = np.array([3, 1, 4, 1])
    for layout in rope.LAYOUTS:
        got = rope.rotate(x, np.repeat(where[:, None], 3, axis=1), sections=[16, 24, 24], layout=layout)
        np.testing.assert_array_equal(got, rope.rotate(x, where))


def test_float32_input_gives_float32(rng):
    x = rng.standard_normal((9, 64)).astype(np.float32)
    got = rope.rotate(x, 40_000)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, rope.rotate(x.astype(np.float64), 40_000), atol=4e-6)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: rope.frequencies(7), "d must be even, got 7"),
        (lambda: rope.frequencies(8, 0.0), "theta must be positive, got 0.0"),
        (lambda: rope.rotate(np.zeros(()), 1), "x must have at least one axis"),
        (lambda: rope.rotate(np.full(4, np.nan), 1), "x must be finite"),
        (lambda: rope.rotate(np.full(4, np.inf, np.float32), 1), "x must be finite"),
        (lambda: rope.rotate(np.zeros((3, 4)), np.zeros(2)), r"\(2,\) does not broadcast against x"),
        (lambda: rope.rotate(np.zeros(4), np.zeros(2), sections=[1, 1, 0]), "must end in an axis of 3"),
        (lambda: rope.pair_axes(8, [1, 1, 1]), r"sections must sum to d/2 = 4, got \[1, 1, 1\]"),
        (
            lambda: rope.pair_axes(8, [2, 2], "spiral"),
            "layout must be one of chunked, interleaved, got 'spiral'",
        ),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ValueError, match=words):
        call()
