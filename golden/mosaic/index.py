"""Semantic clusters of one layer (Mosaic, Algorithm 1): online assignment, deferred splits, residency, selection."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from golden import ranking
from golden.mosaic.statistics import MosaicConfig, absorb, cosines, kmeans, nearest, spread, threshold
from util import checks

UNIT_ERROR = 1e-6  # largest deviation of an entry's length from 1, so that entries can be rounded to float32


@dataclass
class MosaicCluster:
    """Cluster of similar entries of one visual partition.

    members   entry ids, ascending
    size      tokens of the members; mean (D,) and variance are their statistics
    lazy      True: an entry that makes the cluster invalid arrived while it was offloaded; it is split at its next use
    buffer    clusters that hold such entries until then; `parent` is the inverse relation
    """

    partition: int
    members: list[int]
    size: int
    mean: np.ndarray
    variance: float
    parent: int | None = None
    lazy: bool = False
    buffer: list[int] = field(default_factory=list)


class SemanticIndex:
    """Clusters of unit entries (D,), with an LRU model of the clusters in device memory.

    `max_resident_tokens` limits the tokens of resident clusters; None: no limit. The statistics of all clusters stay on
    the device, so that an offloaded cluster can absorb an entry, but cannot be split (Mosaic, Algorithm 1).

    A refused call changes nothing: ValueError for a wrong entry, token, query or number, KeyError for a cluster or a
    partition that does not exist.

    Counters: `splits`, `deferred` (entries that waited for a split), `loads` (offloaded clusters that were loaded),
    `moves` (clusters cut or moved by a split of their visual partition).
    """

    def __init__(self, config: MosaicConfig, max_resident_tokens: int | None = None):
        if max_resident_tokens is not None:
            checks.integer("max_resident_tokens", max_resident_tokens, 1)
        self.config = config
        self.max_resident_tokens = max_resident_tokens
        self.clusters: dict[int, MosaicCluster] = {}
        self.partitions: dict[int, list[int]] = {}  # ids of its clusters, ascending
        self.splits = self.deferred = self.loads = self.moves = 0
        self._entries: list[np.ndarray] = []
        self._tokens: list[np.ndarray] = []  # token ids of each entry
        self._resident: dict[int, int] = {}  # tokens of each, least recently used first
        self._n_resident = 0  # tokens in all of them
        self._next_id = 0

    # -- what it holds

    def tokens(self, cluster: int) -> np.ndarray:
        """Token ids of a cluster, int64 ascending."""
        return np.concatenate([self._tokens[entry] for entry in self._cluster(cluster).members])

    def resident(self, cluster: int) -> bool:
        """True if the cluster is in device memory."""
        return cluster in self._resident

    def offload(self, cluster: int) -> None:
        """Move a cluster out of device memory."""
        self._cluster(cluster)
        self._n_resident -= self._resident.pop(cluster, 0)

    # -- growing

    def seed(self, partition: int, x: np.ndarray, tokens: Iterable[np.ndarray], k: int) -> None:
        """Divide the first entries `x` (n, D) of a new partition into `k` clusters by spherical K-means."""
        checks.integer("partition", partition)
        labels = kmeans(x, k, self.config.kmeans_iters)
        entries = [self._entry(row) for row in x]
        token_ids = [_token_ids(ids) for ids in tokens]
        if len(token_ids) != len(entries):
            raise ValueError(f"tokens must have one array for each of {len(entries)} entries, got {len(token_ids)}")
        first = len(self._entries)
        self._entries.extend(entries)
        self._tokens.extend(token_ids)
        self.partitions.setdefault(partition, [])
        for label in range(labels.max() + 1):
            self._open(partition, (first + np.flatnonzero(labels == label)).tolist())

    def add(self, partition: int, x: np.ndarray, tokens: np.ndarray) -> None:
        """Add one unit entry `x` (D,) with its tokens to a partition; a missing partition is created."""
        checks.integer("partition", partition)
        x, tokens = self._entry(x), _token_ids(tokens)
        entry = len(self._entries)
        self._entries.append(x)
        self._tokens.append(tokens)
        ids = self._assignable(partition)
        if not ids:
            self._open(partition, [entry])
            return
        cluster_id = ids[int(nearest(cosines(x, self._means(ids))))]
        cluster = self.clusters[cluster_id]
        mean, variance = absorb(cluster.mean, cluster.variance, len(cluster.members), x)
        if not self._invalid(variance, len(cluster.members) + 1):
            cluster.mean, cluster.variance = mean, variance
            cluster.members.append(entry)
            cluster.size += len(tokens)
            if self.resident(cluster_id):
                self._touch(cluster_id)
        elif self.resident(cluster_id):
            cluster.members.append(entry)
            self._split(cluster_id)
        else:
            cluster.lazy = True
            cluster.buffer.append(self._open(partition, [entry], parent=cluster_id))
            self.deferred += 1

    def retrieve(self, cluster: int) -> np.ndarray:
        """Load a cluster and return its token ids, int64 ascending. A deferred split is done first."""
        lazy = self._cluster(cluster).lazy
        if not self.resident(cluster):
            self.loads += 1
        self._touch(cluster)
        if not lazy:
            return self.tokens(cluster)
        children = self._split(cluster)
        return np.sort(np.concatenate([self.tokens(half) for half in children]))

    def divide(self, partition: int, new: int, entries: Iterable[int]) -> None:
        """Move `entries` to partition `new`. A cluster that holds some of them and others is cut in two."""
        if new == partition:
            raise ValueError(f"new must be another partition than {partition}")
        checks.integer("new", new)
        removed_ids = set(entries)
        for cluster in [c for c in self._partition(partition) if self.clusters[c].lazy]:
            if cluster in self.clusters:
                self.retrieve(cluster)
        self.partitions.setdefault(new, [])
        for cluster in list(self.partitions[partition]):
            members = self.clusters[cluster].members
            out = [entry for entry in members if int(self._tokens[entry][0]) in removed_ids]
            if out:
                remaining = [entry for entry in members if int(self._tokens[entry][0]) not in removed_ids]
                self._close(cluster)
                self.moves += 1
                if remaining:
                    self._open(partition, remaining)
                self._open(new, out)

    # -- looking

    def representative(self, partition: int) -> np.ndarray:
        """Mean of the entries of a partition (D,): mean of the cluster means, weighted by size."""
        ids = self._partition(partition)
        sizes = np.array([len(self.clusters[c].members) for c in ids], np.float64)
        return sizes @ self._means(ids) / sizes.sum()

    def select(
        self, query: np.ndarray, budget: int, partition_scores: dict[int, float] | None = None
    ) -> tuple[list[int], list[int]]:
        """Two-stage selection for a query (D,): partitions, then clusters of these partitions within `budget` tokens.

        Both lists are ordered by descending similarity (`golden.ranking`), then by partition and by id. The first
        cluster is always selected; the first one that does not fit ends the selection. `partition_scores` replaces the
        similarities of the first stage. Nothing is loaded or changed.
        """
        query = checks.reals("query", query, len(self._entries[0]) if self._entries else None)
        checks.integer("budget", budget, 0)
        present = sorted(p for p, ids in self.partitions.items() if ids)
        if partition_scores is None:
            scores, scale = self._similarity(query, [self.representative(p) for p in present])
        else:
            if missing := [p for p in present if p not in partition_scores]:
                raise ValueError(f"partition_scores must hold every partition, lacks {missing[0]}")
            scores = checks.reals("partition_scores", [partition_scores[p] for p in present], len(present))
            scale = np.maximum(1, np.abs(scores))
        partitions = [present[i] for i in ranking.largest(scores, self.config.top_visual, scale)]
        ids = [c for p in sorted(partitions) for c in sorted(self.partitions[p])]
        scores, scale = self._similarity(query, [self.clusters[c].mean for c in ids])
        cluster_ids: list[int] = []
        used = 0
        for cluster in (ids[i] for i in ranking.order(scores, scale)):
            size = self.clusters[cluster].size
            if cluster_ids and used + size > budget:
                break
            cluster_ids.append(cluster)
            used += size
        return partitions, cluster_ids

    # -- within

    def _cluster(self, cluster: int) -> MosaicCluster:
        if cluster not in self.clusters:
            raise KeyError(f"no cluster {cluster}")
        return self.clusters[cluster]

    def _partition(self, partition: int) -> list[int]:
        """Ids of the clusters of a partition that has some."""
        if not self.partitions.get(partition):
            raise KeyError(f"no partition {partition}")
        return self.partitions[partition]

    def _entry(self, x: np.ndarray) -> np.ndarray:
        """Check one entry: finite, length 1, as many elements as the other entries."""
        entry = checks.reals("x", x, len(self._entries[0]) if self._entries else None)
        length = float(np.linalg.norm(entry))
        if abs(length - 1) > UNIT_ERROR:
            raise ValueError(f"x must have length 1, got {length}")
        return entry

    def _similarity(self, query: np.ndarray, rows: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Similarities of a query with n rows, float64 (n,), and the scale of each for the comparison."""
        if not rows:
            return np.empty(0), np.empty(0)
        vectors = np.stack(rows)
        if self.config.sim == "dot":
            return vectors @ query, np.linalg.norm(vectors, axis=1) * np.linalg.norm(query)
        return cosines(query, vectors), np.ones(len(rows))

    def _means(self, ids: list[int]) -> np.ndarray:
        return np.stack([self.clusters[c].mean for c in ids])

    def _assignable(self, partition: int) -> list[int]:
        ids = self.partitions.setdefault(partition, [])
        if self.config.buffer_assignable:
            return ids
        return [c for c in ids if self.clusters[c].parent is None]

    def _invalid(self, variance: float, n: int) -> bool:
        return self.config.invalid(variance, threshold(n, self.config))

    def _open(self, partition: int, members: list[int], parent: int | None = None) -> int:
        cluster = self._next_id
        self._next_id += 1
        mean, variance = spread(np.stack([self._entries[entry] for entry in members]))
        size = sum(len(self._tokens[entry]) for entry in members)
        self.clusters[cluster] = MosaicCluster(partition, members, size, mean, variance, parent)
        self.partitions[partition].append(cluster)
        self._touch(cluster)
        return cluster

    def _close(self, cluster: int) -> MosaicCluster:
        self.offload(cluster)
        closed = self.clusters.pop(cluster)
        self.partitions[closed.partition].remove(cluster)
        if closed.parent is not None:
            self.clusters[closed.parent].buffer.remove(cluster)
        return closed

    def _collect(self, cluster: int) -> list[int]:
        """Remove a cluster and its buffered clusters; returns their members, ascending."""
        members = list(self.clusters[cluster].members)
        for waiting in list(self.clusters[cluster].buffer):
            members += self._collect(waiting)
        self._close(cluster)
        return sorted(members)

    def _split(self, cluster: int) -> list[int]:
        """Replace a cluster and its buffered clusters by two; returns the new ids (more if splits are recursive)."""
        old = self.clusters[cluster]
        members = self._collect(cluster)
        labels = kmeans(np.stack([self._entries[entry] for entry in members]), 2, self.config.kmeans_iters)
        self.splits += 1
        children = [
            self._open(
                old.partition, [m for m, label in zip(members, labels, strict=True) if label == half], old.parent
            )
            for half in range(2)
        ]
        if old.parent is not None:
            self.clusters[old.parent].buffer.extend(children)
        if not self.config.split_recursive:
            return children
        final = []
        for half in children:
            child = self.clusters[half]
            split_again = len(child.members) > 1 and self._invalid(child.variance, len(child.members))
            final += self._split(half) if split_again else [half]
        return final

    def _touch(self, cluster: int) -> None:
        """Make a cluster the most recently used; offload the oldest while the limit is exceeded."""
        self._n_resident += self.clusters[cluster].size - self._resident.pop(cluster, 0)
        self._resident[cluster] = self.clusters[cluster].size
        if self.max_resident_tokens is None:
            return
        while self._n_resident > self.max_resident_tokens and (oldest := next(iter(self._resident))) != cluster:
            self.offload(oldest)


def _token_ids(tokens: np.ndarray) -> np.ndarray:
    """Check the tokens of one entry: at least one, strictly ascending."""
    ids = checks.integers("tokens", tokens, None, low=0)
    if not len(ids):
        raise ValueError("tokens must hold at least one token, got none")
    if (np.diff(ids) <= 0).any():
        raise ValueError(f"tokens must be strictly ascending, got {ids.tolist()}")
    return ids
