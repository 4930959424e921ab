"""Cluster statistics of Mosaic (Eq. 1 to 5), the validity test, and spherical K-means."""

import math
from dataclasses import dataclass

import numpy as np

from golden.ranking import TIE
from util import checks


@dataclass(frozen=True)
class MosaicConfig:
    """Parameters of the method. Thresholds are variances of unit vectors (0 to 1).

    unit               entry of the index: a `token`, or a `frame` (mean key of its tokens)
    tau_min, tau_max   bounds of the size-adaptive threshold (Eq. 5)
    lambda_            transition rate of the threshold, in entries
    tau_form           `exp` (Eq. 5), `rational` in n, or `decreasing` (`exp` with the bounds swapped)
    invalid_compare    a cluster is invalid if its variance is `ge` or `gt` the threshold
    tau_visual         threshold of the visual level
    visual_invalid     action for a frame that fits no partition: `new` opens one, `split` splits the nearest one
    top_visual         partitions that pass the first retrieval stage
    budget_frames      video frames whose tokens one query retrieves
    kmeans_iters       largest number of K-means iterations
    buffer_assignable  True: later entries can join a buffered cluster
    split_recursive    True: the halves of a split are split again while they are invalid
    sim                similarity of the retrieval: `cosine` or `dot`
    """

    unit: str = "token"
    tau_min: float = 0.10
    tau_max: float = 0.30
    lambda_: float = 16.0
    tau_form: str = "exp"
    invalid_compare: str = "ge"
    visual_invalid: str = "new"
    tau_visual: float = 0.25
    top_visual: int = 4
    budget_frames: int = 64
    kmeans_iters: int = 20
    buffer_assignable: bool = False
    split_recursive: bool = False
    sim: str = "cosine"

    def __post_init__(self) -> None:
        checks.one_of("unit", self.unit, ("token", "frame"))
        checks.one_of("tau_form", self.tau_form, ("exp", "rational", "decreasing"))
        checks.one_of("invalid_compare", self.invalid_compare, ("ge", "gt"))
        checks.one_of("visual_invalid", self.visual_invalid, ("new", "split"))
        checks.one_of("sim", self.sim, ("cosine", "dot"))
        checks.real("tau_min", self.tau_min, 0, 1)
        checks.real("tau_max", self.tau_max, self.tau_min, 1)
        checks.real("tau_visual", self.tau_visual, 0, 1)
        if not checks.real("lambda_", self.lambda_) > 0:
            raise ValueError(f"lambda_ must be positive, got {self.lambda_}")
        for name in ("top_visual", "budget_frames", "kmeans_iters"):
            checks.integer(name, getattr(self, name), 1)

    def invalid(self, variance: float, limit: float) -> bool:
        """True if a cluster of this variance is invalid for the threshold `limit`."""
        return variance >= limit if self.invalid_compare == "ge" else variance > limit


def unit_rows(name: str, x: np.ndarray) -> np.ndarray:
    """Rows of `x` (n, D) scaled to length 1, float64. ValueError for a zero row, a NaN or an infinity."""
    rows = checks.reals(name, x, None, None)
    lengths = np.linalg.norm(rows, axis=1)
    if (lengths == 0).any():
        raise ValueError(f"{name} must not be zero vectors, got one at row {int(np.argmin(lengths))}")
    return rows / lengths[:, None]


def cosines(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Cosines of the vectors `x` (..., D) with `rows` (n, D), float64 (..., n); 0 where a vector is zero."""
    lengths = np.linalg.norm(rows, axis=-1) * np.linalg.norm(x, axis=-1)[..., None]
    products = x @ rows.T
    return np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)


def nearest(similarity: np.ndarray) -> np.ndarray:
    """Index of the largest similarity along the last axis; the lowest index of all within `TIE` of it."""
    return np.argmax(similarity >= similarity.max(axis=-1, keepdims=True) - TIE, axis=-1)


def spread(x: np.ndarray) -> tuple[np.ndarray, float]:
    """Eq. 1 and 2: mean (D,) and population variance of the entries `x` (n, D), n at least 1."""
    x = checks.reals("x", x, None, None)
    if not len(x):
        raise ValueError("x must hold at least one entry, got none")
    mean = x.mean(axis=0)
    return mean, float(np.mean(np.sum((x - mean) ** 2, axis=1)))


def absorb(mean: np.ndarray, variance: float, n: int, x: np.ndarray) -> tuple[np.ndarray, float]:
    """Eq. 3 and 4: mean and variance after entry `x` (D,) joins `n` others, from the statistics alone."""
    mean = checks.reals("mean", mean, None)
    step = checks.reals("x", x, len(mean)) - mean
    checks.real("variance", variance, 0)
    checks.integer("n", n, 1)
    weight = n / (n + 1)
    return mean + step / (n + 1), weight * variance + weight / (n + 1) * float(step @ step)


def threshold(n: int, config: MosaicConfig) -> float:
    """Eq. 5: largest variance at which a cluster of `n` entries is valid."""
    checks.integer("n", n, 1)
    low, high, rate = config.tau_min, config.tau_max, config.lambda_
    if config.tau_form == "rational":
        return low + (high - low) * n / (n + rate)
    if config.tau_form == "decreasing":
        low, high = high, low
    return high - (high - low) * math.exp(-n / rate)


def kmeans(x: np.ndarray, k: int, rounds: int = 20) -> np.ndarray:
    """Spherical K-means of the unit entries `x` (n, D): labels int64 (n,) in [0, min(k, n)).

    Seeds: entry 0, then always the entry least similar to all seeds so far. Entries join the cluster whose mean has the
    largest cosine. An empty cluster takes the entry with the lowest similarity to its own mean. Iteration ends when the
    labels repeat, or after `rounds`. The lowest index wins ties.
    """
    x = checks.reals("x", x, None, None)
    k = min(checks.integer("k", k, 1), len(x))
    checks.integer("rounds", rounds, 1)
    if len(x) == 0:
        raise ValueError("x must hold at least one entry, got none")
    seeds = [0]
    closest = cosines(x, x[:1])[:, 0]
    while len(seeds) < k:
        closest[seeds] = np.inf  # entries can be identical, but each is a seed only once
        seeds.append(int(nearest(-closest)))
        closest = np.maximum(closest, cosines(x, x[seeds[-1:]])[:, 0])
    means = x[seeds]
    labels = np.full(len(x), -1)
    for _ in range(rounds):
        similarity = cosines(x, means)
        new = nearest(similarity)
        _fill_empty(new, similarity, k)
        if (new == labels).all():
            break
        labels = new
        means = np.stack([x[labels == c].mean(axis=0) for c in range(k)])
    return labels


def _fill_empty(labels: np.ndarray, similarity: np.ndarray, k: int) -> None:
    counts = np.bincount(labels, minlength=k)
    for cluster in np.flatnonzero(counts == 0):
        best_similarity = np.take_along_axis(similarity, labels[:, None], axis=1)[:, 0]
        best_similarity[counts[labels] == 1] = np.inf  # the last entry of a cluster stays
        worst = int(nearest(-best_similarity))
        counts[labels[worst]] -= 1
        counts[cluster] += 1
        labels[worst] = cluster
