"""ReSV: retrieval of clustered streaming-video keys, for one layer and for all layers (V-Rex, Section IV, Fig. 10).

One step of a layer: (1) hash the new keys, (2) cluster them by Hamming distance, (3) score the clusters with the
queries, (4) select clusters by WiCSum, (5) attend to their tokens and to those of the step. `ResvLayer` is the index of
one layer, without values. `Resv` adds caches, page tables and attention for all layers.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np
from ml_dtypes import bfloat16

from golden import bf16, hashing, scores, wicsum
from golden.attention import light_attention
from golden.clustering import Assignment, ClusterRule, ClusterTable
from golden.growable_array import GrowableArray
from golden.mean_keys import MeanKeys
from golden.page_table import Fetch, PageTable, PagingConfig
from golden.wicsum import RowSelections, WtuConfig
from util import checks

RATIO_BITS = 16
STAGES = ("frame", "text")
PREFETCH = ("next_layer", "same_layer")
UNCLUSTERED = 2**31  # owner of the pages of text that is not clustered
_RULE = [f.name for f in fields(ClusterRule) if f.name != "cluster_hash"]


@dataclass(frozen=True)
class ResvConfig:
    """Parameters of ReSV. Defaults are those of the paper, or the best supported reading where the paper is silent.

    hash_bits              hash bits of a key, 1 to 32 (N_hp in the paper)
    hamming_threshold      Hamming distance in bits below which a token joins a cluster (Th_hd)
    hamming_inclusive      True: a token also joins at a distance equal to the threshold
    first_match            True: join the lowest-numbered matching cluster; False: the nearest one
    window_tokens          age in tokens up to which a cluster takes new tokens; 0: no limit
    max_cluster_tokens     token count at which a cluster takes no more tokens
    max_candidates         clusters inside the window whose hash codes fit on chip; None: no limit
    max_clusters           clusters of one layer; None: no limit
    wics_ratio             share of the weighted score sum that the selection exceeds, 0 to 1 (Th_r-wics)
    cluster_scope          `layer`: the keys of all KV heads form one vector; `kv_head`: clusters per head
    cluster_hash           hash code of a cluster: `leader`: that of its first key; `majority`: majority of its
                           tokens' bits; `rehash_mean`: that of its mean key, updated after every step
    center_keys            True: subtract the mean of all keys so far before hashing
    mean_store             `bf16` or `fp32_sum`: `golden.mean_keys.MeanKeys`
    score_transform        weight of a score: `golden.scores.weights`
    selector               `wtu`: integer bucket sweep on BF16 scores; `exact`: Eq. 1 to 3 in float64
    gqa_select             `union`: query heads of a GQA group share the union of their selections; `per_q_head`: no
    attend                 `union`: all query tokens share the union of their selections; `own`: no
    recent_always_tokens   newest past tokens that are always attended
    sink_tokens            first tokens that are always attended
    cluster_text           True: text tokens are clustered; False: they are always attended
    score_includes_current True: clusters include the tokens of the step when they are scored
    prefetch               `next_layer`: queries select for the next layer, from its clusters before the step,
                           so that the fetch overlaps; `same_layer`: every layer selects for itself
    seed                   seed of the hyperplanes
    wtu                    parameters of the selection: `golden.wicsum.WtuConfig`
    paging                 parameters of the page tables: `golden.page_table.PagingConfig`
    """

    hash_bits: int = 32
    hamming_threshold: int = 7
    hamming_inclusive: bool = False
    wics_ratio: float = 0.3
    cluster_scope: str = "layer"
    first_match: bool = False
    window_tokens: int = 4096
    max_cluster_tokens: int = 65535
    max_candidates: int | None = None
    max_clusters: int | None = None
    cluster_hash: str = "leader"
    center_keys: bool = False
    mean_store: str = "bf16"
    score_transform: str = "exp"
    selector: str = "wtu"
    gqa_select: str = "union"
    attend: str = "union"
    recent_always_tokens: int = 0
    sink_tokens: int = 0
    cluster_text: bool = True
    score_includes_current: bool = True
    prefetch: str = "next_layer"
    seed: int = 0
    wtu: WtuConfig = field(default_factory=WtuConfig)
    paging: PagingConfig = field(default_factory=PagingConfig)

    def __post_init__(self) -> None:
        checks.integer("hash_bits", self.hash_bits, 1, hashing.MAX_HASH_BITS)
        checks.real("wics_ratio", self.wics_ratio, 0, 1)
        checks.one_of("cluster_scope", self.cluster_scope, ("layer", "kv_head"))
        checks.one_of("cluster_hash", self.cluster_hash, ("leader", "majority", "rehash_mean"))
        checks.one_of("mean_store", self.mean_store, ("bf16", "fp32_sum"))
        checks.one_of("score_transform", self.score_transform, scores.TRANSFORMS)
        checks.one_of("selector", self.selector, ("wtu", "exact"))
        checks.one_of("gqa_select", self.gqa_select, ("union", "per_q_head"))
        checks.one_of("attend", self.attend, ("union", "own"))
        checks.integer("recent_always_tokens", self.recent_always_tokens, 0)
        checks.integer("sink_tokens", self.sink_tokens, 0)
        checks.one_of("prefetch", self.prefetch, PREFETCH)
        checks.integer("seed", self.seed, 0)
        for name in ("center_keys", "cluster_text", "score_includes_current"):
            checks.flag(name, getattr(self, name))
        if self.selector == "wtu" and self.score_transform != "exp":
            raise ValueError(f"score_transform must be exp when selector is wtu, got {self.score_transform!r}")
        if self.wtu.stop_rule != "ratio":
            raise ValueError(f"wtu.stop_rule must be ratio, got {self.wtu.stop_rule!r}")
        self.rule()

    def rule(self) -> ClusterRule:
        """Parameters of the clustering."""
        majority = "majority" if self.cluster_hash == "majority" else "leader"
        return ClusterRule(cluster_hash=majority, **{name: getattr(self, name) for name in _RULE})

    @property
    def wics_ratio_q16(self) -> int:
        """`wics_ratio` in units of 2**-16, rounded."""
        return round(self.wics_ratio * (1 << RATIO_BITS))


@dataclass(frozen=True)
class LayerSelection:
    """Clusters and tokens that the queries of one step select in one layer.

    rows        for each KV head, bool (T * group, C): clusters that each row (query token, query head) selects
    clusters    for each KV head, bool (C,): clusters that any row selects
    tokens      for each KV head, int64 ascending: past tokens of these clusters
    wtu         for each KV head, the result of the WTU; None for selector `exact`
    new_tokens  query tokens of the step, T
    """

    rows: list[np.ndarray]
    clusters: list[np.ndarray]
    tokens: list[np.ndarray]
    wtu: list[RowSelections] | None
    new_tokens: int

    def ratio(self, past: int) -> float:
        """Share of `past` tokens that is retrieved, mean over the KV heads (0 to 1); 0 if `past` is 0."""
        return float(np.mean([len(t) for t in self.tokens])) / past if past else 0.0


class ResvLayer:
    """Clusters and mean keys of one layer: one table, or one table for each KV head.

    `planes` are the normal vectors of the hyperplanes (key_dim, hash_bits), rounded to BF16, with key_dim = kv_heads *
    head_dim for one table and head_dim for a table for each KV head; None: those of `golden.hashing` for `config.seed`.
    """

    def __init__(
        self, config: ResvConfig, kv_heads: int, head_dim: int, layer: int = 0, planes: np.ndarray | None = None
    ) -> None:
        self.config = config
        self.kv_heads = checks.integer("kv_heads", kv_heads, 1)
        self.head_dim = checks.integer("head_dim", head_dim, 1)
        tables = 1 if config.cluster_scope == "layer" else kv_heads
        self.dimension = kv_heads * head_dim // tables
        if planes is None:
            self.planes = hashing.hyperplanes(self.dimension, config.hash_bits, seed=config.seed, layer=layer)
        else:
            self.planes = rounded("planes", checks.reals("planes", planes, self.dimension, config.hash_bits))
        self.tables = [ClusterTable(config.rule()) for _ in range(tables)]
        self.means: Sequence[MeanKeys] = [MeanKeys(self.dimension, config.mean_store) for _ in range(tables)]
        self.cluster_of = [GrowableArray((), np.int32) for _ in range(tables)]  # -1: not clustered
        self._sum = np.zeros((tables, self.dimension))

    @property
    def tokens(self) -> int:
        """Tokens of the layer."""
        return len(self.cluster_of[0])

    def clusters_after(self, keys: np.ndarray, stage: str = "frame") -> int:
        """Upper bound of the clusters of the longest table after `append` of these keys. Changes nothing.

        The bound is exact if it exceeds `wtu.max_row_clusters`.
        """
        clusters = max(len(table) for table in self.tables)
        if stage == "text" and not self.config.cluster_text:
            return clusters
        limit = self.config.max_clusters
        bound = clusters + len(keys) if limit is None else max(clusters, min(clusters + len(keys), limit))
        if bound <= self.config.wtu.max_row_clusters:
            return bound
        trial = copy.deepcopy(self)
        trial.append(keys, stage)
        return max(len(table) for table in trial.tables)

    def append(self, keys: np.ndarray, stage: str = "frame") -> list[Assignment]:
        """Hash and cluster the keys of one step, bfloat16 (T, Hkv, d) after RoPE; one assignment per table."""
        checks.one_of("stage", stage, STAGES)
        k = bf16_tensor("keys", keys, self.kv_heads, self.head_dim)
        if stage == "text" and not self.config.cluster_text:
            for tokens in self.cluster_of:
                tokens.extend(np.full(len(k), -1, np.int32))
            return []
        return [self._append(t, v) for t, v in enumerate(k.reshape(len(k), len(self.tables), -1).swapaxes(0, 1))]

    def select(self, queries: np.ndarray, past: int | None = None) -> LayerSelection:
        """Score the present clusters with queries (T, Hq, d) and select.

        past  number of tokens that can be retrieved (those before the step); None: all
        """
        past = self.tokens if past is None else checks.integer("past", past, 0, self.tokens)
        q = bf16_tensor("queries", queries, None, self.head_dim)
        results, selected = [], []
        for h, rows in enumerate(scores.query_rows(q, self.kv_heads)):
            score = scores.dots(rows, self._means_of(h))
            counts = self.tables[self._table(h)].counts
            if self.config.selector == "exact":
                weight = scores.weights(score, self.head_dim, self.config.score_transform)
                selected.append(wicsum.exact(weight, counts, self.config.wics_ratio))
                continue
            code = scores.codes(score, self.head_dim)
            results.append(wicsum.select(code, counts, self.config.wics_ratio_q16, self.config.wtu))
            selected.append(results[-1].selected)
        clusters = [np.logical_or.reduce(rows, axis=0) for rows in selected]
        tokens = []
        for h, selected_clusters in enumerate(clusters):
            owner = self._owners(h, past)
            tokens.append(np.flatnonzero(np.r_[selected_clusters, False][owner]))  # owner -1 selects the appended False
        return LayerSelection(selected, clusters, tokens, results or None, len(q))

    def attended(self, selected: LayerSelection, past: int) -> tuple[list[np.ndarray], list[np.ndarray] | None]:
        """Tokens that every KV head attends to, and a mask over them for each row (None: all).

        These are the selected tokens, the first `sink_tokens`, the newest `recent_always_tokens`, and text that is not
        clustered.
        """
        config, tokens, allowed = self.config, [], []
        for h, rows in enumerate(selected.rows):
            owner = self._owners(h, past)
            always = owner < 0
            always[: config.sink_tokens] = True
            always[past - min(past, config.recent_always_tokens) :] = True
            if config.gqa_select == "per_q_head":
                group = rows.reshape(selected.new_tokens, len(rows) // selected.new_tokens, rows.shape[1])
                rows = np.tile(group.any(axis=0), (selected.new_tokens, 1)) if config.attend == "union" else rows
            ids = np.flatnonzero(np.r_[selected.clusters[h], False][owner] | always)
            tokens.append(ids)
            allowed.append(np.c_[rows, np.zeros(len(rows), bool)][:, owner[ids]] | always[ids])
        return tokens, None if config.attend == "union" and config.gqa_select == "union" else allowed

    def _owners(self, head: int, past: int) -> np.ndarray:
        """Cluster of each past token in the table of `head`; -1: not clustered."""
        return self.cluster_of[self._table(head)].array[:past]

    def _table(self, head: int) -> int:
        return 0 if len(self.tables) == 1 else head

    def _means_of(self, head: int) -> np.ndarray:
        """Mean keys (C, d) of one KV head."""
        means = self.means[self._table(head)].means
        return means[:, head * self.head_dim : (head + 1) * self.head_dim] if len(self.tables) == 1 else means

    def _append(self, index: int, vectors: np.ndarray) -> Assignment:
        table, means = self.tables[index], self.means[index]
        center = None
        if self.config.center_keys:
            self._sum[index] += vectors.astype(np.float64).sum(axis=0)
            center = self._sum[index] / (len(self.cluster_of[index]) + len(vectors))
        assignment = table.assign(hashing.hash_codes(vectors, self.planes, center=center))
        means.update(vectors, assignment.cluster, table.counts)
        self.cluster_of[index].extend(assignment.cluster)
        if self.config.cluster_hash == "rehash_mean":
            touched = np.unique(assignment.cluster)
            table.rehash(touched, hashing.hash_codes(means.means[touched], self.planes, center=center))
        return assignment


@dataclass(frozen=True)
class LayerStep:
    """Result of one step in one layer.

    assigned  for each table, the clusters of the new tokens (empty: text that is not clustered)
    selected  selection that the layer used
    attended  for each KV head, int64 ascending: past tokens that its queries attended to
    fetches   for each page table, the transfers from the host
    output    attention output, float64 (T, Hq, d)
    """

    assigned: list[Assignment]
    selected: LayerSelection
    attended: list[np.ndarray]
    fetches: list[Fetch]
    output: np.ndarray


class Resv:
    """Indices, caches and page tables of all layers of one sequence. `planes` has the hyperplanes of each layer."""

    def __init__(
        self,
        config: ResvConfig,
        layers: int,
        kv_heads: int,
        head_dim: int,
        planes: Sequence[np.ndarray] | None = None,
    ) -> None:
        checks.integer("layers", layers, 1)
        if planes is not None and len(planes) != layers:
            raise ValueError(f"planes must have one array for each of {layers} layers, got {len(planes)}")
        self.config = config
        self.layers = [
            ResvLayer(config, kv_heads, head_dim, layer, None if planes is None else planes[layer])
            for layer in range(layers)
        ]
        self.keys = [GrowableArray((kv_heads, head_dim), bfloat16) for _ in range(layers)]
        self.values = [GrowableArray((kv_heads, head_dim), bfloat16) for _ in range(layers)]
        tables = len(self.layers[0].tables)
        self.pages = [
            [PageTable(config.paging, kv_heads // tables, head_dim) for _ in range(tables)] for _ in range(layers)
        ]
        self._next_layer = 0
        self._prefetched: LayerSelection | None = None

    def step(
        self, layer: int, queries: np.ndarray, keys: np.ndarray, values: np.ndarray, stage: str = "frame"
    ) -> LayerStep:
        """One step of one layer: queries (T, Hq, d), keys and values (T, Hkv, d), after RoPE, rounded to BF16.

        Layers must be called in order. Raises ValueError for a layer out of order, for invalid tensors and if a table
        has more clusters than a row of the WTU.
        """
        if layer != self._next_layer:
            raise ValueError(f"layer must be {self._next_layer}, the next one in order, got {layer}")
        index, past = self.layers[layer], len(self.keys[layer])
        k = bf16_tensor("keys", keys, index.kv_heads, index.head_dim)
        v = bf16_tensor("values", values, index.kv_heads, index.head_dim)
        q = bf16_tensor("queries", queries, None, index.head_dim)
        checks.one_of("stage", stage, STAGES)
        scores.query_rows(q, index.kv_heads)  # raises errors before any state changes
        if not len(q) == len(k) == len(v):
            raise ValueError(
                f"queries, keys and values must have equally many tokens, got {len(q)}, {len(k)}, {len(v)}"
            )

        self._check_prefetch(q)
        self._check_rows(layer, k, stage)

        selected = self._prefetched
        if selected is None and not self.config.score_includes_current:
            selected = index.select(q)
        assigned = index.append(k, stage)
        if selected is None:
            selected = index.select(q, past)
        last = layer + 1 == len(self.layers)
        self._next_layer = 0 if last else layer + 1
        self._prefetched = self.layers[layer + 1].select(q) if self._prefetches(layer) else None

        attended, allowed = index.attended(selected, past)
        pages = self.pages[layer]
        share = index.kv_heads // len(pages)
        fetches = [unit.fetch(attended[i * share : (i + 1) * share]) for i, unit in enumerate(pages)]
        for i, unit in enumerate(pages):
            unit.append(assigned[i].cluster if assigned else np.full(len(k), UNCLUSTERED))
        self.keys[layer].extend(k)
        self.values[layer].extend(v)
        output = light_attention(q, self.keys[layer].array, self.values[layer].array, attended, allowed)
        return LayerStep(assigned, selected, attended, fetches, output)

    def _prefetches(self, layer: int) -> bool:
        """True if a step of `layer` selects for the next layer."""
        return self.config.prefetch == "next_layer" and layer + 1 < len(self.layers)

    def _check_prefetch(self, queries: np.ndarray) -> None:
        """ValueError if the queries have another shape than those that selected for this layer."""
        if self._prefetched is None:
            return
        tokens, rows = self._prefetched.new_tokens, len(self._prefetched.rows[0])
        shape = (tokens, rows // tokens * len(self._prefetched.rows), queries.shape[2])
        if queries.shape != shape:
            raise ValueError(f"queries must have shape {shape} as in layer {self._next_layer - 1}, got {queries.shape}")

    def _check_rows(self, layer: int, keys: np.ndarray, stage: str) -> None:
        """ValueError if a selection of this step would have rows that exceed the WTU."""
        if self.config.selector != "wtu":
            return
        sizes = {}
        if self._prefetched is None:
            index = self.layers[layer]
            present = max(len(table) for table in index.tables)
            sizes[layer] = index.clusters_after(keys, stage) if self.config.score_includes_current else present
        if self._prefetches(layer):
            sizes[layer + 1] = max(len(table) for table in self.layers[layer + 1].tables)
        limit = self.config.wtu.max_row_clusters
        for number, clusters in sizes.items():
            if clusters > limit:
                raise ValueError(
                    f"clusters of layer {number} must be at most max_row_clusters = {limit}, got {clusters}"
                )


def bf16_tensor(name: str, value: np.ndarray, heads: int | None, head_dim: int) -> np.ndarray:
    """Check that `value` has shape (T, heads, head_dim) with T at least 1 and finite elements; returns bfloat16."""
    array = checks.reals(name, value, None, heads, head_dim)
    if not len(array):
        raise ValueError(f"{name} must hold at least one token, got none")
    return rounded(name, array)


def rounded(name: str, array: np.ndarray) -> np.ndarray:
    """Finite numbers, rounded to bfloat16. ValueError if a number rounds to infinity."""
    result = bf16.encode(array).view(bfloat16)
    if not (finite := np.isfinite(result)).all():
        index = tuple(int(i) for i in np.argwhere(~finite)[0])
        raise ValueError(f"{name} must be finite in BF16, got {array[index]} at index {index}")
    return result
