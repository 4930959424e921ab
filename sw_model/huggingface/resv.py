"""ReSV with compiled kernels: the index of `golden.resv.ResvLayer` and the policy `sw_model.policies.ReSV`, faster.

Hash codes and scores are defined by exact sums, so float64 sums with an error bound are enough. All other steps are
integers or sequences of single float32 additions. Clusters, mean keys and selections are therefore equal in every bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from ml_dtypes import bfloat16

from golden import bf16, exp, hashing, scores
from golden.clustering import Assignment, ClusterTable
from golden.resv import ResvConfig, ResvLayer, bf16_tensor
from golden.wicsum import WtuConfig
from sw_model.huggingface import kernels
from sw_model.huggingface.means import CompiledMeans
from sw_model.policies.base import STAGES, Chunk, ModelShape, Selection
from sw_model.policies.resv import ReSV
from util import checks

LONGEST_ROW = 1 << 20  # clusters of a row, the most that `WtuConfig` allows: software has no memory of fixed size
NO_LIMIT = -1


def default_config() -> ResvConfig:
    """The parameters of the paper; a row can have more clusters than the memory of the WTU."""
    return ResvConfig(wtu=WtuConfig(max_row_clusters=LONGEST_ROW))


def _valid(tensor: np.ndarray, heads: int | None, head_dim: int) -> bool:
    """True for a bfloat16 tensor (T, heads, head_dim), T at least 1, of finite numbers: it needs no conversion."""
    return (
        isinstance(tensor, np.ndarray) and tensor.dtype == bfloat16 and tensor.ndim == 3 and len(tensor) > 0
        and heads in (None, tensor.shape[1]) and tensor.shape[2] == head_dim
        and bool((tensor.view(np.uint16) & bf16.BF16.infinity != bf16.BF16.infinity).all())
    )  # fmt: skip


class CompiledTable(ClusterTable):
    """`golden.clustering.ClusterTable` with a compiled search. `cluster_hash` = `majority` uses the golden search."""

    def assign(self, codes: np.ndarray) -> Assignment:
        rule = self.rule
        if rule.cluster_hash == "majority":
            return super().assign(codes)
        wanted = codes
        if not (isinstance(codes, np.ndarray) and codes.dtype == np.uint32 and codes.ndim == 1):
            wanted = checks.integers("codes", codes, None, low=0, high=2**32 - 1).astype(np.uint32)
        n = len(wanted)
        self._reserve(n)
        result = Assignment(
            np.empty(n, np.int32), np.empty(n, bool), np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, bool),
            np.empty(n, np.int64),
        )  # fmt: skip
        self._first, self._size = kernels.assign(
            wanted, self.tokens, self._first, self._size, self._codes, self._counts, self._born, rule.limit,
            rule.first_match, rule.window_tokens, rule.max_cluster_tokens, rule.max_candidates or NO_LIMIT,
            rule.max_clusters or NO_LIMIT, result.cluster, result.opened, result.count, result.distance,
            result.overflow, result.compared,
        )  # fmt: skip
        self.tokens += n
        self.overflowed |= bool(result.overflow.any())
        return result

    def _reserve(self, clusters: int) -> None:
        """Make room for more clusters, and for those that the search reads beyond the last one."""
        while self._size + clusters + kernels.SEARCH_CLUSTERS > len(self._codes):
            for name in ("_codes", "_counts", "_born"):
                old = getattr(self, name)
                setattr(self, name, np.concatenate([old, np.zeros_like(old)]))


class CompiledResvLayer(ResvLayer):
    """`golden.resv.ResvLayer` with compiled clustering and, for the default selector, compiled selection.

    device  name of a PyTorch device that computes scores and thresholds; None: the processor, without PyTorch
    """

    device: str | None = None
    means: Sequence[CompiledMeans]

    def __init__(self, config: ResvConfig, kv_heads: int, head_dim: int, layer: int = 0) -> None:
        super().__init__(config, kv_heads, head_dim, layer)
        tables = len(self.tables)
        self.tables = [CompiledTable(config.rule()) for _ in range(tables)]
        heads = kv_heads // tables
        self.means = [CompiledMeans(self.dimension, config.mean_store, heads) for _ in range(tables)]
        self._normals = self.planes.astype(np.float64)
        self._lengths = np.linalg.norm(self._normals, axis=0)
        self._mirrors: dict[int, Any] = {}  # mean keys of each table on the device
        self._factor = bf16.decode(exp.scale(head_dim), bf16.FP32).astype(np.float32)[()]

    def append(self, keys: np.ndarray, stage: str = "frame") -> list[Assignment]:
        if not _valid(keys, self.kv_heads, self.head_dim) or stage != "frame":
            return super().append(keys, stage)
        return [self._append(t, v) for t, v in enumerate(keys.reshape(len(keys), len(self.tables), -1).swapaxes(0, 1))]

    def _append(self, index: int, vectors: np.ndarray) -> Assignment:
        if self.config.center_keys or self.config.cluster_hash == "rehash_mean":
            return super()._append(index, vectors)
        table = self.tables[index]
        assignment = table.assign(self._hash_codes(vectors))
        self.means[index].update(vectors, assignment.cluster, table.counts)
        self.cluster_of[index].extend(assignment.cluster)
        return assignment

    def _hash_codes(self, vectors: np.ndarray) -> np.ndarray:
        """Hash codes, uint32 (T,), as `golden.hashing.hash_codes` computes them.

        A bit is the sign of an exact sum. A float64 sum with an error bound below its absolute value has this sign. The
        bound is that of the golden model with |v| |n| >= sum of |v_i n_i|; the golden model computes all other codes.
        """
        codes = np.empty(len(vectors), np.uint32)
        doubtful = kernels.hash_codes(
            vectors.astype(np.float32), self._normals, self._lengths, self.dimension * 2.0**-50, codes
        )
        for t in np.flatnonzero(doubtful):
            codes[t] = hashing.hash_codes(vectors[t : t + 1], self.planes)[0]
        return codes

    @property
    def fused(self) -> bool:
        """True if `attended_tokens` applies: all rows of a KV head share the union of their selections."""
        c, wtu = self.config, self.config.wtu
        return (
            (c.selector, c.gqa_select, c.attend) == ("wtu", "union", "union")
            and (wtu.weight, wtu.bucket_domain) == ("score_x_tc", "code")
        )  # fmt: skip

    def attended_tokens(self, queries: np.ndarray, past: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Selected tokens and attended tokens of every KV head, as `select` and `attended` give them together.

        Valid if `fused`. Queries are (T, Hq, d).
        """
        checks.integer("past", past, 0, self.tokens)
        config = self.config
        valid = _valid(queries, None, self.head_dim)
        q = (queries if valid else bf16_tensor("queries", queries, None, self.head_dim)).astype(np.float64)
        selections, attended = [], []
        for h, selected in enumerate(self._selected(scores.query_rows(q, self.kv_heads))):
            owner = self._owners(h, past)
            attended.append(kernels.tokens_of(selected, owner, config.sink_tokens, config.recent_always_tokens))
            plain = not config.sink_tokens and not config.recent_always_tokens and config.cluster_text
            selections.append(attended[-1] if plain else np.flatnonzero(np.r_[selected, False][owner]))
        return selections, attended

    def _selected(self, rows: np.ndarray) -> list[np.ndarray]:
        """Clusters that any row of each KV head selects, bool (C,); rows (Hkv, R, d)."""
        limit = self.config.wtu.max_row_clusters
        clusters = max(map(len, self.tables))
        if clusters > limit:
            raise ValueError(f"wtu.max_row_clusters must be at least {clusters}, got {limit}")
        if self.device is None:
            return [self._selected_on_host(h, head_rows) for h, head_rows in enumerate(rows)]
        heads = self.kv_heads // len(self.tables)
        selected: list[np.ndarray] = []
        for first in range(0, self.kv_heads, heads):
            selected += self._selected_on_device(self.device, first, rows[first : first + heads])
        return selected

    def _selected_on_host(self, h: int, rows: np.ndarray) -> np.ndarray:
        table, wtu = self.tables[self._table(h)], self.config.wtu
        selected = np.zeros(len(table), bool)
        if len(table):
            score = self.means[self._table(h)].dots(rows, h if len(self.tables) == 1 else 0)
            ratio = self.config.wics_ratio_q16
            kernels.select_clusters(score, table.counts, self._factor, ratio, wtu.buckets, wtu.refine_levels, selected)
        return selected

    def _selected_on_device(self, device: str, first: int, rows: np.ndarray) -> list[np.ndarray]:
        """Clusters that the KV heads of one table select, heads `first` and following; rows (H, R, d)."""
        from sw_model.huggingface import tensor_kernels

        index = self._table(first)
        table, heads = self.tables[index], range(first, first + len(rows))
        if not len(table):
            return [np.zeros(0, bool) for _ in heads]
        if index not in self._mirrors:
            self._mirrors[index] = tensor_kernels.DeviceMeans(device, len(rows))
        means = self._mirrors[index].update(self.means[index])
        ratio = self.config.wics_ratio_q16
        selected = tensor_kernels.select(rows, means, table.counts, float(self._factor), ratio, self.config.wtu)
        if selected is None:
            return [self._selected_on_host(h, head_rows) for h, head_rows in zip(heads, rows, strict=True)]
        return list(selected)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "device": None, "_mirrors": {}}


class CompiledReSV(ReSV):
    """The policy ReSV with compiled kernels; selections equal those of `ReSV`."""

    def __init__(self, model: ModelShape, config: ResvConfig | None = None) -> None:
        super().__init__(model, config or default_config())
        self.index = [
            CompiledResvLayer(self.config, model.kv_heads, model.head_dim, layer) for layer in range(model.layers)
        ]

    def append(self, layer: int, keys: np.ndarray, values: np.ndarray) -> None:
        """As `Policy.append`; bfloat16 tensors need no conversion to check them."""
        heads, d = self.model.kv_heads, self.model.head_dim
        if not (_valid(keys, heads, d) and _valid(values, heads, d) and len(keys) == len(values)):
            super().append(layer, keys, values)
            return
        start = len(self._keys[layer])
        self._chunks[layer].append(Chunk(start, start + len(keys), ""))
        self._keys[layer].extend(keys)
        self._values[layer].extend(values)
        self.index[layer].append(keys)

    def use_device(self, layer: int, device: str | None) -> None:
        """Compute scores and thresholds of a layer on a PyTorch device; None: on the processor, without PyTorch."""
        index = self.index[layer]
        if isinstance(index, CompiledResvLayer):
            index.device = device

    def select(self, layer: int, queries: np.ndarray, stage: str) -> Selection:
        index = self.index[layer]
        if not isinstance(index, CompiledResvLayer) or not index.fused:
            return super().select(layer, queries, stage)
        last = self._chunks[layer][-1] if self._chunks[layer] else None
        valid = _valid(queries, self.model.q_heads, self.model.head_dim) and stage in STAGES
        if last is not None and valid and len(queries) == last.stop - last.start:
            self._chunks[layer][-1] = last._replace(stage=stage)
        else:
            self.queries(layer, queries, stage)  # converts, or raises an error
        selections, tokens = index.attended_tokens(queries, self.past(layer))
        self.note(layer, stage, selections)
        return Selection(tuple(tokens))
