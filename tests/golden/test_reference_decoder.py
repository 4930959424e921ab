"""The small decoder compared with loops over tokens, heads and layers, and its batching."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden import rope
from golden.reference_decoder import (
    Decoder,
    DecoderConfig,
    KVCache,
    attention,
    attention_weights,
    causal,
    silu,
    softmax,
)


def plain_attention(q, keys, values):
    """Attention of one query (d,) over `keys` and `values`, term by term."""
    scores = [math.fsum(float(a) * float(b) for a, b in zip(q, k, strict=True)) / math.sqrt(len(q)) for k in keys]
    top = max(scores)
    weights = [math.exp(s - top) for s in scores]
    total = math.fsum(weights)
    return [math.fsum(w * float(v[i]) for w, v in zip(weights, values, strict=True)) / total for i in range(len(q))]


def plain_prefill(decoder, x, positions):
    """Hidden states of a sequence, computed token by token and head by head."""
    c = decoder.config
    for w in decoder.weights:
        normed = [row / math.sqrt(float(np.mean(row**2)) + 1e-6) for row in x]

        def heads(row, name, position, w=w):
            flat = row @ w[name]
            split = [flat[i : i + c.d] for i in range(0, len(flat), c.d)]
            if name == "v":
                return split
            return [rope.rotate(h, position, c.theta, c.sections, c.layout) for h in split]

        k = [heads(row, "k", p) for row, p in zip(normed, positions, strict=True)]
        v = [heads(row, "v", p) for row, p in zip(normed, positions, strict=True)]
        out = []
        for t, row in enumerate(normed):
            mixed = []
            for a, q in enumerate(heads(row, "q", positions[t])):
                h = a // (c.q_heads // c.kv_heads)
                mixed += plain_attention(q, [k[s][h] for s in range(t + 1)], [v[s][h] for s in range(t + 1)])
            y = x[t] + np.array(mixed) @ w["o"]
            n = y / math.sqrt(float(np.mean(y**2)) + 1e-6)
            gate = n @ w["gate"]
            out.append(y + (gate / (1 + np.exp(-gate)) * (n @ w["up"])) @ w["down"])
        x = np.array(out)
    return x


@pytest.mark.parametrize("sections", [None, (1, 2, 1)], ids=["rope", "m-rope"])
def test_decoder_matches_plain_loops(rng, sections):
    config = DecoderConfig(layers=3, sections=sections)
    decoder = Decoder(config, rng)
    x = rng.standard_normal((7, config.hidden))
    positions = np.arange(7) * 2 if sections is None else rng.integers(0, 9, (7, 3))
    got = decoder.prefill(x, positions, KVCache.empty(config))
    np.testing.assert_allclose(got, plain_prefill(decoder, x, positions), atol=1e-11)


@settings(derandomize=True, database=None, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), cuts=st.lists(st.integers(0, 12), max_size=4))
def test_result_is_independent_of_batching(seed, cuts):
    rng = np.random.default_rng(seed)
    decoder = Decoder(DecoderConfig(), rng)
    x = rng.standard_normal((12, 32))
    full = KVCache.empty(decoder.config)
    wanted = decoder.prefill(x, np.arange(12), full)
    parts, cache = [], KVCache.empty(decoder.config)
    edges = sorted({0, 12, *cuts})
    for low, high in pairwise(edges):
        parts.append(decoder.prefill(x[low:high], np.arange(low, high), cache))
    np.testing.assert_allclose(np.concatenate(parts), wanted, atol=1e-11)
    for layer in range(2):
        np.testing.assert_allclose(cache.k[layer], full.k[layer], atol=1e-11)
        np.testing.assert_allclose(cache.v[layer], full.v[layer], atol=1e-11)


def test_attention_over_a_mask_matches_loops(rng):
    q, k, v = rng.standard_normal((3, 4, 6)), rng.standard_normal((5, 2, 6)), rng.standard_normal((5, 2, 6))
    allowed = rng.random((3, 5)) < 0.5
    allowed[:, 2] = True
    got = attention(q, k, v, allowed)
    for t in range(3):
        seen = np.flatnonzero(allowed[t])
        for a in range(4):
            wanted = plain_attention(q[t, a], k[seen, a // 2], v[seen, a // 2])
            np.testing.assert_allclose(got[t, a], wanted, atol=1e-12)
    weights = attention_weights(q, k, allowed)
    np.testing.assert_allclose(weights.sum(axis=-1), 1)
    assert (weights[:, ~allowed] == 0).all()


def test_small_functions():
    assert causal(2, 4).tolist() == [[True, True, True, False], [True] * 4]
    assert silu(np.array([0.0, 1.0])).tolist() == [0.0, 1 / (1 + math.exp(-1))]
    np.testing.assert_allclose(softmax(np.array([1e6, 1e6, -np.inf])), [0.5, 0.5, 0])


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: DecoderConfig(q_heads=3), "q_heads must be a multiple of kv_heads = 2, got 3"),
        (lambda: DecoderConfig(d=7), "d must be even, got 7"),
        (lambda: DecoderConfig(sections=(1, 1, 1)), "sections must sum to d/2 = 4"),
        (lambda: DecoderConfig(layers=0), "layers must be at least 1, got 0"),
        (lambda: attention(np.ones((1, 3, 2)), np.ones((1, 2, 2)), np.ones((1, 2, 2))), "multiple of the 2 KV heads"),
        (lambda: attention(np.ones((1, 2, 2)), np.ones((1, 2, 2)), np.ones((2, 2, 2))), r"v must have shape"),
        (
            lambda: attention_weights(np.ones((1, 1, 2)), np.ones((2, 1, 2)), np.ones((1, 1), bool)),
            r"allowed must have shape \(1, 2\), got \(1, 1\)",
        ),
        (
            lambda: attention_weights(np.ones((2, 1, 2)), np.ones((1, 1, 2)), np.array([[True], [False]])),
            "got none for query 1",
        ),
        (
            lambda: Decoder(DecoderConfig(), np.random.default_rng(0)).prefill(
                np.ones((2, 32)), np.arange(3), KVCache.empty(DecoderConfig())
            ),
            r"positions must be one per row of x \(2\), got shape \(3,\)",
        ),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def contents(cache):
    return [[x.tolist() for x in side] for side in (cache.k, cache.v)]


@pytest.mark.parametrize(
    ("x", "positions", "cache", "words"),
    [
        (np.ones((0, 32)), np.zeros(0), None, "x must hold at least one token, got none"),
        (np.ones((2, 31)), np.arange(2), None, r"x must have shape \(any, 32\), got \(2, 31\)"),
        (np.ones((2, 32)), np.array([0, np.nan]), None, "positions must be finite"),
        (np.ones((2, 32)), np.arange(2), KVCache.empty(DecoderConfig(layers=1), 3), "cache must have 2 layers, got 1"),
        (
            np.ones((2, 32)),
            np.arange(2),
            KVCache([np.zeros((3, 2, 8)), np.zeros((3, 2, 7))], [np.zeros((3, 2, 8))] * 2),
            r"cache.k\[1\] must have shape \(3, 2, 8\), got \(3, 2, 7\)",
        ),
        (
            np.ones((2, 32)),
            np.arange(2),
            KVCache([np.zeros((3, 2, 8))] * 2, [np.zeros((3, 2, 8)), np.zeros((4, 2, 8))]),
            r"cache.v\[1\] must have shape \(3, 2, 8\), got \(4, 2, 8\)",
        ),
    ],
)
def test_refused_prefill_does_not_change_the_cache(x, positions, cache, words):
    decoder = Decoder(DecoderConfig(), np.random.default_rng(0))
    cache = cache or KVCache.empty(DecoderConfig(), 3)
    before = contents(cache)
    with pytest.raises(ValueError, match=words):
        decoder.prefill(x, positions, cache)
    assert contents(cache) == before


def test_no_tokens_reach_no_layer(rng):
    decoder = Decoder(DecoderConfig(), rng)
    with pytest.raises(ValueError, match="x must hold at least one token, got none"):
        decoder.run(np.ones((0, 32)), np.zeros(0), lambda _: pytest.fail("a layer ran"))


def test_weights_of_the_caller_are_used(rng):
    config = DecoderConfig(layers=2)
    random = Decoder(config, rng)
    same = Decoder(config, weights=random.weights)
    x, positions = rng.standard_normal((5, 32)), np.arange(5)
    results = [d.prefill(x, positions, KVCache.empty(config)) for d in (random, same)]
    np.testing.assert_array_equal(*results)
    random.weights[0]["q"][:] = 0
    assert same.weights[0]["q"].any(), "the decoder has its own copy"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: w[:1], "weights must have one entry for each of 2 layers, got 1"),
        (
            lambda w: [w[0], {k: v for k, v in w[1].items() if k != "gate"}],
            r"weights\[1\] must have the keys .* lacks gate",
        ),
        (lambda w: [{**w[0], "up": w[0]["up"][1:]}, w[1]], r"weights\[0\]\['up'\] must have shape \(32, 64\)"),
        (lambda w: [{**w[0], "o": w[0]["o"] * np.nan}, w[1]], r"weights\[0\]\['o'\] must be finite"),
        (lambda w: [{**w[0], "bias": w[0]["o"]}, w[1]], r"weights\[0\] must have the keys .* got bias"),
    ],
)
def test_wrong_weights_of_the_caller_are_named(change, words, rng):
    weights = Decoder(DecoderConfig(), rng).weights
    with pytest.raises(ValueError, match=words):
        Decoder(DecoderConfig(), weights=change(weights))
    for arguments in ({}, {"rng": rng, "weights": weights}):
        with pytest.raises(ValueError, match="one of rng and weights must be set"):
            Decoder(DecoderConfig(), **arguments)
