"""One decoder layer with ReSV attention as the core computes it, bit for bit (V-Rex, Fig. 10).

Composed of the mechanisms of their own modules: fused products (`dot`), vector kernels (`kernels`), clustering,
selection and pages (`kvpu`), representative keys (`representative`). What this adds is the order in which a head
attends to keys: of each selected page, in ascending order, the tokens that were there before the step, then the step's
own, causally.

A head's elements lie in memory in `pair_order`: blocks of `inputs` elements of the lower half, each followed by the
block of the upper half that rotates with it. It is the order of the products' sums, nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from ml_dtypes import bfloat16

from golden import bf16, rope
from golden import vector_kernels as kernels
from golden.bf16 import FP32
from golden.clustering import Assignment
from golden.dot import matmul, to_bf16
from golden.kvmu import Op, Reply
from golden.kvpu import HeadScores, Kvpu
from golden.mean_keys import MeanKeys
from golden.wicsum import RowSelections
from util import checks


@dataclass(frozen=True)
class LayerShape:
    """Sizes of a layer and of the engine; `inputs` products of a tile, also the lanes of the vector engine."""

    hidden: int
    ffn: int
    q_heads: int
    kv_heads: int
    head_dim: int
    hash_bits: int
    inputs: int
    align_bits: int = 24
    theta: float = rope.THETA_LLAMA3

    def __post_init__(self) -> None:
        for name in ("hidden", "ffn", "q_heads", "kv_heads", "head_dim", "hash_bits", "inputs"):
            checks.integer(name, getattr(self, name), 1)
        if self.q_heads % self.kv_heads:
            raise ValueError(f"q_heads must be a multiple of kv_heads = {self.kv_heads}, got {self.q_heads}")

    def weights(self) -> dict[str, tuple[int, int]]:
        """Rows (outputs) and columns (inputs) of every matrix."""
        q, kv = self.q_heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "q": (q, self.hidden),
            "k": (kv, self.hidden),
            "v": (kv, self.hidden),
            "o": (self.hidden, q),
            "gate": (self.ffn, self.hidden),
            "up": (self.ffn, self.hidden),
            "down": (self.hidden, self.ffn),
            "planes": (self.hash_bits, kv),
        }


def pair_order(head_dim: int, inputs: int) -> np.ndarray:
    """Which element of a head stands where in memory, int64 (head_dim,)."""
    half = np.arange(head_dim // 2)
    if half.size % inputs:
        raise ValueError(f"head_dim must be a multiple of {2 * inputs}, got {head_dim}")
    return np.stack([half.reshape(-1, inputs), half.reshape(-1, inputs) + head_dim // 2], axis=1).ravel()


def angles(positions: np.ndarray, head_dim: int, theta: float) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines of RoPE, FP32 codes (T, head_dim / 2) each."""
    angle = np.asarray(positions, np.float64)[:, None] * rope.frequencies(head_dim, theta)
    return bf16.encode(np.cos(angle), FP32), bf16.encode(np.sin(angle), FP32)


@dataclass
class StepResult:
    """What one step gave: BF16 codes of `output` (T, hidden); hash codes and what became of them; of each head the rows
    of its queries and the past tokens it attended to, in order, by page (address, tokens); replies; the context."""

    output: np.ndarray
    codes: np.ndarray
    assigned: Assignment
    rows: list[RowSelections]
    attended: list[list[int]]
    pages: list[list[tuple[int, int]]]
    replies: list[Reply]
    context: np.ndarray


@dataclass
class DecoderLayer:
    """One layer: `weights` and `norms` (attention, feed-forward) are BF16 codes, `table` its KV prediction unit."""

    shape: LayerShape
    weights: dict[str, np.ndarray]
    norms: tuple[np.ndarray, np.ndarray]
    table: Kvpu
    keys: list[np.ndarray] = field(default_factory=list)  # (Hkv, d) BF16 codes of every token, in memory order
    values: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name, size in self.shape.weights().items():
            if self.weights[name].shape != size:
                raise ValueError(f"weights[{name!r}] must have shape {size}, got {self.weights[name].shape}")
        self.means = MeanKeys(self.shape.kv_heads * self.shape.head_dim)
        self.token_of_slot: dict[tuple[int, int], int] = {}  # token in a slot of a page
        self.order = pair_order(self.shape.head_dim, self.shape.inputs)

    def product(self, x: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """FP32 codes (T, M) of BF16 x (T, K) times weights (M, K)."""
        return matmul(x, weights, self.shape.inputs, self.shape.align_bits)

    def step(self, x: np.ndarray, positions: Sequence[int]) -> StepResult:
        """Hidden states (T, hidden), BF16 codes, at `positions`, through the layer; its tables grow by T tokens."""
        s, w = self.shape, self.weights
        normed = kernels.rms_norm(x, self.norms[0], s.inputs)
        cos, sin = angles(np.asarray(positions), s.head_dim, s.theta)
        q = kernels.rope(self.product(normed, w["q"]).reshape(len(x), s.q_heads, -1), cos, sin)[:, :, self.order]
        k = kernels.rope(self.product(normed, w["k"]).reshape(len(x), s.kv_heads, -1), cos, sin)[:, :, self.order]
        v = to_bf16(self.product(normed, w["v"])).reshape(len(x), s.kv_heads, -1)

        context, trace = self.attend(q, k, v)
        attended = kernels.residual(x, self.product(context.reshape(len(x), -1), w["o"]))
        normed = kernels.rms_norm(attended, self.norms[1], s.inputs)
        middle = kernels.gated(self.product(normed, w["gate"]), self.product(normed, w["up"]))
        trace.output = kernels.residual(attended, self.product(middle, w["down"]))
        return trace

    def append(self, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, Assignment, list[Reply]]:
        """The first two steps: hash codes of keys and values (T, Hkv, d) in memory order, their clusters and places."""
        start = len(self.keys)
        vectors = k.reshape(len(k), -1)
        codes = kernels.signs(self.product(vectors, self._planes()))
        assigned, replies = self.table.cluster(codes)
        for n, reply in enumerate(r for r in replies if r.op == Op.APPEND):
            self.token_of_slot[reply.page, reply.slot] = start + n
        self.means.update(vectors.view(bfloat16), assigned.cluster, self.table.clusters.counts)
        self.keys += list(k)
        self.values += list(v)
        return codes, assigned, replies

    def fill(self, k: np.ndarray, v: np.ndarray) -> None:
        """A step that asks for nothing."""
        self.append(k, v)
        self.table.fetch([])

    def attend(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, StepResult]:
        """The six steps: hash, cluster, score, threshold, fetch, attend; q, k in memory order, BF16 codes.

        Gives the context (T, Hq, d), and the trace without its output.
        """
        s, start, tokens = self.shape, len(self.keys), len(k)
        codes, assigned, replies = self.append(k, v)
        group = s.q_heads // s.kv_heads
        rows = q.reshape(tokens, s.kv_heads, group, -1).swapaxes(0, 1).reshape(s.kv_heads, tokens * group, -1)
        means = self.means.means.view(np.uint16).reshape(-1, s.kv_heads, s.head_dim)
        groups = []
        for h in range(s.kv_heads):
            scores = self.product(rows[h], np.ascontiguousarray(means[:, h]))
            groups.append(HeadScores(h, np.stack([kernels.exponentials(row, s.head_dim) for row in scores])))
        cutoffs, _, fetch_replies = self.table.fetch(groups)

        context, lists, pages = [], [], []
        for h in range(s.kv_heads):
            pages.append(self._past(fetch_replies, h, start))
            past = [token for _, tokens in pages[-1] for token in tokens]
            lists.append(past)
            ids = [*past, *range(start, start + tokens)]
            keys = np.stack([self.keys[i][h] for i in ids])
            values = np.stack([self.values[i][h] for i in ids])
            scores = self.product(rows[h], keys)
            weights = np.zeros((tokens * group, len(ids)), np.uint16)
            for r in range(tokens * group):
                row_length = len(past) + r // group + 1
                weights[r, :row_length] = kernels.softmax(scores[r, :row_length], s.head_dim, s.inputs)
            context.append(to_bf16(self.product(weights, np.ascontiguousarray(values.T))))
        out = np.stack(context).reshape(s.kv_heads, tokens, group, -1).swapaxes(0, 1)
        nothing = np.zeros((0, s.hidden), np.uint16)
        counts = [[(address, len(tokens)) for address, tokens in of] for of in pages]
        trace = StepResult(nothing, codes, assigned, cutoffs, lists, counts, replies + fetch_replies, out)
        return out.reshape(tokens, s.q_heads, -1), trace

    def _planes(self) -> np.ndarray:
        """Hyperplanes (bits, Hkv d) with the elements of each head in memory order."""
        planes = self.weights["planes"].reshape(self.shape.hash_bits, self.shape.kv_heads, -1)
        return np.ascontiguousarray(planes[:, :, self.order].reshape(self.shape.hash_bits, -1))

    def _past(self, replies: list[Reply], head: int, start: int) -> list[tuple[int, list[int]]]:
        """Tokens before `start` of the pages that a head selected, page by page, with the address of the page."""
        out: list[tuple[int, list[int]]] = []
        for reply in replies:
            if reply.op == Op.FETCH and not reply.last and reply.head == head:
                page_tokens = [self.token_of_slot[reply.page, slot] for slot in range(reply.count)]
                out.append((reply.address, [token for token in page_tokens if token < start]))
        return out
