"""Statistics of a key stream that V-Rex reports, for any source: video, generator or captured trace.

One pass with one chunk in memory. Each layer has a cluster table and mean keys.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from golden.clustering import ClusterRule, ClusterTable
from golden.hashing import hash_codes, hyperplanes
from golden.mean_keys import MeanKeys
from golden.wicsum import exact
from sw_model.media.stream import Chunk
from util import checks, text


@dataclass(frozen=True)
class LayerStatistics:
    """Statistics of the stream in one layer; None if the stream has nothing to measure.

    tokens, clusters       in the table at the end
    same_position_cosine   mean cosine of the keys at one position of adjacent frames
    adjacent_cosine        mean cosine of all pairs of keys of adjacent frames
    adjacent_deviation     standard deviation of these cosines
    cosine_hamming         correlation of key cosine and Hamming distance of the hash codes, over the same pairs
    prefix_share           share of clusters in the shortest prefix above the ratio, mean over the query rows of frames
    frame_ratio            share of past tokens retrieved by frames, mean over chunks and KV heads
    text_ratio             the same for text turns
    """

    tokens: int
    clusters: int
    same_position_cosine: float | None
    adjacent_cosine: float | None
    adjacent_deviation: float | None
    cosine_hamming: float | None
    prefix_share: float | None
    frame_ratio: float | None
    text_ratio: float | None

    @property
    def tokens_per_cluster(self) -> float:
        return self.tokens / self.clusters


class _Layer:
    def __init__(self, dimension: int, layer: int, hash_bits: int, rule: ClusterRule, seed: int):
        self.planes = hyperplanes(dimension, hash_bits, seed=seed, layer=layer)
        self.table = ClusterTable(rule)
        self.means = MeanKeys(dimension)
        self.previous: tuple[np.ndarray, np.ndarray] | None = None
        self.same: list[float] = []
        self.pairs: list[np.ndarray] = []  # of adjacent frames: count and moments of cosine x and distance y
        self.prefix: list[float] = []
        self.ratios: dict[str, list[float]] = {"frame": [], "text": []}

    def add(self, stage: str, keys: np.ndarray) -> np.ndarray:
        """Take in keys (T, Hkv, d); returns the tokens that each cluster held before."""
        flat = keys.reshape(len(keys), -1)
        codes = hash_codes(flat, self.planes)
        if stage == "frame":
            self._compare(flat.astype(np.float64), codes)
        old = self.table.counts.copy()
        assigned = self.table.assign(codes)
        self.means.update(flat, assigned.cluster, self.table.counts)
        return np.concatenate([old, np.zeros(len(self.table) - len(old), old.dtype)])

    def _compare(self, keys: np.ndarray, codes: np.ndarray) -> None:
        """Note how a frame's tokens compare with those of the frame before."""
        unit = keys / np.maximum(np.linalg.norm(keys, axis=1, keepdims=True), np.finfo(np.float64).tiny)
        if self.previous is not None and self.previous[0].shape == unit.shape:
            previous_keys, previous_codes = self.previous
            x, y = previous_keys @ unit.T, np.bitwise_count(previous_codes[:, None] ^ codes).astype(np.float64)
            self.same.append(float(np.diagonal(x).mean()))
            self.pairs.append(np.array([x.size, x.sum(), y.sum(), (x * x).sum(), (y * y).sum(), (x * y).sum()]))
        self.previous = unit, codes

    def retrieve(self, stage: str, queries: np.ndarray, past: np.ndarray, wics_ratio: float) -> None:
        """Score the table with queries (T, Hq, d) and note what would be retrieved of the `past` tokens."""
        tokens, _, d = queries.shape
        kv_heads = self.means.dimension // d
        rows = queries.astype(np.float64).reshape(tokens, kv_heads, -1, d).transpose(1, 0, 2, 3)
        means = self.means.means.astype(np.float64).reshape(-1, kv_heads, d).transpose(1, 2, 0)
        logits = rows.reshape(kv_heads, -1, d) @ means / np.sqrt(d)
        weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
        selected = exact(weights.reshape(-1, len(past)), self.table.counts, wics_ratio).reshape(kv_heads, -1, len(past))
        if stage == "frame":
            self.prefix.append(float(selected.mean()))
        self.ratios[stage].append(float((selected.any(axis=1) @ past).mean() / past.sum()))

    def result(self) -> LayerStatistics:
        count, *sums = np.sum(self.pairs, axis=0) if self.pairs else np.zeros(6)
        x, y, xx, yy, xy = np.array(sums) / max(count, 1)
        x_deviation, y_deviation = np.sqrt(max(xx - x * x, 0)), np.sqrt(max(yy - y * y, 0))
        return LayerStatistics(
            tokens=self.table.tokens,
            clusters=len(self.table),
            same_position_cosine=_mean(self.same),
            adjacent_cosine=float(x) if count else None,
            adjacent_deviation=float(x_deviation) if count else None,
            cosine_hamming=float((xy - x * y) / (x_deviation * y_deviation)) if x_deviation and y_deviation else None,
            prefix_share=_mean(self.prefix),
            frame_ratio=_mean(self.ratios["frame"]),
            text_ratio=_mean(self.ratios["text"]),
        )


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None


def measure(
    chunks: Iterable[Chunk],
    *,
    hash_bits: int = 32,
    rule: ClusterRule | None = None,
    wics_ratio: float = 0.3,
    cluster_text: bool = True,
    every: int = 1,
    warmup_tokens: int = 0,
    seed: int = 0,
) -> list[LayerStatistics]:
    """Hash, cluster and select (WiCSum) a stream and measure it; returns one result per layer.

    Parameters
    ----------
    chunks : the stream; frames and text turns
    hash_bits, rule, wics_ratio : hash bits, clustering rule and WiCSum ratio; defaults of the paper
    cluster_text : True: text tokens enter the table like those of frames; False: they only query it
    every : retrieval is measured on one frame out of this many, and on every text turn
    warmup_tokens : past tokens from which on retrieval is measured (a short past has few clusters)
    seed : seed of the hyperplanes

    Raises
    ------
    ValueError
        The stream is empty, or its chunks differ in layers, heads or head dimension.
    """
    checks.integer("every", every, 1)
    checks.integer("warmup_tokens", warmup_tokens, 0)
    checks.real("wics_ratio", wics_ratio, 0, 1)
    layers: list[_Layer] = []
    shape: tuple[int, int, int] | None = None
    frames = 0
    for chunk in chunks:
        count, _, heads, d = chunk.k.shape
        if shape is None:
            shape = (count, heads, d)
            layers = [_Layer(heads * d, layer, hash_bits, rule or ClusterRule(), seed) for layer in range(count)]
        if (count, heads, d) != shape:
            raise ValueError(f"chunks must all have (layers, KV heads, d) = {shape}, got {(count, heads, d)}")
        frames += chunk.stage == "frame"
        look = chunk.stage == "text" or frames % every == 0
        for index, layer in enumerate(layers):
            enters = cluster_text or chunk.stage == "frame"
            past = layer.add(chunk.stage, chunk.k[index]) if enters else layer.table.counts
            if look and past.any() and past.sum() >= warmup_tokens:
                layer.retrieve(chunk.stage, chunk.q[index], past, wics_ratio)
    if not layers:
        raise ValueError("the stream has no chunks")
    return [layer.result() for layer in layers]


# name, field, what the paper prints, and where
PAPER = (
    ("same-position cosine, adjacent frames", "same_position_cosine", "high", "Fig. 7a"),
    ("cosine of all pairs, adjacent frames", "adjacent_cosine", "", ""),
    ("its standard deviation", "adjacent_deviation", "", ""),
    ("correlation of cosine and Hamming distance", "cosine_hamming", "-0.8", "Fig. 7b"),
    ("tokens per cluster", "tokens_per_cluster", "32", "Section VI-B"),
    ("clusters in the prefix per row", "prefix_share", "0.16", "Section V-B"),
    ("retrieval ratio, frames", "frame_ratio", "0.327 (layers 0.042 to 0.44)", "Table II, Fig. 20"),
    ("retrieval ratio, text", "text_ratio", "0.025", "Table II"),
)


@dataclass(frozen=True)
class Row:
    """One statistic over the layers and the value of the paper; None if no layer measured it."""

    name: str
    mean: float | None
    least: float | None
    most: float | None
    paper: str
    where: str


def table(layers: list[LayerStatistics]) -> list[Row]:
    """Statistics of all layers as rows: mean, minimum and maximum over the layers, and the value that V-Rex reports."""
    rows = []
    for name, attribute, paper, reference in PAPER:
        values = [value for layer in layers if (value := getattr(layer, attribute)) is not None]
        mean, minimum, maximum = (float(np.mean(values)), min(values), max(values)) if values else (None, None, None)
        rows.append(Row(name, mean, minimum, maximum, paper, reference))
    return rows


def as_text(rows: list[Row]) -> str:
    """Rows as a plain-text table."""
    head = ("statistic", "mean", "least", "most", "V-Rex", "where")
    body = [
        (row.name, *("-" if x is None else f"{x:.3f}" for x in (row.mean, row.least, row.most)), row.paper, row.where)
        for row in rows
    ]
    return text.table(head, body)
