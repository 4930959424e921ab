"""Mosaic compared with direct forms of its equations, a plain Algorithm 1 and retrieval by brute force."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden.mosaic import (
    MosaicCache,
    MosaicConfig,
    SemanticIndex,
    absorb,
    kmeans,
    query_vector,
    spread,
    threshold,
)

SEEDS = st.integers(0, 2**32 - 1)


def units(rng, n, d=6):
    x = rng.standard_normal((n, d))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def drifting(rng, n, d=6, topics=4, noise=0.25):
    """A stream of unit vectors that stays near one topic for some time and later returns to it."""
    centres = units(rng, topics, d)
    which = np.repeat(rng.integers(0, topics, n // 8 + 1), 8)[:n]
    x = centres[which] + noise * rng.standard_normal((n, d))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


# -- Eq. 1 to 5


@settings(derandomize=True, database=None, deadline=None)
@given(seed=SEEDS, n=st.integers(1, 40))
def test_running_statistics_equal_those_from_scratch(seed, n):
    x = units(np.random.default_rng(seed), n)
    mean, variance = x[0], 0.0
    for i in range(1, n):
        mean, variance = absorb(mean, variance, i, x[i])
    centre = [sum(float(row[j]) for row in x) / n for j in range(x.shape[1])]
    scatter = sum(sum((float(v) - c) ** 2 for v, c in zip(row, centre, strict=True)) for row in x) / n
    np.testing.assert_allclose(mean, centre, atol=1e-13)
    assert variance == pytest.approx(scatter, abs=1e-13)
    assert spread(x)[1] == pytest.approx(scatter, abs=1e-13)
    # unit vectors: the variance is known from the mean alone
    assert variance == pytest.approx(1 - float(mean @ mean), abs=1e-13)


def test_threshold_forms():
    config = MosaicConfig()
    values = [threshold(n, config) for n in range(1, 200)]
    assert values == sorted(values) and config.tau_min < values[0] and values[-1] < config.tau_max
    assert threshold(16, config) == pytest.approx(0.3 - 0.2 / math.e)
    assert threshold(16, replace(config, tau_form="rational")) == pytest.approx(0.2)
    assert threshold(16, replace(config, tau_form="decreasing")) == pytest.approx(0.1 + 0.2 / math.e)


def test_invalid_compare_differs_only_on_the_threshold():
    ge, gt = MosaicConfig(), MosaicConfig(invalid_compare="gt")
    assert ge.invalid(0.2, 0.2) and not gt.invalid(0.2, 0.2)
    assert ge.invalid(0.3, 0.2) and gt.invalid(0.3, 0.2)
    assert not ge.invalid(0.1, 0.2) and not gt.invalid(0.1, 0.2)


# -- K-means


def cos(a, b):
    dot = sum(float(p) * float(q) for p, q in zip(a, b, strict=True))
    norm = math.sqrt(sum(float(p) ** 2 for p in a) * sum(float(q) ** 2 for q in b))
    return dot / norm if norm else 0.0


def first_of(values, key):
    """The lowest of `values` whose key is within 1e-12 of the greatest."""
    best = max(key(v) for v in values)
    return next(v for v in values if key(v) >= best - 1e-12)


def plain_kmeans(x, k, rounds=20):
    k = min(k, len(x))
    seeds = [0]
    while len(seeds) < k:
        rest = [i for i in range(len(x)) if i not in seeds]
        seeds.append(first_of(rest, lambda i: -max(cos(x[i], x[s]) for s in seeds)))
    means = [x[s] for s in seeds]
    labels = None
    for _ in range(rounds):
        new = [first_of(range(k), lambda c, row=row, at=means: cos(row, at[c])) for row in x]
        for c in range(k):
            if c not in new:
                movable = [i for i in range(len(x)) if new.count(new[i]) > 1]
                own = [cos(row, means[label]) for row, label in zip(x, new, strict=True)]
                new[first_of(movable, lambda i, own=own: -own[i])] = c
        if new == labels:
            break
        labels = new
        means = [np.mean([x[i] for i in range(len(x)) if labels[i] == c], axis=0) for c in range(k)]
    return labels


@settings(derandomize=True, database=None, deadline=None)
@given(seed=SEEDS, n=st.integers(1, 24), k=st.integers(1, 6), copies=st.booleans(), rounds=st.integers(1, 20))
def test_kmeans_matches_plain_loops_and_leaves_no_cluster_empty(seed, n, k, copies, rounds):
    rng = np.random.default_rng(seed)
    x = units(rng, n, 3)
    if copies:
        x = x[rng.integers(0, max(1, n // 3), n)]  # many identical entries
    labels = kmeans(x, k, rounds)
    assert labels.tolist() == plain_kmeans(x, k, rounds)
    assert set(labels.tolist()) == set(range(min(k, n)))


def test_kmeans_finds_separate_groups():
    x = np.array([[1, 0, 0], [0, 1, 0], [0.98, 0.199, 0], [0, 0.98, 0.199], [0, 0, 1], [1, 0, 0]])
    assert kmeans(x, 3).tolist() == [0, 1, 0, 1, 2, 0]


# -- Algorithm 1


class Plain:
    """Algorithm 1 for one partition as the paper prints it: sets of entries, statistics from scratch."""

    def __init__(self, config):
        self.config, self.members, self.buffer, self.home = config, {}, {}, {}
        self.x, self.lazy, self.next = [], set(), 0

    def open(self, members, parent=None):
        self.members[self.next], self.buffer[self.next], self.home[self.next] = sorted(members), [], parent
        self.next += 1
        return self.next - 1

    def variance(self, members):
        rows = np.array([self.x[m] for m in members])
        return float(np.mean(np.sum((rows - rows.mean(axis=0)) ** 2, axis=1)))

    def invalid(self, members):
        v, limit = self.variance(members), threshold(len(members), self.config)
        return v >= limit if self.config.invalid_compare == "ge" else v > limit

    def add(self, x, resident):
        """`resident` maps each cluster id to whether it is in memory."""
        self.x.append(x)
        new = len(self.x) - 1
        free = [k for k in sorted(self.members) if self.config.buffer_assignable or self.home[k] is None]
        if not free:
            self.open([new])
            return
        k = first_of(free, lambda c: cos(x, np.mean([self.x[m] for m in self.members[c]], axis=0)))
        if not self.invalid([*self.members[k], new]):
            self.members[k].append(new)
        elif resident(k):
            self.split(k, [new])
        else:
            self.lazy.add(k)
            self.buffer[k].append(self.open([new], k))

    def drain(self, k):
        out = list(self.members[k])
        for s in list(self.buffer[k]):
            out += self.drain(s)
        if self.home[k] is not None:
            self.buffer[self.home[k]].remove(k)
        self.lazy.discard(k)
        del self.members[k], self.buffer[k]
        return out

    def split(self, k, extra=()):
        home = self.home[k]
        everything = sorted([*self.drain(k), *extra])
        labels = plain_kmeans([self.x[m] for m in everything], 2)
        halves = [
            self.open([m for m, own in zip(everything, labels, strict=True) if own == half], home) for half in range(2)
        ]
        if home is not None:
            self.buffer[home] += halves
        if self.config.split_recursive:
            for half in halves:
                if len(self.members[half]) > 1 and self.invalid(self.members[half]):
                    self.split(half)
        return everything

    def retrieve(self, k):
        return self.split(k) if k in self.lazy else list(self.members[k])


@settings(derandomize=True, database=None, deadline=None, max_examples=60)
@given(
    seed=SEEDS,
    n=st.integers(1, 70),
    config=st.builds(
        MosaicConfig,
        tau_form=st.sampled_from(["exp", "rational", "decreasing"]),
        invalid_compare=st.sampled_from(["ge", "gt"]),
        buffer_assignable=st.booleans(),
        split_recursive=st.booleans(),
        tau_min=st.sampled_from([0.0, 0.05, 0.1]),
        tau_max=st.sampled_from([0.1, 0.2, 0.4]),
        lambda_=st.sampled_from([4.0, 16.0]),
    ),
)
def test_algorithm_1_matches_reference(seed, n, config):
    rng = np.random.default_rng(seed)
    x = drifting(rng, n)
    index, plain = SemanticIndex(config), Plain(config)
    for i in range(n):
        for cluster in list(index.clusters):
            if rng.random() < 0.3:
                index.offload(cluster)
        plain.add(x[i], index.resident)
        index.add(0, x[i], np.array([i]))
        if index.clusters and rng.random() < 0.15:
            chosen = int(rng.choice(list(index.clusters)))
            assert index.retrieve(chosen).tolist() == sorted(plain.retrieve(chosen))
        assert {k: c.members for k, c in index.clusters.items()} == plain.members
        assert {k for k, c in index.clusters.items() if c.lazy} == plain.lazy
        # every entry is in exactly one cluster, and the statistics are those of the members
        assert sorted(m for c in index.clusters.values() for m in c.members) == list(range(i + 1))
        for cluster in index.clusters.values():
            mean, variance = spread(x[cluster.members])
            np.testing.assert_allclose(cluster.mean, mean, atol=1e-12)
            assert cluster.variance == pytest.approx(1 - float(mean @ mean), abs=1e-12)
            assert variance == pytest.approx(cluster.variance, abs=1e-12)
            assert cluster.size == len(cluster.members)
            for waiting in cluster.buffer:
                assert cluster.lazy and index.clusters[index.clusters[waiting].parent] is cluster


def two_and_a_stranger(**switches):
    """An offloaded cluster of two, and an entry whose arrival would make it invalid."""
    index = SemanticIndex(MosaicConfig(**switches))
    for i, x in enumerate([[1.0, 0.0], [0.999, 0.0447]]):
        index.add(0, np.array(x) / np.linalg.norm(x), np.array([i]))
    assert list(index.clusters) == [0]
    index.offload(0)
    index.add(0, np.array([0.0, 1.0]), np.array([2]))
    return index


def test_split_of_offloaded_cluster_is_deferred():
    index = two_and_a_stranger()
    assert index.deferred == 1 and index.splits == 0 and index.loads == 0
    assert index.clusters[0].lazy and index.clusters[0].members == [0, 1]
    assert index.retrieve(1).tolist() == [2], "a deferred singleton is retrievable and does not load its parent"
    assert index.clusters[0].lazy
    index.add(0, np.array([0.0, 1.0]), np.array([3]))
    assert index.clusters[2].members == [3], "by default no entry joins a deferred singleton"
    assert index.retrieve(0).tolist() == [0, 1, 2, 3], "one split resolves both deferrals"
    assert index.splits == 1 and index.deferred == 2 and index.loads == 1
    assert sorted(c.members for c in index.clusters.values()) == [[0, 1], [2, 3]]


def test_partition_is_divided_after_deferred_splits():
    index = two_and_a_stranger(buffer_assignable=True)
    index.offload(1)
    index.add(0, np.array([-1.0, 0.0]), np.array([3]))
    assert index.clusters[0].lazy and index.clusters[1].lazy, "a deferred singleton is itself a lazy cluster"
    index.divide(0, 1, [2, 3])
    assert [sorted(t for c in index.partitions[p] for t in index.tokens(c)) for p in (0, 1)] == [[0, 1], [2, 3]]
    assert not any(cluster.lazy for cluster in index.clusters.values())


def test_empty_index_selects_nothing():
    assert SemanticIndex(MosaicConfig()).select(np.array([1.0, 0.0]), 10) == ([], [])


def test_offloaded_clusters_absorb_entries():
    index = two_and_a_stranger()
    index.add(0, np.array([1.0, 0.0]), np.array([3]))
    assert index.clusters[0].members == [0, 1, 3] and not index.resident(0)


def test_resident_cluster_splits_at_once():
    index = SemanticIndex(MosaicConfig())
    for i, x in enumerate([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]):
        index.add(0, np.array(x), np.array([i]))
    assert index.splits == 1 and index.deferred == 0
    assert sorted(c.members for c in index.clusters.values()) == [[0, 1], [2]]


def test_residency_is_lru_within_the_capacity(rng):
    index = SemanticIndex(MosaicConfig(), max_resident_tokens=5)
    used: list[int] = []
    for i, x in enumerate(drifting(rng, 120, noise=0.1)):
        index.add(0, x, np.array([i]))
        if i % 7 == 0:
            chosen = int(rng.choice(list(index.clusters)))
            before = index.resident(chosen)
            loads = index.loads
            index.retrieve(chosen)
            assert index.loads == loads + (not before)
        used = [c for c in index.clusters if index.resident(c)]
        resident_tokens = sum(index.clusters[c].size for c in used)
        assert resident_tokens <= 5 or len(used) == 1
    assert used and len(used) < len(index.clusters)
    index = SemanticIndex(MosaicConfig(), max_resident_tokens=2)
    for p in range(3):
        index.add(p, units(rng, 1)[0], np.array([p]))
    index.retrieve(1)
    index.retrieve(0)
    assert [c for c in range(3) if index.resident(c)] == [0, 1], "cluster 2 is the least recently used"


def test_deferring_saves_splits(rng):
    """Streams that revisit offloaded clusters need fewer splits if splits are deferred (the paper: 42.7 % fewer)."""
    saved = []
    for _ in range(4):
        x = drifting(rng, 1200, d=16, topics=12, noise=0.16)
        eager = SemanticIndex(MosaicConfig())
        lazy = SemanticIndex(MosaicConfig(), max_resident_tokens=64)
        for i, row in enumerate(x):
            eager.add(0, row, np.array([i]))
            lazy.add(0, row, np.array([i]))
            if i % 50 == 49:
                for cluster in lazy.select(row, 64)[1]:
                    if cluster in lazy.clusters:
                        lazy.retrieve(cluster)
        assert lazy.deferred > 0
        saved.append(1 - lazy.splits / eager.splits)
    assert 0.1 < float(np.mean(saved)) < 0.9


# -- selection


@settings(derandomize=True, database=None, deadline=None)
@given(seed=SEEDS, n=st.integers(1, 60), budget=st.integers(1, 80), top=st.integers(1, 4), sim=st.booleans())
def test_selection_matches_brute_force(seed, n, budget, top, sim):
    rng = np.random.default_rng(seed)
    config = MosaicConfig(top_visual=top, sim="dot" if sim else "cosine")
    index = SemanticIndex(config)
    x = drifting(rng, n)
    for i in range(n):
        index.add(int(rng.integers(0, 5)), x[i], np.arange(3 * i, 3 * i + 3))
    query = rng.standard_normal(6)

    def score(v):
        return float(query @ v) if sim else cos(query, v)

    def partition_mean(p):
        return np.mean([x[m] for c in index.partitions[p] for m in index.clusters[c].members], axis=0)

    order = sorted(index.partitions, key=lambda p: (-score(partition_mean(p)), p))[:top]
    ranked = sorted((c for p in order for c in index.partitions[p]), key=lambda c: -score(index.clusters[c].mean))
    wanted: list[int] = []
    for c in ranked:
        if wanted and sum(index.clusters[w].size for w in wanted) + index.clusters[c].size > budget:
            break
        wanted.append(c)
    before = {k: list(c.members) for k, c in index.clusters.items()}
    assert index.select(query, budget) == (order, wanted)
    assert {k: c.members for k, c in index.clusters.items()} == before


def test_ties_order_by_partition_and_id():
    index = SemanticIndex(MosaicConfig(top_visual=2))
    same = np.array([1.0, 0.0])
    for token, partition in enumerate([2, 0, 1]):
        index.add(partition, same, np.array([token]))
    assert index.select(same, 10) == ([0, 1], [1, 2])


@pytest.mark.parametrize("sim", ["cosine", "dot"])
@pytest.mark.parametrize("n", [5, 7, 11, 30])
@pytest.mark.parametrize("d", [3, 20, 80])
def test_identical_clusters_are_selected_by_id(sim, n, d, rng):
    """BLAS gives identical rows products that differ in the last bit."""
    config = MosaicConfig(sim=sim, tau_min=0, tau_max=0, top_visual=n)  # every entry opens a cluster
    same = units(rng, 1, d)[0]
    one, many = SemanticIndex(config), SemanticIndex(config)
    for token in range(n):
        one.add(0, same, np.array([token]))
        one.offload(token)  # the next entry does not split the cluster
        many.add(n - token, same, np.array([token]))
    for query in rng.standard_normal((4, d)):
        assert one.select(query, n) == ([0], sorted(one.clusters))
        assert many.select(query, n) == (list(range(1, n + 1)), list(range(n - 1, -1, -1)))
        assert many.select(query, n, dict.fromkeys(range(n + 1), 0.5))[0] == list(range(1, n + 1))


def test_equal_partition_scores_with_rounding_errors_are_ordered_by_partition():
    index = SemanticIndex(MosaicConfig(top_visual=2))
    for partition in range(3):
        index.add(partition, np.eye(3)[partition], np.array([partition]))
    scores = {0: 0.1 + 0.2, 1: 0.3, 2: 0.1 + 0.2 + 1e-16}
    assert scores[0] > scores[1]
    assert index.select(np.ones(3), 9, {0: 0.3, 1: 0.1 + 0.2, 2: 0.3})[0] == [0, 1]
    assert index.select(np.ones(3), 9, {0: 1e-17, 1: 2e-17, 2: 3e-17})[0] == [0, 1], "similarities of zero"


# -- the complete model


def video(rng, frames, layers=2, tokens=4, heads=2, d=8, scenes=3):
    """Embeddings (F, 5), keys and values (L, F, T, Hkv, d) of a video that cuts between scenes."""
    scene = np.repeat(rng.integers(0, scenes, frames // 4 + 1), 4)[:frames]
    embeddings = units(rng, scenes, 5)[scene] + 0.1 * rng.standard_normal((frames, 5))
    base = rng.standard_normal((layers, scenes, tokens, heads, d))
    keys = base[:, scene] + 0.4 * rng.standard_normal((layers, frames, tokens, heads, d))
    return embeddings, keys, rng.standard_normal(keys.shape)


def fed(rng, frames=24, first=8, capacity=None, **switches):
    embeddings, keys, values = video(rng, frames)
    model = MosaicCache(2, 2, 8, 4, MosaicConfig(**switches), capacity)
    if first:
        model.start(embeddings[:first], keys[:, :first], values[:, :first])
    for f in range(first, frames):
        model.append(embeddings[f], keys[:, f], values[:, f])
    return model, embeddings, keys, values


@pytest.mark.parametrize(
    "switches",
    [
        {},
        {"unit": "frame"},
        {"visual_invalid": "split", "tau_visual": 0.05},
        {"visual_invalid": "split", "tau_visual": 0.05, "unit": "frame"},
        {"tau_visual": 0.01},
        {"sim": "dot", "top_visual": 1, "kmeans_iters": 1},
    ],
    ids=lambda s: ",".join(f"{k}={v}" for k, v in s.items()) or "default",
)
@pytest.mark.parametrize("capacity", [None, 16])
@pytest.mark.parametrize("first", [0, 8])
def test_every_token_in_one_cluster_of_its_partition(rng, switches, capacity, first):
    model, embeddings, _, _ = fed(rng, first=first, capacity=capacity, **switches)
    assert len(model.partition_of) == 24
    for index in model.layers:
        seen = []
        for cluster_id, cluster in index.clusters.items():
            tokens = index.tokens(cluster_id)
            seen += tokens.tolist()
            assert {model.partition_of[t // 4] for t in tokens} == {cluster.partition}
        assert sorted(seen) == list(range(24 * 4))
    for partition, mean in enumerate(model.means):
        mine = [embeddings[f] / np.linalg.norm(embeddings[f]) for f in range(24) if model.partition_of[f] == partition]
        np.testing.assert_allclose(mean, np.mean(mine, axis=0), atol=1e-12)
        assert model.variances[partition] == pytest.approx(1 - float(mean @ mean), abs=1e-12)
    query = rng.standard_normal(16)
    got = model.retrieve(1, query)
    assert len(got.tokens) and (np.diff(got.tokens) > 0).all()


def test_scene_change_opens_partition():
    model = MosaicCache(1, 1, 2, 1)
    key = np.ones((1, 1, 1, 2))
    where = [model.append(np.array(e), key, key) for e in ([1.0, 0], [0.99, 0.1], [0, 1.0], [1.0, 0.05])]
    assert where == [0, 0, 1, 0]


def test_budget_counts_frames_of_tokens(rng):
    model, *_ = fed(rng, budget_frames=2, top_visual=8)
    sizes = [model.layers[0].clusters[c].size for c in model.select(0, rng.standard_normal(16))[1]]
    assert sum(sizes) <= 8 or len(sizes) == 1
    everything, *_ = fed(rng, budget_frames=24, top_visual=99)
    assert everything.retrieve(0, rng.standard_normal(16)).tokens.tolist() == list(range(96))


def test_visual_query_ranks_partitions_by_their_frames(rng):
    model, *_ = fed(rng)
    probe = units(rng, 1, 5)[0]
    partitions, _ = model.select(0, rng.standard_normal(16), probe)
    held = [p for p in range(len(model.means)) if model.layers[0].partitions.get(p)]
    assert partitions == sorted(held, key=lambda p: (-cos(probe, model.means[p]), p))[:4]


def test_prefetch_changes_the_traffic_but_not_the_result(rng):
    q0, q1 = rng.standard_normal((2, 16))
    state = rng.bit_generator.state
    plain, *_ = fed(rng, capacity=16, budget_frames=3)
    rng.bit_generator.state = state
    ahead, *_ = fed(rng, capacity=16, budget_frames=3)
    early = ahead.select(1, q0)[1]
    wanted = plain.retrieve(1, q1)
    got = ahead.retrieve(1, q1, prefetched=early)
    assert got.tokens.tolist() == wanted.tokens.tolist() and got.clusters == wanted.clusters
    assert got.completion == [c for c in got.clusters if c not in early]
    assert set(got.wasted) == set(early) - set(got.clusters)
    assert wanted.completion == wanted.clusters and wanted.wasted == []


def test_query_vector_scores_like_all_heads_on_expanded_keys(rng):
    q, k = rng.standard_normal((3, 8, 4)), rng.standard_normal((2, 4))
    each = [float(q[t, h] @ k[h // 4]) for t in range(3) for h in range(8)]
    assert float(query_vector(q, 2) @ k.ravel()) == pytest.approx(sum(each) / 3)


def test_context_is_representatives_then_tokens_and_window(rng):
    model, _, keys, values = fed(rng)
    flat_keys, flat_values = keys[1].reshape(-1, 2, 8), values[1].reshape(-1, 2, 8)
    k, v = model.context(1, np.array([3, 90]), window=6, representatives=False)
    selected = [3, 90, 91, 92, 93, 94, 95]
    np.testing.assert_array_equal(k, flat_keys[selected])
    np.testing.assert_array_equal(v, flat_values[selected])
    index = model.layers[1]
    k, v = model.context(1, np.array([3]))
    order = sorted((index.tokens(c).tolist() for c in index.clusters), key=min)
    assert len(k) == len(order) + 1
    for row, tokens in enumerate(order):
        np.testing.assert_allclose(k[row], flat_keys[tokens].mean(axis=0), atol=1e-12)
        np.testing.assert_allclose(v[row], flat_values[tokens].mean(axis=0), atol=1e-12)


# -- bad input


def model_of_one_frame():
    model = MosaicCache(1, 1, 2, 1)
    model.append(np.ones(3), np.ones((1, 1, 1, 2)), np.ones((1, 1, 1, 2)))
    return model


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: MosaicConfig(unit="patch"), "unit must be one of frame, token, got 'patch'"),
        (lambda: MosaicConfig(tau_form="log"), "tau_form must be one of decreasing, exp, rational"),
        (lambda: MosaicConfig(invalid_compare="lt"), "invalid_compare must be one of ge, gt"),
        (lambda: MosaicConfig(visual_invalid="drop"), "visual_invalid must be one of new, split"),
        (lambda: MosaicConfig(sim="l2"), "sim must be one of cosine, dot"),
        (lambda: MosaicConfig(tau_min=0.4), "tau_max must be finite and between 0.4 and 1, got 0.3"),
        (lambda: MosaicConfig(lambda_=0), "lambda_ must be positive, got 0"),
        (lambda: MosaicConfig(top_visual=0), "top_visual must be at least 1, got 0"),
        (lambda: SemanticIndex(MosaicConfig(), 0), "max_resident_tokens must be at least 1, got 0"),
        (lambda: kmeans(np.ones((2, 2)), 0), "k must be at least 1, got 0"),
        (lambda: kmeans(np.empty((0, 2)), 1), "x must hold at least one entry"),
        (lambda: query_vector(np.ones((1, 3, 2)), 2), r"a multiple of 2 heads, got shape \(1, 3, 2\)"),
        (lambda: query_vector(np.ones((0, 2, 2)), 2), "q must have tokens"),
        (lambda: MosaicCache(0, 1, 2, 1), "layers must be at least 1, got 0"),
        (lambda: MosaicCache(1, 1, 2, 1).select(0, np.ones(2)), "must hold a frame before a query"),
        (lambda: model_of_one_frame().select(0, np.ones(3)), r"query must have shape \(2\), got \(3,\)"),
        (lambda: model_of_one_frame().select(1, np.ones(2)), "layer must be between 0 and 0, got 1"),
        (lambda: model_of_one_frame().context(0, np.array([1])), "tokens must be between 0 and 0, got 1"),
        (
            lambda: model_of_one_frame().append(np.ones(4), np.ones((1, 1, 1, 2)), np.ones((1, 1, 1, 2))),
            r"embedding must have shape \(3,\), got \(4,\)",
        ),
        (
            lambda: model_of_one_frame().append(np.ones(3), np.zeros((1, 1, 1, 2)), np.ones((1, 1, 1, 2))),
            "keys must not be zero vectors, got one at row 0",
        ),
        (
            lambda: model_of_one_frame().append(np.ones(3), np.full((1, 1, 1, 2), np.nan), np.ones((1, 1, 1, 2))),
            "keys must be finite, got nan",
        ),
        (
            lambda: model_of_one_frame().start(np.ones((1, 3)), np.ones((1, 1, 1, 1, 2)), np.ones((1, 1, 1, 1, 2))),
            "the cache must be empty before start, got 1 frames",
        ),
        (
            lambda: MosaicCache(1, 1, 2, 1).start(np.ones((0, 3)), np.ones((1, 0, 1, 1, 2)), np.ones((1, 0, 1, 1, 2))),
            "embeddings must hold at least one frame",
        ),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_rejected_frame_changes_nothing():
    model = model_of_one_frame()
    with pytest.raises(ValueError, match="keys must be finite"):
        model.append(np.ones(3), np.full((1, 1, 1, 2), np.inf), np.ones((1, 1, 1, 2)))
    assert model.frames == 1 and len(model.layers[0].clusters) == 1
    with pytest.raises(KeyError, match="no cluster 7"):
        model.layers[0].offload(7)


def state_of(index):
    """All that a call of an index can change."""
    return (
        {c: (x.partition, list(x.members), x.size, x.mean.tolist(), x.lazy) for c, x in index.clusters.items()},
        {p: list(ids) for p, ids in index.partitions.items()},
        (index.splits, index.deferred, index.loads, index.moves),
        (len(index._entries), len(index._tokens), dict(index._resident), index._n_resident, index._next_id),
    )


ENTRY = np.array([0.6, 0.8, 0.0])
BAD_CALLS = [
    (lambda i: i.add(0, np.array([np.nan, 1, 0]), np.array([5])), r"x must be finite, got nan at index \(0,\)"),
    (lambda i: i.add(0, np.array([3.0, 4, 0]), np.array([5])), "x must have length 1, got 5.0"),
    (lambda i: i.add(0, np.zeros(3), np.array([5])), "x must have length 1, got 0.0"),
    (lambda i: i.add(0, np.array([0.6, 0.8]), np.array([5])), r"x must have shape \(3\), got \(2,\)"),
    (lambda i: i.add(9, np.array([0.6, 0.8]), np.array([5])), r"x must have shape \(3\), got \(2,\)"),
    (lambda i: i.add(0, ENTRY[None], np.array([5])), r"x must have shape \(3\), got \(1, 3\)"),
    (lambda i: i.add(0, ENTRY, np.array([], int)), "tokens must hold at least one token, got none"),
    (lambda i: i.add(0, ENTRY, np.array([-5])), "tokens must be at least 0, got -5"),
    (lambda i: i.add(0, ENTRY, np.array([6, 5])), r"tokens must be strictly ascending, got \[6, 5\]"),
    (lambda i: i.add(0, ENTRY, np.array([5.5])), "tokens must be an array of integers"),
    (lambda i: i.add("a", ENTRY, np.array([5])), "partition must be an integer, got 'a'"),
    (lambda i: i.seed(9, np.zeros((0, 3)), [], 2), "x must hold at least one entry, got none"),
    (lambda i: i.seed(9, ENTRY[None], [], 2), "tokens must have one array for each of 1 entries, got 0"),
    (lambda i: i.seed(9, 2 * ENTRY[None], [np.array([5])], 2), "x must have length 1, got 2.0"),
    (lambda i: i.seed(9, np.ones((1, 1)), [np.array([5])], 2), r"x must have shape \(3\), got \(1,\)"),
    (lambda i: i.seed(9, ENTRY[None], [np.array([5])], 0), "k must be at least 1, got 0"),
    (lambda i: i.divide(0, 0, [1]), "new must be another partition than 0"),
    (lambda i: i.select(np.full(3, np.nan), 5), "query must be finite"),
    (lambda i: i.select(np.ones(2), 5), r"query must have shape \(3\), got \(2,\)"),
    (lambda i: i.select(np.ones(3), -1), "budget must be at least 0, got -1"),
    (lambda i: i.select(np.ones(3), 5, {7: 1.0}), "partition_scores must hold every partition, lacks 0"),
    (lambda i: i.select(np.ones(3), 5, {0: np.nan}), "partition_scores must be finite"),
]


@pytest.mark.parametrize(("call", "words"), BAD_CALLS, ids=[f"{i}" for i in range(len(BAD_CALLS))])
def test_refused_call_of_the_index_changes_nothing(call, words):
    index = SemanticIndex(MosaicConfig())
    index.add(0, np.array([1.0, 0, 0]), np.array([0, 1]))
    before = state_of(index)
    with pytest.raises(ValueError, match=words):
        call(index)
    assert state_of(index) == before
    with pytest.raises(ValueError, match="x must"):
        SemanticIndex(MosaicConfig()).add(0, np.array([]), np.array([0]))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda i: i.retrieve(7), "no cluster 7"),
        (lambda i: i.tokens(7), "no cluster 7"),
        (lambda i: i.offload(7), "no cluster 7"),
        (lambda i: i.representative(7), "no partition 7"),
        (lambda i: i.divide(7, 8, [0]), "no partition 7"),
    ],
)
def test_unknown_cluster_and_partition_change_nothing(call, words):
    index = SemanticIndex(MosaicConfig())
    index.add(0, np.array([1.0, 0, 0]), np.array([0, 1]))
    before = state_of(index)
    with pytest.raises(KeyError, match=words):
        call(index)
    assert state_of(index) == before


def test_reads_of_an_empty_cache_are_named():
    model = MosaicCache(1, 1, 2, 1)
    for call in (
        lambda: model.kv(0),
        lambda: model.representatives(0),
        lambda: model.context(0, np.array([], int)),
        lambda: model.retrieve(0, np.ones(2)),
    ):
        with pytest.raises(ValueError, match="the cache must hold a frame before a query, got an empty cache"):
            call()


def test_prefetch_of_unknown_clusters_is_refused(rng):
    model, *_ = fed(rng)
    before = state_of(model.layers[0])
    for prefetched, message in (([-1], "prefetched must be at least 0, got -1"), ([0.5], "array of integers")):
        with pytest.raises(ValueError, match=message):
            model.retrieve(0, rng.standard_normal(16), prefetched=prefetched)
    assert state_of(model.layers[0]) == before


def test_identical_frames_rank_their_partitions_by_number(rng):
    """Partitions of one scene have identical means, for keys and for the visual query."""
    model = MosaicCache(1, 1, 8, 1, MosaicConfig(tau_visual=0, top_visual=3))
    same, key, value = rng.standard_normal(7), rng.standard_normal((1, 1, 1, 8)), np.ones((1, 1, 1, 8))
    for _ in range(9):
        model.append(same, key, value)
    for query in rng.standard_normal((5, 8)):
        assert model.select(0, query)[0] == [0, 1, 2]
        assert model.select(0, query, rng.standard_normal(7))[0] == [0, 1, 2]
