"""The interface of a retrieval policy, and the records that its methods take and return.

`append` and `select` run a policy on real keys and queries; they give its quality and its measured retrieval ratio.
`account` gives the cost of one step in closed form, so that the system model can run a 40K-token stream of a 32-layer
model without any keys.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from golden.growable_array import GrowableArray
from golden.rope import THETA_LLAMA3, rotate
from util import checks

BF16_BYTES = 2
STAGES = ("frame", "text")
SCHEDULES = ("ahead", "next_layer", "same_layer")
MACHINES = ("vrex", "gpu")  # kinds of system, as in a system preset


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder with grouped-query attention. Raises ValueError for a size below 1.

    layers              decoder layers
    hidden              elements of the hidden state
    q_heads, kv_heads   query heads and KV heads; q_heads is a multiple of kv_heads
    head_dim            elements of one head
    """

    layers: int
    hidden: int
    q_heads: int
    kv_heads: int
    head_dim: int

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "q_heads", "kv_heads", "head_dim"):
            checks.integer(name, getattr(self, name), 1)
        if self.q_heads % self.kv_heads:
            raise ValueError(f"q_heads must be a multiple of kv_heads = {self.kv_heads}, got {self.q_heads}")

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.q_heads // self.kv_heads

    @property
    def key_dim(self) -> int:
        """Elements of one token's key over all KV heads of a layer."""
        return self.kv_heads * self.head_dim

    @property
    def kv_bytes(self) -> int:
        """Bytes of the key and value of one token in one layer, BF16."""
        return 2 * self.key_dim * BF16_BYTES


LLAMA3_8B = ModelShape(layers=32, hidden=4096, q_heads=32, kv_heads=8, head_dim=128)


@dataclass(frozen=True)
class Step:
    """One forward pass of the language model: `new_tokens` of each of `batch` sequences after `past_tokens`.

    new_tokens       tokens of the step, per sequence, at least 1
    past_tokens      tokens of one sequence before the step
    stage            `frame`: tokens of a video frame; `text`: tokens of a question, or one generated token
    batch            sequences
    ratio            share of the past tokens that the policy retrieves, 0 to 1; None: measured by `select`, else
                     published
    resident_tokens  newest tokens of a sequence that device memory holds, counted in BF16
    kv_bits          bits of one stored element of the KV cache, headers included, 1 to 16
    machine          kind of the machine that executes the step, `vrex` or `gpu`

    Raises TypeError or ValueError for an invalid value.
    """

    new_tokens: int
    past_tokens: int
    stage: str
    model: ModelShape = LLAMA3_8B
    batch: int = 1
    ratio: float | None = None
    resident_tokens: int = 4096
    kv_bits: float = 16.0
    machine: str = "vrex"

    def __post_init__(self) -> None:
        checks.integer("new_tokens", self.new_tokens, 1)
        checks.integer("past_tokens", self.past_tokens, 0)
        checks.one_of("stage", self.stage, STAGES)
        checks.one_of("machine", self.machine, MACHINES)
        checks.integer("batch", self.batch, 1)
        checks.integer("resident_tokens", self.resident_tokens, 0)
        checks.real("kv_bits", self.kv_bits, 1, 16)
        if self.ratio is not None:
            checks.real("ratio", self.ratio, 0, 1)


class Matmul(NamedTuple):
    """`times` matrix products (vectors x inputs) by (inputs x outputs). Counts can be means, so they are floats.

    `weights` : the matrix is one of weights, which are read from device memory for the product
    """

    vectors: float
    inputs: float
    outputs: float
    times: float = 1.0
    weights: bool = False

    @property
    def flops(self) -> float:
        """Operations, two for a multiply-accumulate."""
        return 2.0 * self.vectors * self.inputs * self.outputs * self.times


@dataclass(frozen=True)
class Work:
    """The cost of one step in one layer, as a mean over the layers. Bytes and counts are sums over the batch.

    attended_tokens    past tokens that each new token attends to
    attend_read_bytes  device memory read by the attention over past tokens
    append_bytes       new keys and values, written once to the cache (and in time over the link)
    processed_tokens   tokens of one sequence that pass through the layer
    fetch_bytes        offloaded KV that crosses the host link
    fetch_extents      contiguous reads that `fetch_bytes` consists of
    matmuls            matrix products besides those of the model: hashing, scores, a branch parallel to the attention
    vector_ops         element operations of the prediction: exp, norms, means
    exponential_rows   rows of scores of the prediction whose exponentials are part of `vector_ops`
    hamming_pairs      (token, candidate) comparisons of hash codes
    threshold_rows     rows whose entries a threshold or a top-k selects; one core of an accelerator does all
    threshold_entries  entries of each such row
    threshold_passes   buckets that the WTU examines in each such row
    threshold_levels   levels of these buckets
    predict_read_bytes device memory read by the prediction, besides the weights of `matmuls`
    scratch_bytes      device memory that the prediction reads and writes for its intermediate results, such as scores
    lone_read_bytes    part of it that the core which retrieves for all reads alone, for its vector engine
    gpu_kernels        kernels of the prediction on a GPU, written with framework operations
    passes             times that tokens pass through a layer, each with a read of its weights
    first_layer        tokens that the first layer attends to without a prediction, as a multiple of those of the
                       others; 1: it predicts and attends as they do
    selects, clusters  clusters that the KVMU looks up for a KV head of a sequence, and those in its tables
    page_slots         tokens of a page; 0: pages are full
    common_selection   the KV heads select the same clusters, and the fetch for the first one is that for all
    vision_fraction    share of the frame's patches that the vision encoder computes
    schedule           when the fetch can start: `ahead` (no prediction needed), `next_layer` (predicted one layer
                       early), `same_layer` (predict, fetch, then attend)

    Raises ValueError for an unknown schedule.
    """

    attended_tokens: float
    attend_read_bytes: float
    append_bytes: float
    processed_tokens: float
    fetch_bytes: float = 0.0
    fetch_extents: float = 0.0
    matmuls: tuple[Matmul, ...] = ()
    vector_ops: float = 0.0
    exponential_rows: float = 0.0
    hamming_pairs: float = 0.0
    threshold_rows: float = 0.0
    threshold_entries: float = 0.0
    threshold_passes: float = 0.0
    threshold_levels: float = 2.0
    predict_read_bytes: float = 0.0
    scratch_bytes: float = 0.0
    lone_read_bytes: float = 0.0
    gpu_kernels: float = 0.0
    passes: float = 1.0
    first_layer: float = 1.0
    selects: float = 0.0
    clusters: float = 0.0
    page_slots: float = 0.0
    common_selection: bool = False
    vision_fraction: float = 1.0
    schedule: str = "ahead"

    def __post_init__(self) -> None:
        checks.one_of("schedule", self.schedule, SCHEDULES)

    def of_stream(self, batch: int) -> "Work":
        """The work of one of `batch` equal sequences."""
        sums = (
            "attend_read_bytes", "append_bytes", "fetch_bytes", "fetch_extents", "vector_ops", "hamming_pairs",
            "exponential_rows", "threshold_rows", "predict_read_bytes", "scratch_bytes", "lone_read_bytes",
            "gpu_kernels",
        )  # fmt: skip
        matmuls = tuple(
            each._replace(vectors=each.vectors / batch) if each.weights else each._replace(times=each.times / batch)
            for each in self.matmuls
        )
        return replace(self, matmuls=matmuls, **{name: getattr(self, name) / batch for name in sums})

    @property
    def predict_flops(self) -> float:
        """Operations of `matmuls`, two for a multiply-accumulate."""
        return sum(m.flops for m in self.matmuls)

    @property
    def weight_bytes(self) -> float:
        """Bytes of the weights of `matmuls`."""
        return sum(BF16_BYTES * m.inputs * m.outputs for m in self.matmuls if m.weights)

    @property
    def extent_bytes(self) -> float:
        """Mean size of one contiguous read in bytes; 0 without a fetch."""
        return self.fetch_bytes / self.fetch_extents if self.fetch_extents else 0.0


@dataclass(frozen=True)
class Selection:
    """The past tokens that the queries of one step attend to. The step's own tokens are attended in addition.

    tokens         per KV head h, int array of past token numbers, ascending
    allowed        per KV head, bool (T * group, len(tokens[h])): the tokens that each row attends to; rows are ordered
                   by token, then by query head of the group; None: all
    keys, values   float32 (N, Hkv, d), read instead of the cached ones, if the policy stores them changed (quantised)
    pseudo_keys, pseudo_values  float32 (E, Hkv, d), attended in addition (representatives of tokens not retrieved)
    bits           bits of one stored element of the past tokens
    """

    tokens: tuple[np.ndarray, ...]
    allowed: tuple[np.ndarray, ...] | None = None
    keys: np.ndarray | None = None
    values: np.ndarray | None = None
    pseudo_keys: np.ndarray | None = None
    pseudo_values: np.ndarray | None = None
    bits: float = 16.0


class Chunk(NamedTuple):
    """Tokens start..stop - 1 of one step. `stage` is empty until `select` gets the queries of the step."""

    start: int
    stop: int
    stage: str


class Policy(ABC):
    """A retrieval policy on one sequence. A subclass defines `select` and `account`.

    For every step and layer `append` is called first, with the step's keys and values, then `select`, with its
    queries. The step's own tokens are always attended to, causally, and are not part of the selection.

    The system model and the quality table read these attributes and methods; neither knows a policy by its name.

    name          name of the policy in results and reports
    offloads_all  kinds of machine ("vrex", "gpu") on which the policy's software keeps the whole KV cache outside the
                  device memory and drops what it fetched at the end of each step; default: none, so that the newest
                  `Step.resident_tokens` tokens and a share of the fetched ones stay in device memory
    blocking      kinds of machine ("vrex", "gpu") on which each layer waits until its own fetch is complete; default:
                  none, so that the fetch of a layer overlaps the computation of the layer before it
    undoes_rope   the policy scores keys before the rotary embedding, so it must be able to undo the embedding
    whole_steps   the policy changes all layers at the end of a step, so a step cannot be divided layer by layer
    """

    name: ClassVar[str]
    offloads_all: ClassVar[frozenset[str]] = frozenset()
    blocking: ClassVar[frozenset[str]] = frozenset()
    undoes_rope: ClassVar[bool] = False
    whole_steps: ClassVar[bool] = False

    def __init__(self, model: ModelShape) -> None:
        self.model = model
        self._keys = [GrowableArray((model.kv_heads, model.head_dim), np.float32) for _ in range(model.layers)]
        self._values = [GrowableArray((model.kv_heads, model.head_dim), np.float32) for _ in range(model.layers)]
        self._chunks: list[list[Chunk]] = [[] for _ in range(model.layers)]
        self._positions = GrowableArray((1,), np.int64)
        self.step_starts: list[int] = []  # first token of each call of `extend_positions`
        self.sections: tuple[int, ...] | None = None
        self.layout = "chunked"
        self._measured: dict[str, list[float]] = {stage: [] for stage in STAGES}

    @classmethod
    def for_stream(
        cls,
        model: ModelShape,
        *,
        tokens_per_frame: int = 10,
        theta: float = THETA_LLAMA3,
        budget_frames: int | None = None,
    ) -> Self:
        """A policy for one stream. The default passes `model` alone to the constructor.

        A policy overrides this method when it needs one of the other values, or when its constructor needs more.

        tokens_per_frame  tokens of one video frame
        theta             base of the rotary embedding in the keys of the stream
        budget_frames     number of frames that the policy may retrieve or keep, at least 1; None: as published
        """
        return cls(model)

    def append(self, layer: int, keys: np.ndarray, values: np.ndarray) -> None:
        """Add the keys and values of one step to one layer.

        keys    (T, Hkv, d), after the rotary embedding, T at least 1
        values  (T, Hkv, d)

        Raises TypeError or ValueError for a wrong layer, shape or number.
        """
        layer = checks.integer("layer", layer, 0, self.model.layers - 1)
        k = checks.reals("keys", keys, None, self.model.kv_heads, self.model.head_dim)
        v = checks.reals("values", values, len(k), self.model.kv_heads, self.model.head_dim)
        if not len(k):
            raise ValueError("keys must hold at least one token, got none")
        start = len(self._keys[layer])
        self._chunks[layer].append(Chunk(start, start + len(k), ""))
        self._keys[layer].extend(k)
        self._values[layer].extend(v)

    def extend_positions(self, positions: np.ndarray) -> None:
        """Positions of the tokens of the next step in the rotary embedding, int64 (T, axes).

        Without a call, positions count tokens. With several axes (M-RoPE), the attributes `sections` and `layout` are
        those of `golden.rope.rotate`.
        """
        axes = 1 if self.sections is None else len(self.sections)
        new = checks.integers("positions", positions, None, axes)
        if not self.step_starts:
            self._positions = GrowableArray((axes,), np.int64)
        self.step_starts.append(len(self._positions))
        self._positions.extend(new)

    @property
    def positions(self) -> np.ndarray:
        """Positions of all tokens in the rotary embedding, as `extend_positions` stated them: int64 (N, axes)."""
        return self._positions.array

    def unrotated(self, x: np.ndarray, start: int, theta: float) -> np.ndarray:
        """`x` (T, heads, d) of tokens start, start + 1, ... before the rotary embedding with base `theta`."""
        stop = start + len(x)
        positions = self.positions[start:stop] if self.step_starts else np.arange(start, stop)[:, None]
        if self.sections is None:
            return rotate(x, -positions, theta)
        return rotate(x, -positions[:, None], theta, self.sections, self.layout)

    def attach(self, layer: int, keys: Any, values: Any) -> None:
        """Read the keys and values of a layer from objects of the caller instead of own copies.

        Both have the interface of `golden.growable_array.GrowableArray` and hold the tokens appended so far.
        """
        self._keys[layer], self._values[layer] = keys, values

    @abstractmethod
    def select(self, layer: int, queries: np.ndarray, stage: str) -> Selection:
        """The past tokens that the queries of the last appended step attend to.

        queries  (T, Hq, d), after the rotary embedding
        stage    `frame` or `text`

        Raises TypeError or ValueError for a wrong layer, shape, number or stage.
        """

    @abstractmethod
    def account(self, step: Step) -> Work:
        """The cost of one layer of `step`."""

    def keys(self, layer: int) -> np.ndarray:
        """All appended keys of a layer, float32 (N + T, Hkv, d)."""
        return self._keys[layer].array

    def values(self, layer: int) -> np.ndarray:
        """All appended values of a layer, float32 (N + T, Hkv, d)."""
        return self._values[layer].array

    def past(self, layer: int) -> int:
        """Number of tokens before the last appended step."""
        return self._chunks[layer][-1].start if self._chunks[layer] else 0

    def chunks(self, layer: int) -> list[Chunk]:
        """The steps before the last appended one."""
        return self._chunks[layer][:-1]

    def queries(self, layer: int, queries: np.ndarray, stage: str) -> np.ndarray:
        """Checked queries, float64 (T, Hkv, group, d): the query heads grouped by the KV head that they use.

        Also records the stage of the step. Raises TypeError or ValueError for a wrong layer, shape, number or stage.
        """
        checks.one_of("stage", stage, STAGES)
        checks.integer("layer", layer, 0, self.model.layers - 1)
        if not self._chunks[layer]:
            raise ValueError(f"keys of layer {layer} must be appended before its queries select")
        m, last = self.model, self._chunks[layer][-1]
        q = checks.reals("queries", queries, last.stop - last.start, m.q_heads, m.head_dim)
        self._chunks[layer][-1] = last._replace(stage=stage)
        return q.reshape(len(q), m.kv_heads, m.group, m.head_dim)

    def note(self, layer: int, stage: str, tokens: Sequence[np.ndarray]) -> None:
        """Record the retrieved share of the past. `tokens`: one array per KV head, or one array for all of them."""
        if self.past(layer):
            self._measured[stage].append(sum(map(len, tokens)) / len(tokens) / self.past(layer))

    def ratio(self, step: Step) -> float:
        """Share of the past that `step` retrieves, 0 to 1: `step.ratio`, else the mean that `select` measured, else
        `expected_ratio`."""
        if step.ratio is not None:
            return step.ratio
        measured = self._measured[step.stage]
        return float(np.mean(measured)) if measured else self.expected_ratio(step)

    def expected_ratio(self, step: Step) -> float:
        """Share of the past before anything is measured: published (V-Rex, Table II) or by construction."""
        return 1.0

    def work(
        self,
        step: Step,
        attended: float,
        extents: float,
        *,
        cached: float | None = None,
        bits: float | None = None,
        processed: float | None = None,
    ) -> Work:
        """The cost of attention and cache; `dataclasses.replace` adds the cost of the prediction.

        Attended tokens are assumed to be spread evenly over the cache, so that the resident tokens save their share of
        the fetch.

        attended   past tokens that each new token attends to
        extents    contiguous reads that contain all of them, in one sequence and layer
        cached     tokens in the cache, if the policy dropped some; None: all past tokens
        bits       bits of one stored element; None: those of the step
        processed  new tokens that pass through the layer; None: all
        """
        cached_tokens = step.past_tokens if cached is None else cached
        bits = step.kv_bits if bits is None else bits
        missing = max(0.0, cached_tokens - step.resident_tokens * 16 / bits) / max(1.0, cached_tokens)
        kv_bytes = step.model.kv_bytes * step.batch * bits / 16
        new = step.new_tokens if processed is None else processed
        return Work(
            attended_tokens=attended,
            attend_read_bytes=attended * kv_bytes,
            append_bytes=new * kv_bytes,
            processed_tokens=new,
            fetch_bytes=attended * missing * kv_bytes,
            fetch_extents=extents * missing * step.batch,
        )
