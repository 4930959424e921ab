"""Each selection rule on small random tensors, compared with loops over Python lists."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden import baselines

SETTINGS = settings(derandomize=True, database=None, deadline=None, max_examples=60)


def best(scores, k):
    return sorted(sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:k])


def best_first(scores):
    return sorted(range(len(scores)), key=lambda i: (-scores[i], i))


def dot(a, b):
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("threshold, budget", [(4.0, None), (4.0, 30), (1e6, 2)])
def test_infinigen(tokens, threshold, budget, rng):
    """Without a budget, with one that is never reached, and with one that is below the number above the threshold."""
    q, k = rng.standard_normal((tokens, 4, 20)) * 1.5, rng.standard_normal((30, 2, 20))
    columns = baselines.infinigen_columns(q, 0.3)
    assert columns.shape == (4, 6)
    for a in range(4):
        assert columns[a].tolist() == best([math.fsum(abs(q[t, a, i]) for t in range(tokens)) for i in range(20)], 6)
    score = [
        [[dot(q[t, a, columns[a]], k[n, a // 2, columns[a]]) for n in range(30)] for t in range(tokens)]
        for a in range(4)
    ]
    above = [sum(s > max(row) - threshold for s in row) for head in score for row in head]
    count = min(int(sum(above) / len(above)), budget or 30)
    got = baselines.infinigen(q, k, columns, threshold, budget)
    for a in range(4):
        assert got[a].tolist() == sorted(set().union(*(best(row, count) for row in score[a])))


@pytest.mark.parametrize("chunk", [1, 4])
def test_rekv(chunk, rng):
    sizes = np.array([3, 1, 5, 2, 4, 3, 3])
    keys, q = rng.standard_normal((21, 2, 5)), rng.standard_normal((4, 6, 5))
    blocks = baselines.rekv_blocks(keys, sizes, 3)
    mean_query = [math.fsum(q[t, a, i] for t in range(4)) / 4 for a in range(6) for i in range(5)]
    score, start = [], 0
    for n in sizes:
        block = [math.fsum(keys[start : start + n, a // 3, i]) / n for a in range(6) for i in range(5)]
        score.append(dot(mean_query, block))
        start += n
    chunks = [score[i : i + chunk] for i in range(0, 7, chunk)]
    chosen = best([sum(c) / len(c) for c in chunks], max(1, 4 // chunk))
    expected = [f for c in chosen for f in range(c * chunk, min(7, (c + 1) * chunk))]
    assert baselines.rekv(q, blocks, 4, chunk, complete_chunks=True).tolist() == expected
    assert baselines.rekv(q, blocks[:0], 4).tolist() == []


def test_quest_bounds_and_best_pages(rng):
    q, k = rng.standard_normal((4, 6)), rng.standard_normal((37, 2, 6))
    got = baselines.quest(q, k, budget=20, page=5)
    for a in range(4):
        pages = [k[s : s + 5, a // 2] for s in range(0, 37, 5)]
        bound = [sum(max(x * min(p[:, i]), x * max(p[:, i])) for i, x in enumerate(q[a])) for p in pages]
        assert all(b >= dot(q[a], key) - 1e-12 for b, p in zip(bound, pages, strict=True) for key in p)
        assert got[a].tolist() == [n for p in best(bound, 4) for n in range(5 * p, min(37, 5 * p + 5))]
    assert len(baselines.quest(q, k, budget=1, page=5)[0]) >= 3 * 5 - 3  # never fewer than three pages
    assert baselines.quest(q, k[:0], 8)[0].tolist() == []


def test_retroinfer_sums_the_softmax_of_the_group(rng):
    q, c = rng.standard_normal((2, 4, 6)), rng.standard_normal((11, 2, 6))
    got = baselines.retroinfer(q, c, 3)
    for h in range(2):
        mass = [0.0] * 11
        for t in range(2):
            for a in (2 * h, 2 * h + 1):
                e = [math.exp(dot(q[t, a], c[j, h]) / math.sqrt(6)) for j in range(11)]
                mass = [m + x / sum(e) for m, x in zip(mass, e, strict=True)]
        assert got[h].tolist() == best(mass, 3)


def test_cacheblend_selects_largest_value_changes(rng):
    old = rng.standard_normal((50, 2, 4))
    new = old.copy()
    new[[3, 17, 40]] += 5
    assert baselines.cacheblend(new, old, suffix=5, ratio=0.07).tolist() == [3, 17, 40, 45, 46, 47, 48, 49]
    assert len(baselines.cacheblend(new, old, suffix=0)) == int(50 * 0.16)


@SETTINGS
@given(st.lists(st.integers(0, 60), max_size=8), st.floats(0, 1))
def test_vlcache_selects_first_tokens_of_frames(sizes, ratio):
    got, start, expected = baselines.vlcache(np.array(sizes, np.int64), ratio), 0, []
    for n in sizes:
        expected += range(start, start + math.floor(ratio * n))
        start += n
    assert got.tolist() == expected


def test_infinigen_without_past_selects_nothing(rng):
    queries, columns = rng.standard_normal((2, 4, 8)), np.zeros((4, 3), np.int64)
    selected = baselines.infinigen(queries, np.zeros((0, 2, 8)), columns)
    assert [tokens.tolist() for tokens in selected] == [[]] * 4


# -- ties: identical content has identical ranks, however its scores are rounded

# the sums of these rows are equal real numbers, but the last two are larger in float64
ROTATED = np.array([[0.3, 0.2, 0.1], [0.2, 0.3, 0.1], [0.1, 0.2, 0.3], [0.1, 0.3, 0.2]])


def copies(rng, n, d):
    """One random vector n times; BLAS gives the rows of such a matrix products that differ in the last bit."""
    return np.tile(rng.standard_normal(d), (n, 1))


@pytest.mark.parametrize("n", [5, 7, 11, 33])
@pytest.mark.parametrize("d", [3, 20, 80])
def test_lowest_index_wins_among_identical_vectors(n, d, rng):
    q, same = rng.standard_normal((3, 2, d)), np.repeat(copies(rng, n, d)[:, None], 2, axis=1)
    columns = np.tile(np.arange(d), (2, 1))
    assert [t.tolist() for t in baselines.infinigen(q, same, columns, budget=2)] == [[0, 1]] * 2
    assert baselines.rekv(q, same.reshape(n, -1), 2).tolist() == [0, 1]
    assert [c.tolist() for c in baselines.retroinfer(q, same, 2)] == [[0, 1]] * 2
    assert [t.tolist() for t in baselines.quest(q[0], same, 3, page=1)] == [[0, 1, 2]] * 2


def test_lowest_index_wins_among_equal_sums():
    assert ROTATED.sum(axis=1).argmax() == 2
    q, keys = np.ones((1, 1, 3)), ROTATED[:, None]
    assert baselines.infinigen(q, keys, np.arange(3)[None], budget=1)[0].tolist() == [0]
    assert baselines.rekv(q, ROTATED, 1).tolist() == [0]
    assert baselines.retroinfer(q, keys, 1)[0].tolist() == [0]
    assert baselines.quest(q[0], keys, 1, page=1)[0].tolist() == [0, 1, 2]
    assert baselines.infinigen_columns(ROTATED[:, [2, 1, 0]].T[:, None], 0.25).tolist() == [[0]]
    assert baselines.cacheblend(np.sqrt(ROTATED), np.zeros((4, 3)), 0, 0.25).tolist() == [0]


def test_infinigen_does_not_count_scores_on_the_threshold():
    """Four scores equal the maximum minus alpha, two of them only before rounding."""
    keys = np.concatenate([ROTATED, [[1.2, 0, 0]]])[:, None]
    assert (keys[:, 0].sum(axis=1) > 1.2 - 0.6).sum() == 3
    assert baselines.infinigen(np.ones((1, 1, 3)), keys, np.arange(3)[None], alpha=0.6)[0].tolist() == [4]


def test_retroinfer_ranks_centroids_of_negligible_weight():
    """Weights below the smallest float64 are ranked by their logarithm."""
    centroids = np.array([0.0, -1002.0, -1001.0, -1000.0])[:, None, None]
    assert baselines.retroinfer(np.ones((1, 1, 1)), centroids, 2)[0].tolist() == [0, 3]


# -- boundaries


def test_rekv_retrieves_all_of_at_most_k_frames(rng):
    q, blocks = rng.standard_normal((2, 4, 6)), rng.standard_normal((5, 24))
    for k, chunk in ((5, 4), (5, 2), (6, 4), (9, 7), (5, 1)):
        assert baselines.rekv(q, blocks, k, chunk).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("k", range(1, 12))
@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 5])
def test_rekv_retrieves_exactly_k_frames(k, chunk, rng):
    q, blocks = rng.standard_normal((2, 4, 6)), rng.standard_normal((11, 24))
    score = blocks @ q.mean(axis=0).ravel()
    chunks = [list(range(i, min(11, i + chunk))) for i in range(0, 11, chunk)]
    ranked = [frame for c in best_first([score[c].mean() for c in chunks]) for frame in chunks[c]]
    assert baselines.rekv(q, blocks, k, chunk).tolist() == sorted(ranked[:k])


def test_rekv_published_rule_retrieves_complete_chunks(rng):
    q = np.ones((1, 1, 1))
    blocks = np.array([1.0, 1, 1, 1, 0, 0, 0, 0, 2])[:, None]  # the last chunk is short and the best one
    assert baselines.rekv(q, blocks, 4, 4, complete_chunks=True).tolist() == [8]
    assert baselines.rekv(q, blocks, 6, 4, complete_chunks=True).tolist() == [8]
    assert baselines.rekv(q, blocks, 8, 4, complete_chunks=True).tolist() == [0, 1, 2, 3, 8]
    assert baselines.rekv(q, blocks, 9, 4, complete_chunks=True).tolist() == list(range(9))
    assert baselines.rekv(q, blocks, 4, 4).tolist() == [0, 1, 2, 8]


@pytest.mark.parametrize("shape", [(5, 2, 6), (5,), (0, 2, 6), (0,), (4, 0)])
def test_cacheblend_without_prefix_recomputes_the_suffix(shape):
    new = np.ones(shape)
    assert baselines.cacheblend(new, new, suffix=len(new)).tolist() == list(range(len(new)))
    assert baselines.cacheblend(new, new, suffix=0).dtype == np.int64


EMPTY = [
    ("queries must hold at least one token, got none", lambda q, k: baselines.infinigen_columns(q[:0])),
    ("queries must hold at least one token", lambda q, k: baselines.infinigen(q[:0], k, np.zeros((4, 2), int))),
    ("queries must hold at least one token", lambda q, k: baselines.rekv(q[:0], np.ones((2, 24)), 1)),
    ("queries must hold at least one token", lambda q, k: baselines.retroinfer(q[:0], k, 1)),
    ("queries must have a multiple of 2 heads, got 0", lambda q, k: baselines.retroinfer(q[:, :0], k, 1)),
    (
        "queries must have a multiple of 2 heads, got 0",
        lambda q, k: baselines.infinigen(q[:, :0], k, np.zeros((0, 2), int)),
    ),
    ("queries must have at least one head, got none", lambda q, k: baselines.rekv(q[:, :0], np.ones((2, 0)), 1)),
    ("query must have a multiple of 2 heads, got 3", lambda q, k: baselines.quest(q[0, :3], k, 8)),
    ("query must have a multiple of 2 heads, got 3", lambda q, k: baselines.quest(q[0, :3], k[:0], 8)),
    ("query must have a multiple of 2 heads, got 1", lambda q, k: baselines.quest(q[0, :1], k, 8)),
    ("query must have a multiple of 0 heads, got 4", lambda q, k: baselines.quest(q[0], k[:, :0], 8)),
    ("k must be at least 1, got 0", lambda q, k: baselines.rekv(q, np.ones((0, 24)), 0)),
    (
        "alpha must be finite and at least 0, got -1",
        lambda q, k: baselines.infinigen(q, k[:0], np.zeros((4, 2), int), -1),
    ),
    (
        "budget must be at least 0, got -1",
        lambda q, k: baselines.infinigen(q, k[:0], np.zeros((4, 2), int), budget=-1),
    ),
    ("suffix must be between 0 and 0, got 1", lambda q, k: baselines.cacheblend(k[:0], k[:0], 1)),
    ("ratio must be finite and between 0 and 1, got 2", lambda q, k: baselines.cacheblend(k, k, 5, 2)),
]


@pytest.mark.parametrize(("message", "call"), EMPTY, ids=[f"{i}" for i in range(len(EMPTY))])
def test_empty_and_indivisible_input_is_named(message, call, rng):
    with pytest.raises(ValueError, match=message):
        call(rng.standard_normal((2, 4, 6)), rng.standard_normal((5, 2, 6)))


def test_bad_input_is_named(rng):
    q, k = rng.standard_normal((1, 4, 6)), rng.standard_normal((5, 2, 6))
    cases = (
        (lambda: baselines.infinigen(q, rng.standard_normal((5, 3, 6)), np.zeros((4, 2), int)), "multiple of 3 heads"),
        (lambda: baselines.infinigen(q, k, np.full((4, 1), 6)), "columns must be between 0 and 5, got 6"),
        (lambda: baselines.rekv_blocks(k, np.array([4]), 2), "sizes must sum to the 5 keys, got 4"),
        (lambda: baselines.rekv(q, np.ones((2, 23)), 1), r"blocks must have shape \(any, 24\)"),
        (lambda: baselines.quest(q[0], k, 0), "budget must be at least 1, got 0"),
        (lambda: baselines.retroinfer(q, k, 0), "probes must be at least 1, got 0"),
        (lambda: baselines.cacheblend(k, k, 6), "suffix must be between 0 and 5, got 6"),
        (lambda: baselines.cacheblend(k, k * np.inf, 0), "cached must be finite"),
        (lambda: baselines.cacheblend(np.float64(3), k, 0), "values must have a row for every token, got a scalar"),
    )
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()
