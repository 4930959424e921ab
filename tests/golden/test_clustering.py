"""Cluster table compared with a plain Python version of the paper's rules."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden.clustering import ClusterRule, ClusterTable


class Plain:
    """One token at a time, one candidate at a time, Python integers only."""

    def __init__(self, rule):
        self.rule, self.table, self.n = rule, [], 0

    def add(self, code):
        rule = self.rule
        window = [
            k
            for k, entry in enumerate(self.table)
            if not rule.window_tokens or entry["first_token"] >= self.n - rule.window_tokens
        ]
        open_ = [k for k in window if self.table[k]["tc"] < rule.max_cluster_tokens]
        distance = {k: bin(self.table[k]["hash"] ^ code).count("1") for k in open_}
        match = [
            k
            for k in open_
            if distance[k] < rule.hamming_threshold
            or (rule.hamming_inclusive and distance[k] == rule.hamming_threshold)
        ]
        full = len(window) == rule.max_candidates or len(self.table) == rule.max_clusters
        opened, d = False, 0
        if match:
            k = match[0] if rule.first_match else min(match, key=lambda k: (distance[k], k))
            d = distance[k]
        elif not full:
            k, opened = len(self.table), True
            self.table.append({"hash": code, "tc": 0, "first_token": self.n, "codes": []})
        elif open_:
            k = min(open_, key=lambda k: (distance[k], k))
            d = distance[k]
        else:
            k = len(self.table) - 1
        entry = self.table[k]
        entry["tc"] = min(entry["tc"] + 1, rule.max_cluster_tokens)
        entry["codes"].append(code)
        if rule.cluster_hash == "majority":
            votes = [sum(c >> j & 1 for c in entry["codes"]) for j in range(32)]
            entry["hash"] = sum((2 * v > entry["tc"]) << j for j, v in enumerate(votes))
        self.n += 1
        return k, opened, entry["tc"], d, full and not match, len(window)


def stream(rng, n, centers=12, bits=32, flips=4):
    """Codes scattered around centres, so that clusters form."""
    base = rng.integers(0, 2**bits, centers, dtype=np.uint64)
    codes = base[rng.integers(0, centers, n)]
    for _ in range(flips):
        codes ^= np.where(rng.random(n) < 0.6, np.uint64(1) << rng.integers(0, bits, n, dtype=np.uint64), np.uint64(0))
    return codes.astype(np.uint32)


def check_against_plain(rule, codes, steps):
    plain, table = Plain(rule), ClusterTable(rule)
    at = 0
    for size in steps:
        part = codes[at : at + size]
        at += size
        got = table.assign(part)
        rows = zip(got.cluster, got.opened, got.count, got.distance, got.overflow, got.compared, strict=True)
        assert [tuple(map(int, row)) for row in rows] == [tuple(map(int, plain.add(int(c)))) for c in part]
    assert table.codes.tolist() == [entry["hash"] for entry in plain.table]
    assert table.counts.tolist() == [entry["tc"] for entry in plain.table]
    assert table.first_token.tolist() == [entry["first_token"] for entry in plain.table]


RULES = {
    "default": {},
    "le": {"hamming_inclusive": True},
    "first": {"first_match": True},
    "all": {"window_tokens": 0},
    "window": {"window_tokens": 50},
    "window of one": {"window_tokens": 1},
    "window, first": {"window_tokens": 300, "first_match": True},
    "saturated": {"max_cluster_tokens": 5},
    "every token alone": {"max_cluster_tokens": 1},
    "nothing matches": {"hamming_threshold": 0},
    "all match": {"hamming_threshold": 33},
    "full table": {"max_candidates": 8, "hamming_threshold": 4},
    "full table, saturated": {"max_candidates": 4, "hamming_threshold": 2, "max_cluster_tokens": 9},
    "full table, first": {"max_candidates": 8, "hamming_threshold": 3, "first_match": True},
    "full table in a window": {"max_candidates": 8, "hamming_threshold": 3, "window_tokens": 40},
    "cluster numbers exhausted": {"max_clusters": 10, "hamming_threshold": 3, "window_tokens": 60},
    "majority": {"cluster_hash": "majority"},
}


@pytest.mark.parametrize("name", RULES)
def test_matches_plain_rules(name, rng):
    check_against_plain(ClusterRule(**RULES[name]), stream(rng, 700), [10, 1, 300, 0, 389])


@settings(derandomize=True, database=None, deadline=None, max_examples=150)
@given(
    codes=st.lists(st.integers(0, 63), max_size=60),
    th=st.integers(0, 6),
    window=st.integers(1, 20),
    max_cluster_tokens=st.integers(1, 6),
    capacity=st.one_of(st.none(), st.integers(1, 6)),
    compare=st.booleans(),
    rule=st.booleans(),
)
def test_matches_plain_rules_on_small_streams(codes, th, window, max_cluster_tokens, capacity, compare, rule):
    cluster_rule = ClusterRule(
        hamming_threshold=th,
        window_tokens=window,
        max_cluster_tokens=max_cluster_tokens,
        max_candidates=capacity,
        hamming_inclusive=compare,
        first_match=rule,
    )
    check_against_plain(cluster_rule, np.array(codes, np.uint32), [len(codes)])


@settings(derandomize=True, database=None, deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), cut=st.lists(st.integers(1, 90), min_size=1, max_size=6))
def test_invariants(seed, cut):
    """Counts sum to the tokens, no join at or above the threshold, and steps may be cut anywhere."""
    codes = stream(np.random.default_rng(seed), sum(cut))
    single, split = ClusterTable(), ClusterTable()
    once = single.assign(codes)
    at = np.cumsum([0, *cut])
    steps = [split.assign(codes[a:b]) for a, b in itertools.pairwise(at)]
    assert single.counts.sum() == len(codes)
    assert (once.distance < 7).all()
    assert np.concatenate([p.cluster for p in steps]).tolist() == once.cluster.tolist()
    assert (np.diff(single.first_token) > 0).all()


def test_rehash_replaces_codes():
    table = ClusterTable()
    table.assign(np.array([0, 0xFFFFFFFF], np.uint32))
    table.rehash(np.array([1]), np.array([3], np.uint32))
    assert table.assign(np.array([3], np.uint32)).cluster.tolist() == [1]  # cluster 0 is 2 away, cluster 1 now 0
    assert table.codes.tolist() == [0, 3]


@pytest.mark.parametrize(
    "change",
    [
        {"hamming_threshold": -1},
        {"hamming_inclusive": 1},
        {"first_match": "first"},
        {"max_cluster_tokens": 0},
        {"window_tokens": -1},
        {"max_candidates": 0},
    ],
)
def test_invalid_rules_raise(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        ClusterRule(**change)


def test_non_integer_codes_raise():
    with pytest.raises(TypeError, match="codes"):
        ClusterTable().assign(np.array([0.5]))
