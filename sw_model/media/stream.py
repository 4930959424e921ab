"""Common format of all key sources: one `Chunk` per frame or text turn, with Q, K and V of all layers.

Video, generator and trace use this format, so that clustering, statistics and the trace writer accept any of them. A
stream is an iterator of chunks with one `Geometry`; one chunk is in memory at a time.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import ml_dtypes
import numpy as np

from golden.rope import THETA_LLAMA3
from util import checks

BF16 = np.dtype(ml_dtypes.bfloat16)
STAGES = ("frame", "text")
MAX_EXTENT = 1 << 16  # layers, heads, elements: no decoder has as many, and weights are drawn for all


@dataclass(frozen=True)
class Geometry:
    """Shapes of a decoder's attention: layers, query and KV heads, head dimension, RoPE base.

    Raises ValueError unless the KV heads divide the query heads and the head dimension is even.
    """

    layers: int
    q_heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    theta: float = THETA_LLAMA3

    def __post_init__(self) -> None:
        for name in ("layers", "q_heads", "kv_heads", "head_dim"):
            checks.integer(name, getattr(self, name), 1, MAX_EXTENT)
        if self.q_heads % self.kv_heads:
            raise ValueError(f"q_heads must be a multiple of kv_heads = {self.kv_heads}, got {self.q_heads}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim must be even, got {self.head_dim}")
        checks.real("theta", self.theta, 1)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Chunk:
    """New tokens of a frame or text turn: Q (L, T, Hq, d), K and V (L, T, Hkv, d), bfloat16, after RoPE.

    stage      "frame" or "text"
    positions  int64 (T,): RoPE positions of the tokens, ascending from chunk to chunk
    """

    stage: str
    positions: np.ndarray
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray

    def __post_init__(self) -> None:
        checks.one_of("stage", self.stage, STAGES)
        checks.integers("positions", self.positions, None, low=0)
        tokens = len(self.positions)
        for name in ("q", "k", "v"):
            array = getattr(self, name)
            if array.dtype != BF16:
                raise checks.ArgumentTypeError(f"{name} must be bfloat16, got {array.dtype}")
            if array.ndim != 4 or array.shape[1] != tokens:
                raise ValueError(f"{name} must have shape (layers, {tokens}, heads, d), got {array.shape}")
        if self.k.shape != self.v.shape:
            raise ValueError(f"k and v must have equal shapes, got {self.k.shape} and {self.v.shape}")
        if self.q.shape[0] != self.k.shape[0] or self.q.shape[3] != self.k.shape[3]:
            raise ValueError(f"q of shape {self.q.shape} does not fit k of shape {self.k.shape}")

    @property
    def tokens(self) -> int:
        return len(self.positions)


def slow_pair_gains(head_dim: int) -> np.ndarray:
    """Gain of each RoPE pair, float64 (head_dim / 2,): most energy is in the pairs with low frequency.

    Trained models store content in the slow pairs, where it changes little by the rotation between two frames; a white
    projection would lose it. A logistic step from 0.08 to 1, centred at 60 % of the pairs.
    """
    x = 2 * np.arange(head_dim // 2) / head_dim
    return 0.08 + 0.92 / (1 + np.exp(-(x - 0.6) / 0.04))
