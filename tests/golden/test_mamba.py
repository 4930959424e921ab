"""The Mamba block compared with a scalar version, and its state between chunks of any size."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden.mamba import MambaParams, MambaState, chunked_scan, mamba, selective_scan, softplus

SEEDS = st.integers(0, 2**32 - 1)


def sigmoid(v):
    return 1 / (1 + math.exp(-v))


def plain_mamba(u, p, history):
    """One channel, one state, one token at a time; `history` are the channel inputs before `u`."""
    inner, width = p.conv.shape
    states, rank = p.a.shape[1], len(p.w_dt)
    h = [[0.0] * states for _ in range(inner)]
    inputs = [list(row) for row in history]
    out = []
    for row in u:
        both = [sum(float(v) * float(w) for v, w in zip(row, p.w_in[:, j], strict=True)) for j in range(2 * inner)]
        inputs.append(both[:inner])
        x = []
        for e in range(inner):
            s = sum(float(p.conv[e, i]) * inputs[-width + i][e] for i in range(width)) + float(p.conv_bias[e])
            x.append(s * sigmoid(s))
        low = [sum(x[e] * float(p.w_x[e, j]) for e in range(inner)) for j in range(rank + 2 * states)]
        y = []
        for e in range(inner):
            s = sum(low[r] * float(p.w_dt[r, e]) for r in range(rank)) + float(p.dt_bias[e])
            dt = math.log1p(math.exp(s))
            acc = 0.0
            for n in range(states):
                h[e][n] = math.exp(dt * float(p.a[e, n])) * h[e][n] + dt * low[rank + n] * x[e]
                acc += h[e][n] * low[rank + states + n]
            gate = both[inner + e]
            y.append((acc + float(p.d[e]) * x[e]) * gate * sigmoid(gate))
        out.append([sum(y[e] * float(p.w_out[e, o]) for e in range(inner)) for o in range(p.w_out.shape[1])])
    return np.array(out), np.array(inputs[-(width - 1) :] if width > 1 else []), np.array(h)


@pytest.mark.parametrize("width", [1, 2, 4])
def test_block_matches_scalars(rng, width):
    p = MambaParams.random(rng, inputs=5, outputs=3, inner=6, states=4, width=width, rank=2)
    u = rng.standard_normal((9, 5))
    out, state = mamba(u, p, MambaState.zero(p))
    wanted, inputs, h = plain_mamba(u, p, np.zeros((width - 1, 6)))
    np.testing.assert_allclose(out, wanted, atol=1e-12)
    np.testing.assert_allclose(state.inputs, inputs.reshape(width - 1, 6), atol=1e-12)
    np.testing.assert_allclose(state.h, h, atol=1e-12)


@settings(derandomize=True, database=None, deadline=None)
@given(seed=SEEDS, sizes=st.lists(st.integers(0, 7), min_size=1, max_size=6), chunk=st.integers(1, 9))
def test_chunks_of_any_size_equal_one_pass(seed, sizes, chunk):
    rng = np.random.default_rng(seed)
    p = MambaParams.random(rng, inputs=6, outputs=4)
    u = rng.standard_normal((sum(sizes), 6))
    full, last = mamba(u, p, MambaState.zero(p))
    state, parts, at = MambaState.zero(p), [], 0
    for size in sizes:
        out, state = mamba(u[at : at + size], p, state)
        parts.append(out)
        at += size
    np.testing.assert_allclose(np.concatenate(parts), full, atol=1e-12)
    np.testing.assert_allclose(state.h, last.h, atol=1e-12)
    np.testing.assert_allclose(state.inputs, last.inputs, atol=1e-12)
    together, end = mamba(u, p, MambaState.zero(p), chunk=chunk)
    np.testing.assert_allclose(together, full, atol=1e-11)
    np.testing.assert_allclose(end.h, last.h, atol=1e-11)


def test_chunked_scan_from_a_state(rng):
    x, dt = rng.standard_normal((20, 3)), rng.uniform(0.01, 2, (20, 3))
    a, h = -rng.uniform(0.1, 4, (3, 5)), rng.standard_normal((3, 5))
    b, c = rng.standard_normal((2, 20, 5))
    y, end = selective_scan(x, dt, a, b, c, h)
    for chunk in (1, 6, 20, 99):
        got, last = chunked_scan(x, dt, a, b, c, h, chunk)
        np.testing.assert_allclose(got, y, atol=1e-12)
        np.testing.assert_allclose(last, end, atol=1e-12)


def test_scan_against_its_closed_form(rng):
    """h_T is the sum of every token's input, each decayed by all later steps."""
    x, dt = rng.standard_normal((12, 2)), rng.uniform(0.01, 1, (12, 2))
    a, b = -rng.uniform(0.1, 2, (2, 3)), rng.standard_normal((12, 3))
    _, h = selective_scan(x, dt, a, b, np.zeros((12, 3)), np.zeros((2, 3)))
    for e in range(2):
        for n in range(3):
            terms = [math.exp(a[e, n] * dt[t + 1 :, e].sum()) * dt[t, e] * b[t, n] * x[t, e] for t in range(12)]
            assert h[e, n] == pytest.approx(math.fsum(terms), abs=1e-12)


def test_initial_steps_in_trained_range(rng):
    p = MambaParams.random(rng, inputs=64, outputs=64)
    steps = softplus(p.dt_bias)
    assert steps.min() >= 0.001 - 1e-12 and steps.max() <= 0.1 + 1e-12
    assert (
        p.w_in.shape == (64, 256) and p.w_dt.shape == (4, 128) and p.a[0].tolist() == [-float(n) for n in range(1, 17)]
    )


def test_bad_input(rng):
    p = MambaParams.random(rng, inputs=4, outputs=4)
    zero = MambaState.zero(p)
    for call, words in (
        (lambda: mamba(np.ones((2, 5)), p, zero), r"u must have shape \(any, 4\), got \(2, 5\)"),
        (lambda: mamba(np.full((1, 4), np.nan), p, zero), "u must be finite"),
        (lambda: mamba(np.ones((1, 4)), p, MambaState(zero.inputs[:1], zero.h)), "state.inputs must have shape"),
        (lambda: mamba(np.ones((1, 4)), p, zero, chunk=0), "chunk must be at least 1, got 0"),
        (lambda: replace(p, d=np.ones(3)), r"d must have shape \(8\), got \(3,\)"),
        (lambda: replace(p, a=-p.a), "a must be negative .* maximum is 16.0"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
