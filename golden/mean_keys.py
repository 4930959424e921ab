"""Mean key of every cluster: running mean of the keys of its tokens (V-Rex, Section IV-B; Key_cluster).

float32 with subnormals flushed to zero, tokens in order of arrival, one rounding to BF16 at the end of an update. An
update adds the keys of a step, or on the core those of a piece of it (`LayerShape.piece_tokens` in `decoder_layer`).
"""

import numpy as np
from ml_dtypes import bfloat16

from golden import bf16
from util import checks

SMALLEST_NORMAL = np.float32(2.0**-126)


def flush(values: np.ndarray) -> np.ndarray:
    """float32 with subnormals replaced by zero of the same sign."""
    return np.where(np.abs(values) < SMALLEST_NORMAL, np.copysign(np.float32(0), values), values)


class MeanKeys:
    """Mean keys of the clusters of one layer.

    Parameters
    ----------
    dimension : elements of a key, all KV heads of a token concatenated
    mean_store : `bf16` stores the rounded mean, as the hardware does; `fp32_sum` stores the sum in FP32
    """

    def __init__(self, dimension: int, mean_store: str = "bf16"):
        self.dimension = checks.integer("dimension", dimension, 1)
        self.mean_store = checks.one_of("mean_store", mean_store, ("bf16", "fp32_sum"))
        self.means = np.zeros((0, dimension), bfloat16)
        self._sums = np.zeros((0, dimension), np.float32)

    def update(self, keys: np.ndarray, clusters: np.ndarray, counts: np.ndarray) -> None:
        """Add the keys of a step, or of a piece of it, to the means.

        Parameters
        ----------
        keys : (T, dimension) bfloat16, in order of arrival
        clusters : (T,) cluster of each key
        counts : (C,) tokens of every cluster after these keys
        """
        vectors = checks.reals("keys", keys, None, self.dimension).astype(np.float32)
        tokens = checks.integers("counts", counts, None, low=1)
        target = checks.integers("clusters", clusters, len(vectors), low=0, high=len(tokens) - 1)
        n_new = len(tokens) - len(self.means)
        if n_new < 0:
            raise ValueError(f"counts must have at least {len(self.means)} clusters, got {len(tokens)}")
        self.means = np.concatenate([self.means, np.zeros((n_new, self.dimension), bfloat16)])
        if self.mean_store == "fp32_sum":
            self._sums = np.concatenate([self._sums, np.zeros((n_new, self.dimension), np.float32)])
        touched, slot, added = np.unique(target, return_inverse=True, return_counts=True)
        total = tokens[touched].astype(np.float32)
        if self.mean_store == "bf16":
            old_counts = total - added.astype(np.float32)
            sums = flush(self.means[touched].astype(np.float32) * old_counts[:, None])
        else:
            sums = self._sums[touched]
        for index, vector in zip(slot, vectors, strict=True):
            sums[index] = flush(sums[index] + vector)
        if self.mean_store == "fp32_sum":
            self._sums[touched] = sums
        self.means[touched] = bf16.encode(sums / total[:, None].astype(np.float64)).view(bfloat16)
