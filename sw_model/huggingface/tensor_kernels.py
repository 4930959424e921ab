"""Scores and selection of clusters as PyTorch operations, for models on a GPU or another accelerator.

The results equal those of `golden.scores` and `golden.wicsum` in every bit, as those of `kernels` on a processor: all
values behind the scores are integers, and scores are sums whose rounding is safe. All KV heads are computed at once.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch

from golden import bf16, exp
from golden.wicsum import INDEX_BITS, WtuConfig
from sw_model.huggingface.kernels import EXACT_SPREAD, ONE
from sw_model.huggingface.means import CompiledMeans

WORK_SCORES = 1 << 18  # scores of one pass: those of longer steps and more clusters need several
WORK_MEANS = 1 << 19  # elements of mean keys that are in float64 at a time


@cache
def _exponentials(device: torch.device) -> torch.Tensor:
    """BF16 exponential of 0 to `exp.FARTHEST` steps, int64."""
    codes = exp.power(bf16.encode(np.arange(exp.FARTHEST + 1), bf16.FP32))
    return torch.from_numpy(codes.astype(np.int64)).to(device)


def _lengths_and_spreads(vectors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Euclidean length of vectors (..., d), and length divided by the smallest absolute value that is not zero."""
    magnitude = vectors.abs()
    smallest = torch.where(magnitude > 0, magnitude, torch.inf).amin(dim=-1)
    length = vectors.square().sum(dim=-1).sqrt()
    return length, length / smallest


def dots(rows: torch.Tensor, means: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores of rows (H, R, d), float64, and mean keys (H, C, d), both BF16 numbers: float32 (H, R, C).

    Also bool (H, R): rows with a score that can differ from the exact dot product, rounded. `kernels.round_scores` has
    the same rule.
    """
    heads, _, size = means.shape
    parts = means.split(max(1, WORK_MEANS // (heads * size)), dim=1)
    scores, doubtful = zip(*(_dots(rows, part.double()) for part in parts), strict=True)
    if len(parts) == 1:
        return scores[0], doubtful[0]
    return torch.cat(scores, dim=2), torch.stack(doubtful).any(dim=0)


def _dots(rows: torch.Tensor, means: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`dots` for mean keys in float64."""
    sums = rows @ means.transpose(1, 2)
    (row_lengths, row_spreads), (lengths, spreads) = map(_lengths_and_spreads, (rows, means))
    error = rows.shape[2] * 2.0**-52 * row_lengths[:, :, None] * lengths[:, None]
    error = torch.where(row_spreads[:, :, None] * spreads[:, None] > EXACT_SPREAD, error, torch.zeros_like(error))
    return sums.float(), ((sums - error).float() != (sums + error).float()).any(dim=2)


class DeviceMeans:
    """Copy of the mean keys of a table on a device; a step copies only the mean keys that changed.

    heads  KV heads whose mean keys form a row
    """

    def __init__(self, device: str, heads: int) -> None:
        self.device, self.heads = device, heads
        self.rows = torch.zeros((0, 0), dtype=torch.bfloat16, device=device)
        self.step = 0  # last step of the means that the copy contains

    def update(self, means: CompiledMeans) -> torch.Tensor:
        """The mean keys of all clusters, BF16 (H, C, d)."""
        vectors = means.means
        if len(vectors) > len(self.rows):
            size = max(64, 2 * len(vectors))
            self.rows = torch.zeros((size, vectors.shape[1]), dtype=torch.bfloat16, device=self.device)
            self.step = 0
        changed = means.changed_since(self.step)
        self.step = means.steps
        # a BF16 number is exact in float32
        self.rows[upload(changed, self.device)] = upload(vectors[changed].astype(np.float32), self.device).bfloat16()
        return self.rows[: len(vectors)].view(len(vectors), self.heads, -1).transpose(0, 1)


def upload(array: np.ndarray, device: str | torch.device) -> torch.Tensor:
    """An array on a device."""
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)


def _bit_length(values: torch.Tensor) -> torch.Tensor:
    return torch.frexp(values.double())[1].long()


def select_clusters(
    scores: torch.Tensor, counts: torch.Tensor, factor: float, wics_ratio_q16: int, buckets: int, refine_levels: int
) -> torch.Tensor:
    """Clusters that each row selects as `golden.wicsum.select` with its default weight, domain and stop rule.

    scores          float32 (H, R, C), C at least 1
    counts          int64 (H or 1, C), tokens of each cluster
    factor          distance in steps of the exponential per unit of score
    wics_ratio_q16  share of the weighted sum that the selection exceeds, in units of 2**-16

    Returns bool (H, R, C).
    """
    distance = (scores.amax(dim=2, keepdim=True) - scores) * torch.tensor(
        factor, dtype=torch.float32, device=scores.device
    )
    keys = _exponentials(scores.device)[distance.clamp(max=exp.FARTHEST).long()]
    shift = ((ONE >> 7) - (keys >> 7)).clamp(max=63)
    weights = torch.where(keys >= 128, ((keys & 127 | 128) << 17) >> shift, 0) * counts[:, None]
    total = weights.sum(dim=2)
    stop = (total >> 16) * wics_ratio_q16 + ((total & 0xFFFF) * wics_ratio_q16 >> 16)

    # the key at which the sorted sum crosses the threshold; key and index in one word make the order unique
    clusters = torch.arange(keys.shape[2], device=keys.device)
    words, order = ((ONE - keys << INDEX_BITS) + clusters).sort(dim=2)
    exceeds = weights.gather(2, order).cumsum(dim=2) > stop[:, :, None]
    first = exceeds.int().argmax(dim=2, keepdim=True)
    crossing = ONE - (words.gather(2, first)[:, :, 0] >> INDEX_BITS)

    # the bucket of each level that holds this key
    active = total > stop
    bits = buckets.bit_length() - 1
    bound, top = keys.amin(dim=2), torch.full_like(crossing, ONE)
    for _ in range(refine_levels + 1):
        shift = (_bit_length(top - bound) - bits).clamp(min=0)
        lower = top - ((top - crossing >> shift) << shift)
        top = torch.where(active, lower, top)
        bound = torch.where(active, torch.maximum(bound, top - (1 << shift) + 1), bound)
        active = active & (shift > 0)
    return keys >= bound[:, :, None]


def select(
    rows: np.ndarray, means: torch.Tensor, counts: np.ndarray, factor: float, wics_ratio_q16: int, wtu: WtuConfig
) -> np.ndarray | None:
    """Clusters that any row of each KV head selects, bool (H, C); None if the rounding of a score is in doubt.

    rows    float64 (H, R, d) of BF16 numbers; `means` of `DeviceMeans.update`
    counts  tokens of each cluster; the other arguments are those of `select_clusters`
    """
    heads, clusters = means.shape[:2]
    queries, tokens = upload(rows, means.device), upload(counts.astype(np.int64)[None], means.device)
    selected = torch.zeros((heads, clusters), dtype=torch.bool, device=means.device)
    doubt = torch.zeros((), dtype=torch.bool, device=means.device)
    for part in queries.split(max(1, WORK_SCORES // (heads * clusters)), dim=1):
        scores, doubtful = dots(part, means)
        doubt |= doubtful.any()
        selected |= select_clusters(scores, tokens, factor, wics_ratio_q16, wtu.buckets, wtu.refine_levels).any(dim=1)
    return None if bool(doubt) else selected.cpu().numpy()
