"""Mosaic cache of one video: visual level, one semantic index per decoder layer, prefetch and attention context."""

from dataclasses import dataclass

import numpy as np

from golden.mosaic.index import SemanticIndex
from golden.mosaic.statistics import (
    MosaicConfig,
    absorb,
    cosines,
    kmeans,
    nearest,
    spread,
    unit_rows,
)
from util import checks

FRAMES_PER_PARTITION = 8  # of the first clustering; the paper leaves both sizes open
TOKENS_PER_CLUSTER = 32


@dataclass(frozen=True)
class Retrieval:
    """Result of one query in one layer.

    tokens      int64 ascending: retrieved tokens, without the local window and the representatives
    clusters    ids in the order of selection, from before any deferred split
    completion  those of them that were not prefetched
    wasted      prefetched clusters that were not selected
    """

    tokens: np.ndarray
    clusters: list[int]
    completion: list[int]
    wasted: list[int]


def query_vector(q: np.ndarray, kv_heads: int) -> np.ndarray:
    """Query tokens `q` (T, Hq, d) as one vector (kv_heads * d,): mean over tokens, sum over each GQA group.

    Its dot product with concatenated keys equals the sum over all query heads with their KV heads.
    """
    q = checks.reals("q", q, None, None, None)
    checks.integer("kv_heads", kv_heads, 1)
    if not q.size or q.shape[1] % kv_heads:
        raise ValueError(f"q must have tokens, elements and a multiple of {kv_heads} heads, got shape {q.shape}")
    return q.mean(axis=0).reshape(kv_heads, -1, q.shape[2]).sum(axis=1).ravel()


class MosaicCache:
    """Cache of one video: `start` with the first frames, `append` the others, `retrieve` for queries.

    Keys and values are (..., T, Hkv, d) with T tokens per frame, keys after RoPE. Every frame has one embedding (E,),
    the mean over its patches. `max_resident_tokens` limits the resident tokens of each layer.
    """

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        d: int,
        tokens_per_frame: int,
        config: MosaicConfig | None = None,
        max_resident_tokens: int | None = None,
    ):
        for name, value in (("layers", layers), ("kv_heads", kv_heads), ("d", d)):
            checks.integer(name, value, 1)
        self.config = config or MosaicConfig()
        self.tokens_per_frame = checks.integer("tokens_per_frame", tokens_per_frame, 1)
        self.kv_heads, self.d = kv_heads, d
        self.layers = [SemanticIndex(self.config, max_resident_tokens) for _ in range(layers)]
        self.partition_of: list[int] = []  # of every frame
        self.means: list[np.ndarray] = []  # of every partition, with its variance
        self.variances: list[float] = []
        self._embeddings: list[np.ndarray] = []
        self._keys: list[list[np.ndarray]] = [[] for _ in range(layers)]
        self._values: list[list[np.ndarray]] = [[] for _ in range(layers)]

    @property
    def frames(self) -> int:
        """Number of frames in the cache."""
        return len(self.partition_of)

    def start(self, embeddings: np.ndarray, keys: np.ndarray, values: np.ndarray) -> None:
        """Cluster the first frames: embeddings (F, E), keys and values (L, F, T, Hkv, d)."""
        if self.frames:
            raise ValueError(f"the cache must be empty before start, got {self.frames} frames")
        x = unit_rows("embeddings", embeddings)
        if len(x) == 0:
            raise ValueError("embeddings must hold at least one frame, got none")
        shape = (len(self.layers), len(x), self.tokens_per_frame, self.kv_heads, self.d)
        keys, values = checks.reals("keys", keys, *shape), checks.reals("values", values, *shape)
        count = max(1, round(len(x) / FRAMES_PER_PARTITION))
        labels = kmeans(x, count, self.config.kmeans_iters)
        entries = [
            [self._units(layer_keys[f]) for f in range(len(x))] for layer_keys in keys
        ]  # raises errors before any state changes
        self.partition_of = labels.tolist()
        self._embeddings = list(x)
        for partition in range(labels.max() + 1):
            partition_frames = np.flatnonzero(labels == partition)
            mean, variance = spread(x[partition_frames])
            self.means.append(mean)
            self.variances.append(variance)
            for index, of_frame in zip(self.layers, entries, strict=True):
                tokens = [chunk for f in partition_frames for chunk in self._token_ids(int(f))]
                size = max(1, round(len(partition_frames) * self.tokens_per_frame / TOKENS_PER_CLUSTER))
                index.seed(partition, np.concatenate([of_frame[f] for f in partition_frames]), tokens, size)
        for layer in range(len(self.layers)):
            self._keys[layer].extend(keys[layer])
            self._values[layer].extend(values[layer])

    def append(self, embedding: np.ndarray, keys: np.ndarray, values: np.ndarray) -> int:
        """Add one frame: embedding (E,), keys and values (L, T, Hkv, d). Returns its partition."""
        x = unit_rows("embedding", checks.reals("embedding", embedding, None)[None])[0]
        if self._embeddings and x.shape != self._embeddings[0].shape:
            raise ValueError(f"embedding must have shape {self._embeddings[0].shape}, got {x.shape}")
        shape = (len(self.layers), self.tokens_per_frame, self.kv_heads, self.d)
        keys, values = checks.reals("keys", keys, *shape), checks.reals("values", values, *shape)
        entries = [self._units(layer_keys) for layer_keys in keys]
        frame = self.frames
        partition = self._assign_partition(x)
        for layer, index in enumerate(self.layers):
            for entry, tokens in zip(entries[layer], self._token_ids(frame), strict=True):
                index.add(partition, entry, tokens)
            self._keys[layer].append(keys[layer])
            self._values[layer].append(values[layer])
        return partition

    def select(
        self, layer: int, query: np.ndarray, visual_query: np.ndarray | None = None
    ) -> tuple[list[int], list[int]]:
        """Partitions and clusters of a layer for a query (Hkv * d,), in the order of selection. Changes nothing.

        With `visual_query` (E,) the first stage ranks partitions by the embeddings of their frames instead of their
        keys. The prefetch of Mosaic selects in layer l + 1 with the query of layer l.
        """
        self._check_not_empty()
        query = checks.reals("query", query, self.kv_heads * self.d)
        scores = None
        if visual_query is not None:
            rows = np.stack(self.means)
            scores = dict(enumerate(cosines(checks.reals("visual_query", visual_query, rows.shape[1]), rows)))
        return self._layer(layer).select(query, self.config.budget_frames * self.tokens_per_frame, scores)

    def retrieve(
        self,
        layer: int,
        query: np.ndarray,
        visual_query: np.ndarray | None = None,
        prefetched: list[int] | None = None,
    ) -> Retrieval:
        """Fetch the clusters that a query (Hkv * d,) selects. `prefetched` changes the traffic, not the result."""
        index = self._layer(layer)
        prefetched_ids = checks.integers("prefetched", prefetched or [], None, low=0).tolist()
        _, clusters = self.select(layer, query, visual_query)
        # a missing cluster was merged into one retrieved before it
        retrievals = [index.retrieve(cluster) for cluster in clusters if cluster in index.clusters]
        return Retrieval(
            np.unique(np.concatenate(retrievals)),
            clusters,
            [c for c in clusters if c not in prefetched_ids],
            [c for c in prefetched_ids if c not in clusters],
        )

    def representatives(self, layer: int) -> tuple[np.ndarray, np.ndarray]:
        """Pseudo tokens, one per cluster: mean key and value (C, Hkv, d), ordered by first token of the cluster."""
        index = self._layer(layer)
        keys, values = self.kv(layer)
        groups = sorted((index.tokens(c) for c in index.clusters), key=lambda tokens: int(tokens[0]))
        return (
            np.stack([keys[tokens].mean(axis=0) for tokens in groups]),
            np.stack([values[tokens].mean(axis=0) for tokens in groups]),
        )

    def kv(self, layer: int) -> tuple[np.ndarray, np.ndarray]:
        """All keys and values of a layer, (N, Hkv, d), in token order."""
        self._layer(layer)
        self._check_not_empty()
        return np.concatenate(self._keys[layer]), np.concatenate(self._values[layer])

    def context(
        self, layer: int, tokens: np.ndarray, window: int = 0, representatives: bool = True
    ) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values (S, Hkv, d) to attend to: representatives, then `tokens` and the last `window` tokens."""
        keys, values = self.kv(layer)
        checks.integer("window", window, 0)
        wanted = checks.integers("tokens", tokens, None, low=0, high=len(keys) - 1)
        window_ids = np.union1d(wanted, np.arange(max(0, len(keys) - window), len(keys)))
        if not representatives:
            return keys[window_ids], values[window_ids]
        mean_keys, mean_values = self.representatives(layer)
        return np.concatenate([mean_keys, keys[window_ids]]), np.concatenate([mean_values, values[window_ids]])

    # -- within

    def _check_not_empty(self) -> None:
        if not self.frames:
            raise ValueError("the cache must hold a frame before a query, got an empty cache")

    def _layer(self, layer: int) -> SemanticIndex:
        return self.layers[checks.integer("layer", layer, 0, len(self.layers) - 1)]

    def _units(self, keys: np.ndarray) -> np.ndarray:
        """Unit entries (n, Hkv * d) of the keys (T, Hkv, d) of one frame."""
        flat = keys.reshape(len(keys), -1)
        return unit_rows("keys", flat if self.config.unit == "token" else flat.mean(axis=0, keepdims=True))

    def _token_ids(self, frame: int) -> np.ndarray:
        ids = np.arange(frame * self.tokens_per_frame, (frame + 1) * self.tokens_per_frame)
        return ids[:, None] if self.config.unit == "token" else ids[None, :]

    def _assign_partition(self, x: np.ndarray) -> int:
        """Add the unit embedding of a frame to a partition by the rule of the visual level; returns the partition."""
        self._embeddings.append(x)
        if not self.means:
            return self._open(x)
        best = int(nearest(cosines(x, np.stack(self.means))))
        partition_frames = [f for f, p in enumerate(self.partition_of) if p == best]
        mean, variance = absorb(self.means[best], self.variances[best], len(partition_frames), x)
        if not self.config.invalid(variance, self.config.tau_visual):
            self.means[best], self.variances[best] = mean, variance
            self.partition_of.append(best)
            return best
        if self.config.visual_invalid == "new":
            return self._open(x)
        return self._split(best, partition_frames)

    def _open(self, x: np.ndarray) -> int:
        self.means.append(x)
        self.variances.append(0.0)
        self.partition_of.append(len(self.means) - 1)
        return len(self.means) - 1

    def _split(self, partition: int, frames: list[int]) -> int:
        """Split a partition with the newest frame and its clusters; returns the partition of the newest frame."""
        group = [*frames, self.frames]
        x = np.stack([self._embeddings[f] for f in group])
        labels = kmeans(x, 2, self.config.kmeans_iters)
        new = len(self.means)
        self.partition_of.append(partition)
        for frame, label in zip(group, labels, strict=True):
            self.partition_of[frame] = new if label else partition
        self.means[partition], self.variances[partition] = spread(x[labels == 0])
        mean, variance = spread(x[labels == 1])
        self.means.append(mean)
        self.variances.append(variance)
        frame_ids = [f for f in frames if self.partition_of[f] == new]
        tokens = [t for f in frame_ids for t in self._token_ids(f).ravel().tolist()]
        for index in self.layers:
            index.divide(partition, new, tokens)
        return self.partition_of[-1]
