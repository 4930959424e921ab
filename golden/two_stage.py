"""Two-stage selection of clusters as the core computes it (Mosaic, SPEC 3.4 and 7), bit exact.

Clusters of frames (partitions) have representatives, clusters of tokens have centroids; both are unit vectors in BF16.
The score of either is the sum over all queries and KV heads of the dot products with it, which orders them by the
cosine with the mean query. Cluster 0 is the text: it is always selected, and not counted.

The first stage marks the clusters of the partitions with the largest scores. The row for the WTU has the scores of the
marked clusters, then the text as a fence whose token count exceeds every budget, then all other clusters. So the sweep
of the WTU ends at the budget, or at the fence when the marked clusters have fewer tokens.
"""

import numpy as np

from golden import bf16, exp
from golden.bf16 import FP32
from golden.dot import to_bf16
from golden.selection import sortable
from golden.vpe import maximum, widen

FAR = 2.0**60  # distance of the clusters that are not marked
FENCE = 2.0**30  # distance of the fence
SHARPNESS = 2.0**66  # factor of the difference of two scores before its exponential, which is 1 or 0
FENCE_TOKENS = 65535  # token count of the fence


def fp32(value: float) -> np.ndarray:
    """FP32 bit pattern of a number."""
    return bf16.encode(np.array(value), FP32)


def text_row(clusters: int, distance: float) -> np.ndarray:
    """Row of zeros with -`distance` for the text: FP32 bit patterns (clusters,)."""
    row = np.zeros(clusters)
    row[0] = -distance
    return bf16.encode(row, FP32)


def unmarked(rows: np.ndarray, partitions: int) -> np.ndarray:
    """First stage: FP32 bit patterns (C,), 0 for the clusters of the best partitions, about -`FAR` for the others.

    `rows` : FP32 scores (R, C) of the representative of each cluster's partition, whose sum is its score. All clusters
    of a partition have the same score; partitions whose scores differ by less than 2**-51 are not distinguished.
    `partitions` : number of partitions, at most those that exist
    """
    total = sum_of(rows, text_row(rows.shape[1], FAR))
    for _ in range(partitions):
        top = total[0]
        for score in total[1:]:
            top = maximum(top, score)
        marks = widen(exp.exp(total, top, fp32(SHARPNESS)))
        total = bf16.add(total, bf16.multiply(marks, fp32(-FAR), FP32), FP32)
    return bf16.subtract(fp32(-FAR), total, FP32)


def sum_of(rows: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Sum of FP32 rows (R, C), row after row, then of the row `last`: FP32 bit patterns (C,)."""
    total = rows[0]
    for row in [*rows[1:], last]:
        total = bf16.add(total, row, FP32)
    return total


def selection_keys(representatives: np.ndarray, centroids: np.ndarray, partitions: int) -> np.ndarray:
    """Rows for the WTU, uint16 keys (1 or 2, C): the two stages, if there are partitions, and the text alone.

    `representatives`, `centroids` : FP32 scores (R, C) of each query row with the representative of the partition of a
    cluster, and with its centroid
    """
    text = np.zeros(centroids.shape[1], np.uint16)
    text[0] = to_bf16(fp32(1.0))
    rows = [text]
    if partitions:
        start = unmarked(representatives, partitions)
        rows.insert(0, to_bf16(sum_of(np.stack([start, *centroids]), text_row(centroids.shape[1], FENCE))))
    return sortable(np.stack(rows))
