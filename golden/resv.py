"""ReSV: retrieval of clustered streaming-video keys, one layer and all of them (V-Rex, Section IV, Fig. 10).

One step of a layer: (1) hash the new keys, (2) cluster them by Hamming distance, (3) score the clusters against the
queries, (4) select clusters by WiCSum, (5) attend to their tokens and to the step itself. `ResvLayer` is the index
of one layer and holds no values; `Resv` adds the cache, the pages and the attention, for every layer.
"""

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
UNCLUSTERED = 2**31  # the page owner of text that is not clustered
_RULE = [f.name for f in fields(ClusterRule) if f.name != "cluster_hash"]


@dataclass(frozen=True)
class ResvConfig:
    """Every choice of the algorithm; defaults are the paper's, or where it is silent the best supported reading.

    hash_bits                   hash bits of a key
    hamming_threshold, hamming_inclusive, first_match, window_tokens, max_cluster_tokens, max_candidates, max_clusters
                           how tokens join clusters: `golden.clustering.ClusterRule`
    cluster_hash           a cluster's code: its first key's (`leader`), the `majority` of its members' bits, or
                           `rehash_mean`: the mean key hashed again after every step
    cluster_scope          `layer`: all KV heads of a token are one vector; `kv_head`: clusters of their own per head
    center_keys            hash keys minus the mean of all keys so far
    mean_store             `bf16` or `fp32_sum`: `golden.mean_keys.MeanKeys`
    wics_ratio             share of the score sum that the selection must exceed
    score_transform        `golden.scores.weights`
    selector               `wtu`: integer bucket sweep on BF16 codes (needs `exp`); `exact`: Equations 1 to 3, float64
    gqa_select             `union`: the query heads of a group share what any of them selects; `per_q_head`: not
    attend                 `union`: all query tokens share what any of them selects; `own`: each row has its own
    recent_always_tokens   newest past tokens attended without being selected
    sink_tokens            first tokens attended without being selected
    cluster_text           text tokens are clustered too; otherwise they are always attended
    score_includes_current the step's own tokens are in the clusters when these are scored
    prefetch               `next_layer`: a layer's queries select for the layer above, from its clusters before this
                           step, so that the fetch overlaps; `same_layer`: every layer selects for itself
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
        checks.one_of("prefetch", self.prefetch, ("next_layer", "same_layer"))
        checks.integer("seed", self.seed, 0)
        for name in ("center_keys", "cluster_text", "score_includes_current"):
            checks.flag(name, getattr(self, name))
        if self.selector == "wtu" and self.score_transform != "exp":
            raise ValueError(f"score_transform must be exp when selector is wtu, got {self.score_transform!r}")
        if self.wtu.stop_rule != "ratio":
            raise ValueError(f"wtu.stop_rule must be ratio, got {self.wtu.stop_rule!r}")
        self.rule()

    def rule(self) -> ClusterRule:
        majority = "majority" if self.cluster_hash == "majority" else "leader"
        return ClusterRule(cluster_hash=majority, **{name: getattr(self, name) for name in _RULE})

    @property
    def wics_ratio_q16(self) -> int:
        return round(self.wics_ratio * (1 << RATIO_BITS))


@dataclass(frozen=True)
class LayerSelection:
    """What one step's queries selected in one layer.

    rows      per KV head bool (T * group, C): the clusters of every row
    clusters  per KV head bool (C,): those any row selected
    tokens    per KV head, ascending: the past tokens of those clusters
    wtu       per KV head, what the WTU returned; None if the selection was `exact`
    new_tokens  T, the query tokens
    """

    rows: list[np.ndarray]
    clusters: list[np.ndarray]
    tokens: list[np.ndarray]
    wtu: list[RowSelections] | None
    new_tokens: int

    def ratio(self, past: int) -> float:
        """Retrieved share of the past, mean over the KV heads; 0 if there is no past."""
        return float(np.mean([len(t) for t in self.tokens])) / past if past else 0.0


class ResvLayer:
    """Clusters and representative keys of one layer: one table, or one for each KV head."""

    def __init__(self, config: ResvConfig, kv_heads: int, head_dim: int, layer: int = 0) -> None:
        self.config = config
        self.kv_heads = checks.integer("kv_heads", kv_heads, 1)
        self.head_dim = checks.integer("head_dim", head_dim, 1)
        tables = 1 if config.cluster_scope == "layer" else kv_heads
        self.dimension = kv_heads * head_dim // tables
        self.planes = hashing.hyperplanes(self.dimension, config.hash_bits, seed=config.seed, layer=layer)
        self.tables = [ClusterTable(config.rule()) for _ in range(tables)]
        self.means = [MeanKeys(self.dimension, config.mean_store) for _ in range(tables)]
        self.cluster_of = [GrowableArray((), np.int32) for _ in range(tables)]  # -1: not clustered
        self._sum = np.zeros((tables, self.dimension))

    @property
    def tokens(self) -> int:
        return len(self.cluster_of[0])

    def append(self, keys: np.ndarray, stage: str = "frame") -> list[Assignment]:
        """Hash and cluster one step's keys, bfloat16 (T, Hkv, d) after RoPE; an assignment for each table."""
        checks.one_of("stage", stage, STAGES)
        k = bf16_tensor("keys", keys, self.kv_heads, self.head_dim)
        if stage == "text" and not self.config.cluster_text:
            for tokens in self.cluster_of:
                tokens.extend(np.full(len(k), -1, np.int32))
            return []
        return [self._append(t, v) for t, v in enumerate(k.reshape(len(k), len(self.tables), -1).swapaxes(0, 1))]

    def select(self, queries: np.ndarray, past: int | None = None) -> LayerSelection:
        """Score the clusters as they are against the queries, (T, Hq, d), and select.

        past  tokens that may be retrieved: those before the step. Default: all there are.
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
            tokens.append(np.flatnonzero(np.r_[selected_clusters, False][owner]))  # owner -1 finds the False
        return LayerSelection(selected, clusters, tokens, results or None, len(q))

    def attended(self, selected: LayerSelection, past: int) -> tuple[list[np.ndarray], list[np.ndarray] | None]:
        """Tokens that every KV head attends to, and which of them each row does (None: all).

        The selected ones, the first `sink_tokens`, the newest `recent_always_tokens`, and text left unclustered.
        """
        config, tokens, allowed = self.config, [], []
        for h, rows in enumerate(selected.rows):
            owner = self._owners(h, past)
            always = owner < 0
            always[: config.sink_tokens] = True
            always[past - min(past, config.recent_always_tokens) :] = True
            if config.gqa_select == "per_q_head":
                group = rows.reshape(selected.new_tokens, -1, rows.shape[1])
                rows = np.tile(group.any(axis=0), (selected.new_tokens, 1)) if config.attend == "union" else rows
            ids = np.flatnonzero(np.r_[selected.clusters[h], False][owner] | always)
            tokens.append(ids)
            allowed.append(np.c_[rows, np.zeros(len(rows), bool)][:, owner[ids]] | always[ids])
        return tokens, None if config.attend == "union" and config.gqa_select == "union" else allowed

    def _owners(self, head: int, past: int) -> np.ndarray:
        """Cluster of each past token, as `head` sees them."""
        return self.cluster_of[self._table(head)].array[:past]

    def _table(self, head: int) -> int:
        return 0 if len(self.tables) == 1 else head

    def _means_of(self, head: int) -> np.ndarray:
        """Representative keys (C, d) of one KV head."""
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
    """Everything one step did in one layer.

    assigned  per table, what happened to the new tokens (empty: text that is not clustered)
    selected  the selection the layer used
    attended  per KV head, the past tokens its queries attended to, ascending
    fetches   per page table, the reads that brought them to the device
    output    float64 (T, Hq, d)
    """

    assigned: list[Assignment]
    selected: LayerSelection
    attended: list[np.ndarray]
    fetches: list[Fetch]
    output: np.ndarray


class Resv:
    """All layers of one sequence: indices, caches and pages."""

    def __init__(self, config: ResvConfig, layers: int, kv_heads: int, head_dim: int) -> None:
        checks.integer("layers", layers, 1)
        self.config = config
        self.layers = [ResvLayer(config, kv_heads, head_dim, layer) for layer in range(layers)]
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
        """One step of one layer: queries (T, Hq, d), keys and values (T, Hkv, d), after RoPE, taken as BF16.

        The layers of a step come in order. Raises ValueError for a layer out of turn and for bad tensors.
        """
        if layer != self._next_layer:
            raise ValueError(f"layer must be {self._next_layer}, the next one in order, got {layer}")
        index, past = self.layers[layer], len(self.keys[layer])
        k = bf16_tensor("keys", keys, index.kv_heads, index.head_dim)
        v = bf16_tensor("values", values, index.kv_heads, index.head_dim)
        q = bf16_tensor("queries", queries, None, index.head_dim)
        checks.one_of("stage", stage, STAGES)
        scores.query_rows(q, index.kv_heads)  # complains before anything has changed
        if not len(q) == len(k) == len(v):
            raise ValueError(
                f"queries, keys and values must have equally many tokens, got {len(q)}, {len(k)}, {len(v)}"
            )

        selected = self._prefetched
        if selected is None and not self.config.score_includes_current:
            selected = index.select(q)
        assigned = index.append(k, stage)
        if selected is None:
            selected = index.select(q, past)
        last = layer + 1 == len(self.layers)
        self._next_layer = 0 if last else layer + 1
        prefetches = self.config.prefetch == "next_layer" and not last
        self._prefetched = self.layers[layer + 1].select(q) if prefetches else None

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


def bf16_tensor(name: str, value: np.ndarray, heads: int | None, head_dim: int) -> np.ndarray:
    """`value` (T, heads, head_dim), T at least 1, as bfloat16; raises for anything else and for NaN or infinities."""
    array = checks.reals(name, value, None, heads, head_dim)
    if not len(array):
        raise ValueError(f"{name} must hold at least one token, got none")
    return bf16.encode(array).view(bfloat16)
