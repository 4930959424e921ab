"""Attention compared with sums of Python floats, and its tolerance compared with the exponential of the hardware."""

import math

import ml_dtypes
import numpy as np
import pytest

from golden import scores
from golden.attention import attention_mass, light_attention, tolerance


def plain(q, k, v, tokens, allowed=None, pk=(), pv=()):
    """Softmax attention, row by row, over a list of (key, value) that each row may see."""
    steps, heads, d = q.shape
    past, group = len(k) - steps, heads // k.shape[1]
    out = np.zeros(q.shape)
    for t in range(steps):
        for a in range(heads):
            h, row = a // group, t * group + a % group
            seen = [(pk[e][h], pv[e][h]) for e in range(len(pk))]
            seen += [(k[n, h], v[n, h]) for i, n in enumerate(tokens[h]) if allowed is None or allowed[h][row][i]]
            seen += [(k[past + i, h], v[past + i, h]) for i in range(t + 1)]
            logit = [math.fsum(x * y for x, y in zip(q[t, a], key, strict=True)) / math.sqrt(d) for key, _ in seen]
            weight = [math.exp(x - max(logit)) for x in logit]
            for i in range(d):
                terms = (w * val[i] for w, (_, val) in zip(weight, seen, strict=True))
                out[t, a, i] = math.fsum(terms) / math.fsum(weight)
    return out


def tensors(rng, past=9, steps=3, heads=4, kv_heads=2, d=6):
    q = rng.standard_normal((steps, heads, d))
    k, v = rng.standard_normal((2, past + steps, kv_heads, d))
    return q, k, v


def test_attention_covers_selected_and_step_tokens(rng):
    q, k, v = tensors(rng)
    tokens = [np.array([0, 4, 5]), np.array([], int)]
    assert light_attention(q, k, v, tokens) == pytest.approx(plain(q, k, v, tokens), abs=1e-13)


def test_allowed_mask_per_row(rng):
    q, k, v = tensors(rng)
    tokens = [np.array([0, 4, 5]), np.array([1, 8])]
    allowed = [rng.random((6, len(t))) < 0.5 for t in tokens]
    assert light_attention(q, k, v, tokens, allowed) == pytest.approx(plain(q, k, v, tokens, allowed), abs=1e-13)


def test_pseudo_tokens_attended_by_all_queries(rng):
    q, k, v = tensors(rng)
    pk, pv = rng.standard_normal((2, 3, 2, 6))
    tokens = [np.array([2]), np.array([3])]
    got = light_attention(q, k, v, tokens, pseudo_keys=pk, pseudo_values=pv)
    assert got == pytest.approx(plain(q, k, v, tokens, pk=pk, pv=pv), abs=1e-13)


def test_selecting_all_equals_full_attention(rng):
    q, k, v = tensors(rng, past=20)
    mass = attention_mass(q, k)
    assert mass.sum(axis=2) == pytest.approx(1)
    full = np.einsum("hrn,nhd->hrd", mass, v).reshape(2, 3, 2, 6).transpose(1, 0, 2, 3).reshape(3, 4, 6)
    assert light_attention(q, k, v, [np.arange(20)] * 2) == pytest.approx(full, abs=1e-13)
    first = light_attention(q[:1], k[:1], v[:1], [np.arange(0)] * 2)  # no past at all: the token sees itself
    assert first[0, 0] == pytest.approx(v[0, 0])


def test_order_and_huge_logits(rng):
    q, k, v = tensors(rng)
    far = light_attention(q * 1e4, k * 1e4, v, [np.arange(9)] * 2)
    assert np.isfinite(far).all() and np.abs(far).max() <= np.abs(v).max()


def test_hardware_exponential_stays_within_tolerance(rng):
    """Weights from the BF16 exponential, normalised in float64, the result rounded to BF16."""
    for _ in range(20):
        d, n = 64, 300
        q, k, v = rng.standard_normal((1, 1, d)) * 4, rng.standard_normal((n, 1, d)), rng.standard_normal((n, 1, d))
        row = (q[0] @ k[:, 0].T).astype(np.float32)
        weight = scores.codes(row, d).view(ml_dtypes.bfloat16).astype(np.float64)[0]
        got = (weight @ v[:, 0] / weight.sum()).astype(ml_dtypes.bfloat16).astype(np.float64)
        exact = light_attention(q, k, v, [np.arange(n - 1)])[0, 0]
        assert np.abs(got - exact).max() <= tolerance(v)
        assert np.abs(got - exact).max() > 0


def test_bad_input_is_named(rng):
    q, k, v = tensors(rng)
    ok = [np.array([0]), np.array([1])]
    cases = (
        (lambda: light_attention(q, k, v, ok[:1]), "tokens must have one list for each of 2 heads, got 1"),
        (lambda: light_attention(q, k, v, [np.array([9]), ok[1]]), "tokens must be between 0 and 8, got 9"),
        (lambda: light_attention(q[:, :3], k, v, ok), "queries must have a multiple of 2 heads, got 3"),
        (lambda: light_attention(q[:0], k, v, ok), "queries must have 1 to 12 tokens"),
        (lambda: light_attention(q, k, v[1:], ok), "keys and values must have one shape"),
        (lambda: light_attention(q, k * np.nan, v, ok), "keys must be finite, got nan"),
        (lambda: light_attention(q, k, v, ok, [np.ones((6, 2))] * 2), r"allowed must have shape \(6, 1\)"),
    )
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()
