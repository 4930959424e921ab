"""`RetrievalCache`: a cache of transformers that attends to the past tokens that a retrieval policy selects.

For every step and layer the cache stores the new keys and values, gives the keys (rounded to BF16) to the policy, and
attends to the tokens that the policy selects for the queries. A policy is a class of `sw_model.policies`: its index is
in host memory, and its selections are those of the golden models on the same keys.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from ml_dtypes import bfloat16
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from sw_model.huggingface import rope
from sw_model.huggingface.attention import IMPLEMENTATION, MARK, Softmax, blocks
from sw_model.huggingface.resv import CompiledReSV
from sw_model.huggingface.store import LayerStore, StoredRows
from sw_model.policies import STAGES, ModelShape, Policy, ReSV, Selection, load
from util import checks

POSITIONS = ("absolute", "compact")
HOST_SELECTION = ("cpu", "mps")  # devices of models for which the processor selects: MPS has no float64


def policy_class(name: str) -> type[Policy]:
    """The policy class of a name or a Python file; ReSV with compiled kernels."""
    policy = load(name)
    return CompiledReSV if policy is ReSV else policy


def bf16_array(tensor: torch.Tensor) -> np.ndarray:
    """A tensor (heads, T, d) of any float type as bfloat16 (T, heads, d)."""
    bits = tensor.transpose(0, 1).detach().to("cpu", torch.bfloat16).contiguous().view(torch.int16)
    return bits.numpy().view(bfloat16)


class Snapshot(NamedTuple):
    """State of a cache between two steps: policy, its index as a pickle, and the figures of every layer."""

    policy: Policy | None
    state: bytes
    layers: list[tuple[int, int, int]]


class RetrievalLayer(CacheLayerMixin):
    """Cache of one decoder layer. `update` accepts the keys and values of a step; `attend` uses them."""

    is_sliding = False
    supports_early_init = False

    def __init__(self, cache: RetrievalCache, index: int) -> None:
        super().__init__()
        self.cache, self.index = cache, index
        self.store: LayerStore | None = None
        self.attached = False  # the policy reads the rows of the store
        self.retrieved = self.past_tokens = 0  # sums over steps and KV heads

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        batch, kv_heads, _, head_dim = key_states.shape
        if batch != 1:
            raise ValueError(f"batch must be 1 with a RetrievalCache, got {batch}")
        if value_states.shape != key_states.shape:
            raise ValueError(
                f"values must have the shape of the keys, got {tuple(value_states.shape)} and {tuple(key_states.shape)}"
            )
        self._open_store(kv_heads, head_dim, key_states.dtype, key_states.device)

    def _open_store(self, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> LayerStore:
        folder = self.cache.folder
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        file = None if folder is None else folder / f"layer{self.index}.rows"
        self.store = LayerStore(kv_heads, head_dim, dtype, device, self.cache.device_tokens, file)
        self.is_initialized = True
        return self.store

    def restore(self, rows: torch.Tensor, device: torch.device) -> None:
        """Start with the rows (N, Hkv, 2, d) of an earlier cache."""
        self._open_store(rows.shape[1], rows.shape[3], rows.dtype, device).extend(rows)

    def bind_rows(self, policy: Policy) -> None:
        """Let the policy read keys and values from the store instead of own copies."""
        if self.store is not None:
            policy.attach(self.index, StoredRows(self.store, False), StoredRows(self.store, True))
            self.attached = True

    def crop(self, tokens_to_remove: int) -> None:
        raise NotImplementedError("a RetrievalCache removes tokens with `snapshot` and `rewind` only")

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Accept the keys and values (1, Hkv, T, d) of a step; they are stored when `attend` is called with them."""
        if self.cache.pending is not None:
            raise RuntimeError(
                f"attention of layer {self.cache.pending} must be 'sdpa' or {IMPLEMENTATION!r}: "
                "call prepare(model) first"
            )
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.cache.pending = self.index
        marked = key_states.view_as(key_states)
        setattr(marked, MARK, self)
        return marked, value_states

    def attend(
        self, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, options: Any
    ) -> torch.Tensor:
        """Store the tokens of a step and attend: output (1, T, Hq, d)."""
        cache, store = self.cache, self.store
        assert store is not None
        cache.pending = None
        if mask is not None and not (isinstance(mask, torch.Tensor) and mask.dtype == torch.bool):
            raise ValueError(f"attention_mask must be boolean or None, got {getattr(mask, 'dtype', type(mask))}")
        if mask is not None and not mask.diagonal(dim1=-2, dim2=-1).all():
            raise ValueError("attention_mask must have no padding with a RetrievalCache")
        policy = cache.bind(module, query.shape[1], store)
        if not self.attached:
            self.bind_rows(policy)
        tokens = query.shape[2]
        if self.index == 0:
            cache.note_positions(policy, tokens)
        scaling = options.get("scaling") or query.shape[3] ** -0.5
        step = cache.block if cache.block is not None and mask is None else tokens
        outputs = []
        for start in range(0, tokens, step):
            part = slice(start, min(start + step, tokens))
            q, k, v = query[0, :, part], key[0, :, part], value[0, :, part]
            own_mask = None if mask is None else mask[0, 0, part, part]
            past = store.length
            store.append(k.transpose(0, 1), v.transpose(0, 1))
            selection = self.select(policy, q, k, v)
            if cache.observer is not None:
                cache.observer(self, q, selection, scaling)
            self.past_tokens += past * store.kv_heads
            self.retrieved += sum(map(len, selection.tokens))
            if not past and selection.pseudo_keys is None:
                plain = {name: x for name, x in options.items() if name == "scaling"}
                sdpa_mask = None if own_mask is None else own_mask[None, None]
                out, _ = sdpa_attention_forward(module, q[None], k[None], v[None], sdpa_mask, **plain)
                outputs.append(out[0])
            else:
                outputs.append(self._retrieve(policy, q, k, v, selection, own_mask, scaling))
        return torch.cat(outputs)[None] if len(outputs) > 1 else outputs[0][None]

    def select(self, policy: Policy, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> Selection:
        """Give the keys and values (Hkv, T, d) of a step to the policy; the past tokens that its queries (Hq, T, d)
        attend to."""
        policy.append(self.index, bf16_array(keys), bf16_array(values))
        if isinstance(policy, CompiledReSV) and queries.device.type not in HOST_SELECTION:
            policy.use_device(self.index, str(queries.device))
        stage = self.cache.stage or ("text" if queries.shape[1] == 1 else "frame")
        return policy.select(self.index, bf16_array(queries), stage)

    def _retrieve(
        self, policy: Policy, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, selection: Selection,
        own_mask: torch.Tensor | None, scaling: float,
    ) -> torch.Tensor:  # fmt: skip
        """Attention output (T, Hq, d): queries (Hq, T, d), the selection, and own keys and values (Hkv, T, d)."""
        cache, store = self.cache, self.store
        assert store is not None
        kv_heads, tokens, d = k.shape
        group = q.shape[0] // kv_heads
        rows, shifts = q.reshape(kv_heads, group * tokens, d), None  # ordered by query head, then by token
        if cache.positions == "compact":
            moves = [compact_shifts(policy, self.index, ids) for ids in selection.tokens]
            shifts, own = [move[0] for move in moves], [np.full(1, move[1]) for move in moves]
            rows, k = (
                torch.stack([rope.rotate(x, s, cache.frequency) for x, s in zip(vectors, own, strict=True)])
                for vectors in (rows, k)
            )
        softmax = Softmax(rows, scaling)
        for block in blocks(store, selection, group, cache.block_tokens, shifts):
            block_bytes = (block.keys.numel() + block.values.numel()) * block.keys.element_size()
            cache.block_bytes = max(cache.block_bytes, block_bytes)
            keys = block.keys if block.shifts is None else rope.rotate(block.keys, block.shifts, cache.frequency)
            softmax.add(block.heads, keys, block.values, block.mask)
        causal = (
            torch.ones((tokens, tokens), dtype=torch.bool, device=q.device).tril() if own_mask is None else own_mask
        )
        softmax.add(slice(None), k, v, causal.repeat(group, 1)[None] if tokens > 1 else None)
        return softmax.result().view(kv_heads * group, tokens, d).transpose(0, 1).to(store.dtype)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """The mask covers the step's own tokens; past tokens are selected by the policy."""
        return query_length, self.get_seq_length()

    def get_seq_length(self) -> int:
        """Number of tokens so far, evicted ones included: the position of the next token."""
        return 0 if self.store is None else self.store.length

    def get_max_length(self) -> int:
        return -1

    def reset(self) -> None:
        self.store, self.is_initialized, self.attached = None, False, False
        self.retrieved = self.past_tokens = 0

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        raise NotImplementedError("beam search needs more than one sequence; a RetrievalCache has one")


def compact_shifts(policy: Policy, layer: int, tokens: np.ndarray) -> tuple[np.ndarray, int]:
    """Changes of position with which a KV head attends to positions without gaps.

    tokens  int64 ascending, the past tokens that the head attends to

    Returns int64 (len(tokens),), and the change of all tokens of the step, which follow. With one position axis, every
    attended token has one position. With several axes, the tokens of a step keep their distances: a step with an
    attended token has all of its positions, and all axes change by the same number.
    """
    positions = policy.positions
    if policy.sections is None:
        return np.arange(len(tokens)) - positions[tokens, 0], len(tokens) - int(positions[policy.past(layer), 0])
    starts = np.array(policy.step_starts)  # of complete steps; their blocks are steps of the policy
    first = np.minimum.reduceat(positions.min(axis=1), starts)
    length = np.maximum.reduceat(positions.max(axis=1), starts) + 1 - first
    step = np.searchsorted(starts, tokens, side="right") - 1
    attended = np.zeros(len(starts), np.int64)
    attended[step] = length[step]
    new = np.cumsum(attended) - attended
    return (new - first)[step], int(new[-1] - first[-1])


class RetrievalCache(Cache):
    """A cache with bounded device memory that retrieves past tokens by a policy.

    model.generate(**inputs, cache=RetrievalCache(policy="resv", device_tokens=4096))

    The model needs `sdpa` attention, the default of transformers, or a call of `prepare(model)` before. One sequence;
    the positions count all tokens so far.

    policy         name of a policy (`sw_model.policies.POLICIES`), path of a Python file with one, or a function that
                   makes a policy from a `ModelShape`
    device_tokens  newest tokens of every layer in device memory; all tokens are in host memory
    block_tokens   tokens of each KV head of a layer that are copied to the device at a time
    options        arguments of the policy's constructor, for instance `config`
    frame_tokens   tokens of one video frame (`Policy.for_stream`)
    budget_frames  number of frames that a policy may retrieve or keep; None: as published
    stage          stage of every step, `frame` or `text`; None: a step with one token is `text`, a longer one `frame`
    block          the policy receives a step in blocks of this many tokens; None: as a whole.
                   A policy with `whole_steps` needs None
    positions      `absolute`: keys keep the positions at which the model computed them; `compact`: the attended tokens
                   of a KV head get the positions 0, 1, ..., and those of the step follow (keys and queries are rotated
                   again), so that no distance exceeds the number of attended tokens. With several position axes, the
                   tokens of one step keep their distances
    folder         folder for memory-mapped files with the rows of the host; None: memory, pinned for a CUDA device
    """

    def __init__(
        self,
        policy: Any = "resv",
        *,
        device_tokens: int = 4096,
        block_tokens: int = 4096,
        options: Mapping[str, Any] | None = None,
        frame_tokens: int = 10,
        budget_frames: int | None = None,
        stage: str | None = None,
        block: int | None = None,
        positions: str = "absolute",
        folder: Path | str | None = None,
    ) -> None:
        super().__init__(layers=[])
        if isinstance(policy, str):
            policy_class(policy)  # raises ValueError for an unknown name
        self.policy_name = policy
        self.device_tokens = checks.integer("device_tokens", device_tokens, 0)
        self.block_tokens = checks.integer("block_tokens", block_tokens, 1)
        self.options = dict(options or {})
        self.frame_tokens = checks.integer("frame_tokens", frame_tokens, 1)
        self.budget_frames = None if budget_frames is None else checks.integer("budget_frames", budget_frames, 1)
        self.stage = stage if stage is None else checks.one_of("stage", stage, STAGES)
        self.block = None if block is None else checks.integer("block", block, 1)
        self.positions = checks.one_of("positions", positions, POSITIONS)
        self.folder = None if folder is None else Path(folder)
        self.policy: Policy | None = None
        self.frequency = np.zeros(0)
        self.block_bytes = 0  # largest block of past keys and values that a step had on the device
        # called after every selection: layer, queries (Hq, T, d), selection, factor of the scores
        self.observer: Callable[[RetrievalLayer, torch.Tensor, Selection, float], None] | None = None
        self.pending: int | None = None  # layer whose update waits for its attention
        self.step_positions: torch.Tensor | None = None  # `position_ids` of the step; None: positions count tokens

    # -- interface of transformers

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        while len(self.layers) <= layer_idx:
            self.layers.append(RetrievalLayer(self, len(self.layers)))
        return self.layers[layer_idx].update(key_states, value_states)

    def reset(self) -> None:
        """Remove all tokens."""
        super().reset()
        self.policy = self.pending = None
        self.block_bytes = 0

    # -- figures

    @property
    def tokens(self) -> int:
        """Tokens so far."""
        return self.get_seq_length()

    def statistics(self) -> dict[str, float]:
        """Figures of the cache.

        tokens         tokens so far, `resident_tokens` of every layer in device memory
        device_bytes   bytes of keys and values in device memory between steps; `host_bytes` in host memory
        ratio          share of the past that the policy retrieved, mean over steps, layers and KV heads (0 to 1)
        """
        stores = [layer.store for layer in self.layers if layer.store is not None]
        past = sum(layer.past_tokens for layer in self.layers)
        return {
            "tokens": self.tokens,
            "resident_tokens": max((s.length - s.first_resident for s in stores), default=0),
            "device_bytes": sum(s.ring.numel() * s.dtype.itemsize for s in stores),
            "host_bytes": sum(s.host_bytes for s in stores),
            "ratio": sum(layer.retrieved for layer in self.layers) / past if past else 0.0,
        }

    # -- going back

    def snapshot(self) -> Snapshot:
        """State between two steps, for `rewind`. Copies the index of the policy, not the keys and values."""
        figures = [(layer.get_seq_length(), layer.retrieved, layer.past_tokens) for layer in self.layers]
        return Snapshot(self.policy, pickle.dumps(None if self.policy is None else self.policy.__dict__), figures)

    def rewind(self, snapshot: Snapshot) -> None:
        """Remove all tokens since a snapshot of this cache."""
        self.pending = None
        if snapshot.policy is None:
            self.reset()
            return
        self.policy = snapshot.policy
        self.policy.__dict__.update(pickle.loads(snapshot.state))
        for layer, (length, retrieved, past_tokens) in zip(self.layers, snapshot.layers, strict=True):
            layer.store.crop(length)
            layer.retrieved, layer.past_tokens = retrieved, past_tokens
            layer.bind_rows(self.policy)

    # -- the policy

    def bind(self, module: Any, q_heads: int, store: LayerStore) -> Policy:
        """The policy of the cache; made for the model at the first call."""
        if self.policy is None:
            config = module.config
            shape = ModelShape(
                config.num_hidden_layers, q_heads * store.head_dim, q_heads, store.kv_heads, store.head_dim
            )
            self.policy = self._make(shape, config)
        return self.policy

    def note_positions(self, policy: Policy, tokens: int) -> None:
        """Give the positions of a step to the policy, if keys are rotated."""
        if not (policy.undoes_rope or self.positions == "compact"):
            return
        past, ids = self.layers[0].get_seq_length(), self.step_positions
        if ids is None and policy.sections is not None:
            raise ValueError(
                f"position_ids must be stated for a rotary embedding with {len(policy.sections)} position axes: "
                "use StreamingSession"
            )
        if ids is None:
            ids = past + torch.arange(tokens, device="cpu")
        axes = 1 if policy.sections is None else len(policy.sections)
        rows = ids.detach().cpu().reshape(-1, tokens)[-axes:].expand(axes, tokens)
        policy.extend_positions(rows.T.numpy())

    def _make(self, shape: ModelShape, config: Any) -> Policy:
        policy = self._make_policy(shape, config)
        policy.sections, policy.layout = rope.axes(config)
        return policy

    def _make_policy(self, shape: ModelShape, config: Any) -> Policy:
        if self.positions == "compact":
            if reason := rope.rejected(config, default_only=False):
                raise ValueError(f"positions = 'compact' needs a static rotary embedding: {reason}")
            self.frequency = rope.frequencies(config, shape.head_dim)
        if not isinstance(self.policy_name, str):
            return self.policy_name(shape)
        policy = policy_class(self.policy_name)
        if policy.undoes_rope and (reason := rope.rejected(config, default_only=True)):
            raise ValueError(f"policy {policy.name} undoes the rotary embedding: {reason}")
        if policy.whole_steps and self.block is not None:
            raise ValueError(f"block must be None for policy {policy.name}, got {self.block}")
        if self.options:
            return policy(shape, **self.options)
        theta = float(rope.parameters(config)["rope_theta"])
        return policy.for_stream(
            shape, tokens_per_frame=self.frame_tokens, theta=theta, budget_frames=self.budget_frames
        )
