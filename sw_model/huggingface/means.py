"""Mean keys of the clusters of ReSV, with compiled sums and scores."""

from __future__ import annotations

import numpy as np

from golden import scores
from golden.mean_keys import MeanKeys
from sw_model.huggingface import kernels


class CompiledMeans(MeanKeys):
    """`golden.mean_keys.MeanKeys` with compiled sums. The mean keys are stored in float64 for the scores.

    heads  number of heads whose keys form a row; length and spread of a mean key are those of one head
    """

    def __init__(self, dimension: int, mean_store: str = "bf16", heads: int = 1):
        self._size = 0
        self.steps = 0
        self._changed = np.zeros(64, np.int64)  # last step that changed a mean key
        self._store = np.zeros((64, dimension))
        self._lengths, self._spreads = np.zeros((2, 64, heads))
        super().__init__(dimension, mean_store)

    @property
    def means(self) -> np.ndarray:
        """Mean keys, float64 (C, D); every value is a BF16 number."""
        return self._store[: self._size]

    @means.setter
    def means(self, value: np.ndarray) -> None:
        self._size = len(value)

    def update(self, keys: np.ndarray, clusters: np.ndarray, counts: np.ndarray) -> None:
        self._size = len(counts)
        while self._size > len(self._store):
            for name in ("_store", "_lengths", "_spreads", "_changed"):
                old = getattr(self, name)
                setattr(self, name, np.concatenate([old, np.zeros_like(old)]))
        if self.mean_store == "fp32_sum" and len(self._sums) < len(self._store):
            new = np.zeros((len(self._store) - len(self._sums), self.dimension), np.float32)
            self._sums = np.concatenate([self._sums, new])
        self.steps += 1
        self._changed[clusters] = self.steps
        kernels.update_means(
            self._store, self._sums, self._lengths, self._spreads, keys.astype(np.float32), clusters, counts
        )

    def changed_since(self, step: int) -> np.ndarray:
        """Clusters whose mean key changed after a step, int64 ascending."""
        return np.flatnonzero(self._changed[: self._size] > step)

    def dots(self, rows: np.ndarray, head: int) -> np.ndarray:
        """Scores of rows (R, d) and the mean keys of a head, as `golden.scores.dots`: exact sums, rounded to float32.

        A row whose rounding is in doubt is computed by the golden model.
        """
        columns = slice(head * rows.shape[1], (head + 1) * rows.shape[1])
        vectors = self.means[:, columns]
        sums = rows @ vectors.T
        result = np.empty(sums.shape, np.float32)
        lengths, spreads = kernels.lengths_and_spreads(rows)
        errors = rows.shape[1] * 2.0**-52 * lengths
        doubtful = kernels.round_scores(
            sums, errors, spreads, self._lengths[: self._size, head], self._spreads[: self._size, head], result
        )
        for r in np.flatnonzero(doubtful):
            result[r] = scores.dots(rows[r : r + 1], vectors)[0]
        return result
