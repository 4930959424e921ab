"""One decoder layer with attention to retrieved tokens as the core computes it, bit exact (V-Rex, Fig. 10).

It combines the fused products of `dot`, the vector kernels of `vector_kernels`, clustering, selection and paging of
`kvpu`, and the mean keys of `mean_keys`. It adds the order in which a head attends to keys: the selected clusters in
ascending order, the pages of a cluster in the order of its chain, in each page the tokens from before the step, then
the tokens of the step with a causal mask.

A layer can select for the next one (`prefetch` = `next_layer` of `golden.resv`): its queries score the clusters that
the next layer has before the step.

A `LayerPolicy` replaces parts of ReSV: how tokens are clustered, what scores a cluster, which pages stay after a step.

Layers and streams share one `Kvpu`; each layer of each stream has its own context in the store.

The elements of a head are stored in `pair_order`: blocks of `inputs` elements of the lower half, each followed by the
block of the upper half that RoPE rotates with it. This order affects only the order of the sums.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import numpy as np
from ml_dtypes import bfloat16

from golden import bf16, rope
from golden import vector_kernels as kernels
from golden.baselines import infinigen_columns
from golden.bf16 import BF16, BF16_ONE, FP32
from golden.clustering import Assignment
from golden.dot import matmul, to_bf16
from golden.kvmu import Command, Op, Reply
from golden.kvpu import HeadScores, Kvpu
from golden.mean_keys import MeanKeys
from golden.quickvideo import kept_count, norm_codes
from golden.resv import PREFETCH
from golden.selection import covering_row, sortable
from golden.two_stage import selection_keys
from golden.wicsum import RowSelections
from util import checks


class Branch(Protocol):
    """A branch parallel to the attention, with the state of one layer of one stream."""

    def step(self, u: np.ndarray, /) -> np.ndarray:
        """FP32 bit patterns (T, Hq * d) for the next tokens (T, inputs), BF16 bit patterns."""


@dataclass(frozen=True)
class PartialScores:
    """InfiniGen: partial scores by which each query row of a layer selects past tokens.

    The queries of a layer are speculated: they are computed from the normalised hidden states of the layer before. A
    query head uses some of its columns (`golden.baselines.infinigen_columns`), those of the first step of the stream.
    The first layer attends to all past tokens.

    column_share  share of the columns of a query head, above 0 and at most 1
    budget        past tokens that each row selects, those with the largest scores; the lowest index wins ties
    prefill       all steps select; False: only those of one token of text, the others attend to all past tokens
    """

    column_share: float
    budget: int
    prefill: bool

    def __post_init__(self) -> None:
        if not 0 < checks.real("column_share", self.column_share) <= 1:
            raise ValueError(f"column_share must be above 0 and at most 1, got {self.column_share}")
        checks.integer("budget", self.budget, 1)
        checks.flag("prefill", self.prefill)

    def selects(self, tokens: int, visual: bool) -> bool:
        """Whether a step of `tokens` tokens selects. `visual` : the tokens are those of frames"""
        return self.prefill or (tokens == 1 and not visual)


def column_mask(q: np.ndarray, order: np.ndarray, head: int, column_share: float) -> np.ndarray:
    """Columns that the partial scores of each query head use, by its queries in the first step: bool (Hq, d).

    q      BF16 bit patterns (T, Hq, d), with elements and padding as in memory
    order  element number at each position of a head in memory
    head   elements of a head of the model; the columns are a `column_share` of them
    """
    half, size = head // 2, q.shape[2] // 2
    elements = np.r_[:half, size : size + half]  # without padding
    queries = np.empty_like(q)
    queries[:, :, order] = q
    columns = elements[infinigen_columns(bf16.decode(queries[:, :, elements], BF16), column_share)]
    mask = np.zeros(q.shape[1:], bool)
    np.put_along_axis(mask, columns, True, axis=1)
    return mask[:, order]


@dataclass(frozen=True)
class LayerPolicy:
    """What a layer does with its tokens. The defaults are those of ReSV.

    hashes      tokens are clustered by the hash codes of their keys; False: by the label of their step, which is their
                hash code. A cluster takes tokens with the same label in order of arrival until it is full
    mean_keys   clusters have mean keys
    score_row   scores of the first clusters that all queries share, uint16 (C,); None: each query scores the mean keys
    kept_pages  numbers of the first and of the last pages of cluster 0 that stay after a step, the others are released;
                None: all pages stay
    by_frames   the labels are numbers of frames, 0 for text. All KV heads share one row of scores: the sum over all
                queries and heads of the dot products with the mean keys, without RoPE on both sides. Cluster 0, the
                text, has the largest score. The selection precedes the clustering of the step
    rho         share of the tokens of a step of frames that stay, those with the smallest norms of their keys
                (`golden.quickvideo.kept_count`); the others are not stored. Tokens of text stay
    partitions  Mosaic: partitions that pass the first stage of the selection (`golden.two_stage`), which precedes the
                step; 0: another policy. The tokens of a step are stored after it, in clusters that the host chooses
                (`DecoderLayer.store`), and pages that were fetched stay in device memory
    partial     InfiniGen: partial scores of all past tokens, each of which is a cluster; None: another policy
    """

    hashes: bool = True
    mean_keys: bool = True
    score_row: tuple[int, ...] | None = None
    kept_pages: tuple[int, int] | None = None
    by_frames: bool = False
    rho: float = 1
    partitions: int = 0
    partial: PartialScores | None = None

    def __post_init__(self) -> None:
        checks.integer("partitions", self.partitions, 0)
        if self.score_row is None and not self.mean_keys:
            raise ValueError("mean_keys must be True without a score_row, got False")
        if checks.real("rho", self.rho, 0, 1) != 1 and (self.hashes or self.mean_keys):
            raise ValueError(f"rho must be 1 with hash codes or mean keys, got {self.rho}")
        for pages in self.kept_pages or ():
            checks.integer("kept_pages", pages, 0)

    @property
    def keeps_order(self) -> bool:
        """Whether one cluster has all tokens of a stream, in order of arrival, until pages are released."""
        return self.score_row is not None and self.rho == 1


@dataclass(frozen=True)
class ClusterRows:
    """What the host knows of the clusters of a layer with `partitions`, one row for each cluster.

    partitions       partitions of the first stage, at most those that exist
    representatives  of the partition of each cluster, BF16 bit patterns (C, Hkv * d) in memory order, unit vectors
    centroids        likewise, of each cluster
    counts           tokens of each cluster, uint16 (C,); that of cluster 0, the text, exceeds every budget
    """

    partitions: int
    representatives: np.ndarray
    centroids: np.ndarray
    counts: np.ndarray


RESV_POLICY = LayerPolicy()
TEXT_SCORE = 2.0**100  # added to the score of cluster 0 with `by_frames`


@dataclass(frozen=True)
class LayerShape:
    """Sizes of a decoder layer and of the matrix engine.

    hidden, ffn        width of the hidden states and of the feed-forward layer, in elements
    q_heads, kv_heads  query and KV heads
    head_dim           elements of one head in memory
    head_elements      elements of one head that the model has, the others are zero (`pad_heads`); 0: all
    hash_bits          hash bits of a key (N_hp in the paper)
    inputs             products of a tile; also lanes of the vector engine
    align_bits         bits of an aligned product (`golden.dot`)
    theta              base of RoPE
    frequencies        angles of RoPE per position and pair, in radians; (): those of `theta`
    norm_epsilon       constant that the RMSNorms add to the mean square
    piece_tokens       tokens of a step that update the mean keys together, each mean key is rounded once per piece;
                       0: all
    """

    hidden: int
    ffn: int
    q_heads: int
    kv_heads: int
    head_dim: int
    hash_bits: int
    inputs: int
    align_bits: int = 24
    theta: float = rope.THETA_LLAMA3
    frequencies: tuple[float, ...] = ()
    norm_epsilon: float = 1e-5
    head_elements: int = 0
    piece_tokens: int = 0

    def __post_init__(self) -> None:
        for name in ("hidden", "ffn", "q_heads", "kv_heads", "head_dim", "hash_bits", "inputs"):
            checks.integer(name, getattr(self, name), 1)
        if self.q_heads % self.kv_heads:
            raise ValueError(f"q_heads must be a multiple of kv_heads = {self.kv_heads}, got {self.q_heads}")
        if checks.integer("head_elements", self.head_elements, 0, self.head_dim) % 2:
            raise ValueError(f"head_elements must be even, got {self.head_elements}")
        checks.integer("piece_tokens", self.piece_tokens, 0)
        if len(self.frequencies) not in (0, self.model_head_dim // 2):
            raise ValueError(f"frequencies must be {self.model_head_dim // 2}, got {len(self.frequencies)}")

    def angles(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Cosines and sines of RoPE at positions (T,): FP32 bit patterns (T, head_dim / 2) each."""
        return angles(positions, self.head_dim, self.frequencies or rope.frequencies(self.model_head_dim, self.theta))

    @property
    def model_head_dim(self) -> int:
        """Elements of one head of the model, which determine the scale of the scores and the angles of RoPE."""
        return self.head_elements or self.head_dim

    def weights(self) -> dict[str, tuple[int, int]]:
        """Shape (outputs, inputs) of every weight matrix."""
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
    """Element number at each position of a head in memory, int64 (head_dim,)."""
    half = np.arange(head_dim // 2)
    if half.size % inputs:
        raise ValueError(f"head_dim must be a multiple of {2 * inputs}, got {head_dim}")
    return np.stack([half.reshape(-1, inputs), half.reshape(-1, inputs) + head_dim // 2], axis=1).ravel()


def pad_heads(matrix: np.ndarray, heads: int, head_dim: int, axis: int) -> np.ndarray:
    """Pad the heads along an axis of a matrix with zeros to `head_dim` elements.

    The two halves of a head that RoPE rotates with each other keep their places at the beginning of the two halves of
    `head_dim`.
    """
    moved = np.moveaxis(np.asarray(matrix), axis, 0)
    half = moved.shape[0] // (2 * heads)
    if moved.shape[0] != 2 * heads * half or 2 * half > head_dim:
        raise ValueError(
            f"axis must have {heads} heads of an even size up to {head_dim}, got {moved.shape[0]} elements"
        )
    padded = np.zeros((heads, 2, head_dim // 2, *moved.shape[1:]), moved.dtype)
    padded[:, :, :half] = moved.reshape(heads, 2, half, *moved.shape[1:])
    return np.ascontiguousarray(np.moveaxis(padded.reshape(heads * head_dim, *moved.shape[1:]), 0, axis))


def angles(
    positions: np.ndarray, head_dim: int, frequencies: Sequence[float] | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines of RoPE, FP32 bit patterns (T, head_dim / 2) each.

    `positions` is (T,), or (T, pairs) if pairs follow different axes. `frequencies` has the angle per position of each
    pair of the model's head. The pairs of the padding have angle 0.
    """
    at = np.asarray(positions, np.float64)
    angle = (at[:, None] if at.ndim == 1 else at) * np.asarray(frequencies)
    angle = np.pad(angle, ((0, 0), (0, head_dim // 2 - angle.shape[1])))
    return bf16.encode(np.cos(angle), FP32), bf16.encode(np.sin(angle), FP32)


def with_bias(matrix: np.ndarray, bias: np.ndarray, inputs: int) -> np.ndarray:
    """A matrix (M, K) with `inputs` more columns, the first of which is the bias (M,): BF16 bit patterns.

    Its product with activations that end in `one` adds the bias after all other products.
    """
    columns = np.zeros((len(matrix), inputs), np.uint16)
    columns[:, 0] = bias
    return np.concatenate([matrix, columns], axis=1)


def one(inputs: int) -> np.ndarray:
    """The word (1, 0, 0, ..) that follows the activations of a product with bias: BF16 bit patterns (inputs,)."""
    return np.array([BF16_ONE] + [0] * (inputs - 1), np.uint16)


@dataclass
class StepResult:
    """Result of one step of T tokens.

    output    BF16 bit patterns (T, hidden)
    codes     hash codes, uint32 (T,)
    assigned  clusters of the tokens
    rows      for each KV head, the selections of its rows (query token, query head)
    attended  for each KV head, the past tokens that it attends to, in order
    pages     for each KV head, its pages as (byte address, tokens from before the step)
    replies   replies of the KVMU
    context   attention output, BF16 bit patterns (T, Hq, d)
    kept      tokens of the step that were stored, int64 ascending; `codes` and `assigned` are theirs
    """

    output: np.ndarray
    codes: np.ndarray
    assigned: Assignment
    rows: list[RowSelections]
    attended: list[list[int]]
    pages: list[list[tuple[int, int]]]
    replies: list[Reply]
    context: np.ndarray
    kept: np.ndarray


@dataclass(frozen=True)
class Selection:
    """Pages that the queries of a step select in a layer.

    rows      for each KV head, the selections of its rows (query token, query head); empty if there are no clusters
    attended  for each KV head, the past tokens of the selected clusters, in order
    pages     for each KV head, its pages as (byte address, tokens from before the step)
    replies   replies of the KVMU
    """

    rows: list[RowSelections]
    attended: list[list[int]]
    pages: list[list[tuple[int, int]]]
    replies: list[Reply]


@dataclass
class DecoderLayer:
    """State and execution of one layer of one stream.

    shape    sizes
    weights  BF16 bit patterns of every matrix, shapes as in `LayerShape.weights`
    norms    BF16 bit patterns (hidden,) of the RMSNorm weights before the attention and before the feed-forward layer
    table    KV prediction unit, shared with other layers and streams
    context  number of the context of this layer and stream in the store of `table`
    biases   BF16 bit patterns (outputs,) of those matrices that have one, of q, k and v
    keys, values  BF16 codes (Hkv, d) of the tokens so far, in memory order, or their encoded bytes, uint8 (Hkv, bytes);
                  not empty if the stream is resumed
    following     layer for which the queries of this layer select; None: no layer
    prefetched    selection of the layer before for the next step of this layer; None: this layer selects itself
    policy        what the layer does with its tokens
    label         hash code of the tokens of the next step if the policy does not hash
    visual        the tokens of the next step are those of frames
    rows          rows of all clusters for a policy with `partitions`, which the host sets before a step
    columns       columns of the partial scores, bool (Hq, d) in memory order; None before the first step
    speculated    queries (T, Hq, d) in memory order that the layer before has computed for the next selection of this
                  layer, 0 outside `columns`; None: it selects all past tokens
    branch        state-space branch, whose output is added to the attention output; None: there is none
    branch_query  its inputs are the rotated queries in memory order; False: the normalised hidden states
    """

    shape: LayerShape
    weights: dict[str, np.ndarray]
    norms: tuple[np.ndarray, np.ndarray]
    table: Kvpu
    context: int = 0
    keys: list[np.ndarray] = field(default_factory=list)
    values: list[np.ndarray] = field(default_factory=list)
    biases: dict[str, np.ndarray] = field(default_factory=dict)
    following: "DecoderLayer | None" = None
    prefetched: Selection | None = None
    policy: LayerPolicy = RESV_POLICY
    label: int = 0
    visual: bool = False
    rows: ClusterRows | None = None
    columns: np.ndarray | None = None
    speculated: np.ndarray | None = None
    branch: Branch | None = None
    branch_query: bool = True

    def __post_init__(self) -> None:
        for name, size in self.shape.weights().items():
            if self.weights[name].shape != size:
                raise ValueError(f"weights[{name!r}] must have shape {size}, got {self.weights[name].shape}")
        self.order = pair_order(self.shape.head_dim, self.shape.inputs)

    def product(self, x: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """FP32 bit patterns (T, M) of x (T, K) times weights (M, K), both BF16."""
        return matmul(x, weights, self.shape.inputs, self.shape.align_bits)

    def projection(self, name: str, x: np.ndarray) -> np.ndarray:
        """Product of x (T, K) with the matrix `name`, with its bias if it has one: FP32 bit patterns (T, M)."""
        if name not in self.biases:
            return self.product(x, self.weights[name])
        n = self.shape.inputs
        inputs = np.concatenate([x, np.tile(one(n), (len(x), 1))], axis=1)
        return self.product(inputs, with_bias(self.weights[name], self.biases[name], n))

    def step(self, x: np.ndarray, positions: Sequence[int] | np.ndarray) -> StepResult:
        """Run the layer on hidden states (T, hidden), BF16 bit patterns, at `positions`; T tokens join the tables"""
        s = self.shape
        cos, sin = s.angles(np.asarray(positions))
        projected, v = self.projections(x)
        q, k = (kernels.rope(heads, cos, sin)[:, :, self.order] for heads in projected)

        plain = None
        if self.policy.by_frames:
            one, zero = np.full_like(cos, bf16.encode(np.ones(1), FP32)[0]), np.zeros_like(sin)
            plain = [kernels.rope(heads, one, zero)[:, :, self.order] for heads in projected]
        if self.policy.partial is not None:
            if self.following is not None:
                self.following.speculated = self.following.speculate(x, self.norms[0], cos, sin, self.visual)
            if self.columns is None:
                self.columns = column_mask(q, self.order, s.model_head_dim, self.policy.partial.column_share)
        context, trace = self.attend(q, k, v, plain)
        if self.branch is not None:
            normed = kernels.rms_norm(x, self.norms[0], self.shape.inputs, self.shape.norm_epsilon)
            u = q.reshape(len(x), -1) if self.branch_query else normed
            context = kernels.residual(context.reshape(len(x), -1), self.branch.step(u))
        trace.output = self.finish(x, context)
        return trace

    def speculate(
        self, x: np.ndarray, norm: np.ndarray, cos: np.ndarray, sin: np.ndarray, visual: bool
    ) -> np.ndarray | None:
        """Queries of this layer for the hidden states x and the norm weights of the layer before, see `speculated`."""
        partial, s = self.policy.partial, self.shape
        if partial is None or self.columns is None or not partial.selects(len(x), visual):
            return None
        normed = kernels.rms_norm(x, norm, s.inputs, s.norm_epsilon)
        projected = self.projection("q", normed).reshape(len(x), s.q_heads, -1)
        return np.where(self.columns, kernels.rope(projected, cos, sin)[:, :, self.order], 0).astype(np.uint16)

    def projections(self, x: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        """Queries and keys before RoPE, FP32 (T, H, d) each, and values, BF16 (T, Hkv, d), of hidden states x."""
        s = self.shape
        normed = kernels.rms_norm(x, self.norms[0], s.inputs, s.norm_epsilon)
        projected = [self.projection("q", normed).reshape(len(x), s.q_heads, -1),
                     self.projection("k", normed).reshape(len(x), s.kv_heads, -1)]  # fmt: skip
        return projected, to_bf16(self.projection("v", normed)).reshape(len(x), s.kv_heads, -1)

    def finish(self, x: np.ndarray, context: np.ndarray) -> np.ndarray:
        """Output (T, hidden) of the layer for its input x and the context (T, Hq, d) of the attention."""
        s, w = self.shape, self.weights
        attended = kernels.residual(x, self.product(context.reshape(len(x), -1), w["o"]))
        normed = kernels.rms_norm(attended, self.norms[1], s.inputs, s.norm_epsilon)
        middle = kernels.gated(self.product(normed, w["gate"]), self.product(normed, w["up"]))
        return kernels.residual(attended, self.product(middle, w["down"]))

    def kept_tokens(self, k: np.ndarray) -> np.ndarray:
        """Tokens of a step with keys k (T, Hkv, d) in memory order that stay, int64 ascending."""
        count = kept_count(len(k), self.policy.rho) if self.visual else len(k)
        if count == len(k):
            return np.arange(len(k))
        norms = norm_codes(k.reshape(len(k), -1), self.shape.inputs)
        return np.flatnonzero(self.table.keep(norms, count).selected[0])

    def append(
        self, k: np.ndarray, v: np.ndarray, averaged: np.ndarray | None = None
    ) -> tuple[np.ndarray, Assignment, list[Reply]]:
        """Hash, cluster and store keys and values (T, Hkv, d) in memory order: steps 1 and 2 of Fig. 10.

        `averaged` : keys of which the mean keys are the means; None: `k`

        Returns the hash codes, the clusters and the replies of the KVMU.
        """
        opening = [] if self.prefetched else self.table.open(self.context)  # a prefetch has opened the context
        vectors = k.reshape(len(k), -1)
        codes = np.full(len(k), self.label, np.uint32)
        if self.policy.hashes:
            codes = kernels.signs(self.product(vectors, self.hyperplanes()))
        assigned, replies = self.table.cluster(codes)
        if self.policy.mean_keys:
            means_of = vectors if averaged is None else averaged.reshape(len(k), -1)
            self._update_means(np.ascontiguousarray(means_of).view(bfloat16), assigned)
        self.keys += self._as_stored(k)
        self.values += self._as_stored(v)
        return codes, assigned, opening + replies

    def _as_stored(self, x: np.ndarray) -> list[np.ndarray]:
        """Keys or values (T, Hkv, d) as they are in a page, where they can be encoded."""
        layout = self.table.kvmu.config.layout
        return list(layout.encode(x.reshape(-1, x.shape[-1])).reshape(*x.shape[:2], -1) if layout.is_encoded else x)

    def _read(self, stored: Sequence[np.ndarray], tokens: Sequence[int], head: int) -> list[np.ndarray]:
        """BF16 codes (d,) of stored keys or values of a KV head."""
        layout, rows = self.table.kvmu.config.layout, [stored[token][head] for token in tokens]
        return list(layout.decode(np.stack(rows))) if rows and layout.is_encoded else rows

    def _update_means(self, keys: np.ndarray, assigned: Assignment) -> None:
        """Update the mean keys of the context piece by piece; clusters that are opened later have no mean key yet."""
        means, stored, counts = MeanKeys(keys.shape[1]), self.table.context.mean_keys, self.table.clusters.counts.copy()
        known = len(counts) - int(assigned.opened.sum())
        means.means = stored[:known].view(bfloat16)
        size = self.shape.piece_tokens or len(keys)
        for start in range(0, len(keys), size):
            piece = slice(start, start + size)
            known += int(assigned.opened[piece].sum())
            counts[assigned.cluster[piece]] = assigned.count[piece]  # the last token of a cluster counts
            means.update(keys[piece], assigned.cluster[piece], counts[:known])
        stored[: len(means.means)] = means.means.view(np.uint16)

    def fill(self, k: np.ndarray, v: np.ndarray) -> None:
        """Append keys and values without queries."""
        self.append(k, v)
        self.release()
        self.table.fetch([])

    def release(self) -> list[Reply]:
        """Release the pages that the policy does not keep."""
        if self.policy.kept_pages is None:
            return []
        first, last = self.policy.kept_pages
        return self.table.kvmu.execute(Command(Op.EVICT, cluster=0, index=first, page=last))

    def attend(
        self, q: np.ndarray, k: np.ndarray, v: np.ndarray, plain: Sequence[np.ndarray] | None = None
    ) -> tuple[np.ndarray, StepResult]:
        """The six steps of Fig. 10: hash, cluster, score, select, fetch, attend; then pages are released.

        q and k are BF16 bit patterns in memory order. Returns the context (T, Hq, d) and the result without its output.
        After the end of the step, the queries select for the layer `following`. `plain` : queries and keys before RoPE,
        for a policy `by_frames`.
        """
        s, tokens = self.shape, len(k)
        scoring, averaged = (q, None) if plain is None else plain
        replies, more, stored_later = list[Reply](), list[Reply](), self.policy.partitions > 0
        if (plain is not None or stored_later) and self.prefetched is None:
            replies += self.table.open(self.context)
            self.prefetched = self.select(scoring)
        kept = np.arange(tokens) if stored_later else self.kept_tokens(k)
        if stored_later:
            codes, assigned = np.zeros(0, np.uint32), self.table.clusters.assign(np.zeros(0, np.uint32))
            self.keys += self._as_stored(k)
            self.values += self._as_stored(v)
        else:
            codes, assigned, more = self.append(k[kept], v[kept], averaged)
        selection, self.prefetched = self.prefetched or self.select(q), None
        replies += [*more, *selection.replies, *self.release(), *self.table.commit()]
        if self.following is not None:
            replies += self.table.open(self.following.context)
            self.following.prefetched = self.following.select(scoring)
        group, rows, context = s.q_heads // s.kv_heads, self._query_rows(q), []
        for h, past in enumerate(selection.attended):
            keys = np.stack([*self._read(self.keys, past, h), *k[:, h]])
            values = np.stack([*self._read(self.values, past, h), *v[:, h]])
            scores = self.product(rows[h], keys)
            weights = np.zeros((tokens * group, len(keys)), np.uint16)
            for r in range(tokens * group):
                row_length = len(past) + r // group + 1
                weights[r, :row_length] = kernels.softmax(scores[r, :row_length], s.model_head_dim, s.inputs)
            context.append(to_bf16(self.product(weights, np.ascontiguousarray(values.T))))
        out = np.stack(context).reshape(s.kv_heads, tokens, group, -1).swapaxes(0, 1)
        nothing = np.zeros((0, s.hidden), np.uint16)
        trace = StepResult(
            nothing, codes, assigned, selection.rows, selection.attended, selection.pages, replies, out, kept
        )  # fmt: skip
        return out.reshape(tokens, s.q_heads, -1), trace

    def store(self, labels: Sequence[int]) -> None:
        """Store the tokens of the last step in the clusters `labels`, one for each, for a policy with `partitions`."""
        self.table.open(self.context)
        self.table.cluster(np.array(labels, np.uint32))
        self.table.commit()

    def move(self, moves: Sequence[tuple[int, int]]) -> None:
        """Move tokens to clusters: pairs of a token and a cluster. The next cluster is created if it does not exist."""
        self.table.open(self.context)
        for token, cluster in moves:
            self.table.move(token, cluster, cluster)
        self.table.commit()

    def select(self, q: np.ndarray) -> Selection:
        """Score the clusters of the context, which is open, with queries (T, Hq, d) in memory order, and fetch."""
        s = self.shape
        cutoffs, _, replies = self.table.retrieve(self._scores(q) if len(self.table.clusters) else [])
        past = [self._past(replies, h) for h in range(s.kv_heads)]
        attended = [[token for _, tokens in pages for token in tokens] for pages in past]
        counts = [[(address, len(tokens)) for address, tokens in pages] for pages in past]
        return Selection(cutoffs, attended, counts, replies)

    def _scores(self, q: np.ndarray) -> list[HeadScores]:
        """Score rows of every KV head."""
        s, shared = self.shape, self.policy.score_row
        if self.policy.partitions:
            return self._two_stages(q)
        if self.policy.partial is not None:
            return self._partial_scores(self.policy.partial.budget)
        if shared is not None:
            row = np.array(shared[: len(self.table.clusters)], np.uint16)
            return [HeadScores(h, row[None]) for h in range(s.kv_heads)]
        means = self.table.context.mean_keys[: len(self.table.clusters)].reshape(-1, s.kv_heads, s.head_dim)
        groups, products = (
            [],
            [self.product(rows, np.ascontiguousarray(means[:, h])) for h, rows in enumerate(self._query_rows(q))],
        )
        if self.policy.by_frames:
            total, *others = np.concatenate(products)
            for row in others:
                total = bf16.add(total, row, FP32)
            bias = np.zeros(len(total))
            bias[0] = TEXT_SCORE
            keys = sortable(to_bf16(bf16.add(total, bf16.encode(bias, FP32), FP32)))
            return [HeadScores(h, keys[None]) for h in range(s.kv_heads)]
        for h, scores in enumerate(products):
            groups.append(HeadScores(h, np.stack([kernels.exponentials(row, s.model_head_dim) for row in scores])))
        return groups

    def _partial_scores(self, budget: int) -> list[HeadScores]:
        """Score rows of all past tokens by the speculated queries; without them rows that select all tokens."""
        s, tokens = self.shape, len(self.table.clusters)
        if self.speculated is None:
            row, stride = covering_row(tokens, budget, s.inputs)
            rows = np.stack([row[start : start + tokens] for start in range(0, tokens, stride)])
            return [HeadScores(h, sortable(rows)) for h in range(s.kv_heads)]
        keys = self.table.context.mean_keys[:tokens].reshape(-1, s.kv_heads, s.head_dim)
        return [
            HeadScores(h, sortable(to_bf16(self.product(rows, np.ascontiguousarray(keys[:, h])))))
            for h, rows in enumerate(self._query_rows(self.speculated))
        ]

    def _two_stages(self, q: np.ndarray) -> list[HeadScores]:
        """Score rows of Mosaic, the same for every KV head."""
        s, rows = self.shape, self.rows
        assert rows is not None, "the host sets the rows before a step"
        products = [
            np.concatenate([
                self.product(queries, np.ascontiguousarray(vectors.reshape(-1, s.kv_heads, s.head_dim)[:, h]))
                for h, queries in enumerate(self._query_rows(q))
            ])
            for vectors in (rows.representatives, rows.centroids)
        ]  # fmt: skip
        keys = selection_keys(products[0], products[1], rows.partitions)
        return [HeadScores(h, keys, rows.counts) for h in range(s.kv_heads)]

    def _query_rows(self, q: np.ndarray) -> np.ndarray:
        """Queries (T, Hq, d) as rows (query token, query head) of each KV head: (Hkv, T * group, d)."""
        rows = q.reshape(len(q), self.shape.kv_heads, -1, q.shape[2]).swapaxes(0, 1)
        return rows.reshape(len(rows), -1, q.shape[2])

    def hyperplanes(self) -> np.ndarray:
        """Hyperplanes (bits, Hkv * d) with the elements of each head in memory order."""
        planes = self.weights["planes"].reshape(self.shape.hash_bits, self.shape.kv_heads, -1)
        return np.ascontiguousarray(planes[:, :, self.order].reshape(self.shape.hash_bits, -1))

    def _past(self, replies: list[Reply], head: int) -> list[tuple[int, list[int]]]:
        """Tokens from before the step in the pages that a head selected, with the address of each page."""
        return [
            (reply.address, self.table.context.lists[reply.page, : reply.count].tolist())
            for reply in replies
            if reply.op == Op.SELECT and not reply.last and reply.head == head
        ]


def link(layers: Sequence[DecoderLayer], prefetch: str) -> None:
    """Set for which layer the queries of each of these layers of a stream select; `prefetch` as in `golden.resv`."""
    checks.one_of("prefetch", prefetch, PREFETCH)
    for layer, following in pairwise(layers):
        layer.following = following if prefetch == "next_layer" else None
