"""Attention of a step to the past tokens that a policy selects and to the step's own tokens.

A `RetrievalCache` marks the keys that it returns. `attention` selects and attends for marked keys; for all others it
calls the scaled dot product attention (SDPA) of transformers. It is registered as `sdpa`, the default of transformers,
so that models accept a `RetrievalCache` without a change, and as `IMPLEMENTATION` for models that use another function.

Past tokens are read block by block, and the softmax is accumulated in float32 over the blocks, so that the device holds
one block at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from sw_model.huggingface.store import LayerStore
from sw_model.policies.base import Selection

IMPLEMENTATION = "vrex_retrieval"
MARK = "_vrex_layer"  # attribute of the keys that a `RetrievalCache` returns


class Block(NamedTuple):
    """Keys and values of some KV heads: (H, S, d) each, for heads `heads`.

    heads   slice, or int64 (H,) on the device
    mask    bool (H or 1, rows or 1, S), or None: all rows attend to all tokens
    shifts  int64 (S,) or (H, S), change of the position of every key; None: none
    """

    heads: slice | torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    mask: torch.Tensor | None = None
    shifts: np.ndarray | None = None


def prepare(model: PreTrainedModel) -> PreTrainedModel:
    """Set the attention function of a model, so that it accepts a `RetrievalCache`; returns the model.

    A model with `sdpa`, the default of transformers, needs no change. The same as `from_pretrained(...,
    attn_implementation="vrex_retrieval")`. Other caches still work.
    """
    model.set_attn_implementation(IMPLEMENTATION)
    return model


def attention(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any, **options: Any
) -> tuple[torch.Tensor, None]:
    """Attention function of transformers: query (1, Hq, T, d), new keys and values (1, Hkv, T, d)."""
    layer = getattr(key, MARK, None)
    if layer is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    if options.get("sliding_window") is not None:
        raise ValueError(f"sliding_window must be None with a RetrievalCache, got {options['sliding_window']}")
    if options.get("dropout"):
        raise ValueError(f"dropout must be 0 with a RetrievalCache, got {options['dropout']}")
    return layer.attend(module, query, key, value, attention_mask, options), None


for name in (IMPLEMENTATION, "sdpa"):
    AttentionInterface.register(name, attention)
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)


def blocks(
    store: LayerStore, selection: Selection, group: int, block_tokens: int, shifts: list[np.ndarray] | None
) -> Iterator[Block]:
    """The selected past tokens and pseudo tokens, at most `block_tokens` tokens at a time.

    shifts  for every KV head, int64: change of the position of each selected token; None: none
    """
    device, dtype = store.device, store.dtype
    if selection.pseudo_keys is not None and selection.pseudo_values is not None:
        pair = (torch.from_numpy(np.asarray(x, np.float32)) for x in (selection.pseudo_keys, selection.pseudo_values))
        keys, values = (x.to(device, dtype).transpose(0, 1) for x in pair)
        for start in range(0, keys.shape[1], block_tokens):
            stop = start + block_tokens
            yield Block(slice(None), keys[:, start:stop], values[:, start:stop])
    tokens = selection.tokens
    if selection.allowed is None and all(t is tokens[0] for t in tokens):
        yield from _shared_blocks(store, selection, block_tokens, shifts)
        return
    lengths = np.array([len(t) for t in tokens])
    for start in range(0, int(lengths.max(initial=0)), block_tokens):
        heads = np.flatnonzero(lengths > start)
        parts = [tokens[h][start : start + block_tokens] for h in heads]
        sizes = lengths[heads].clip(max=start + block_tokens) - start
        size = int(sizes.max())
        ids = np.stack([np.pad(part, (0, size - len(part)), mode="edge") for part in parts])
        if selection.keys is not None and selection.values is not None:
            pair = (np.asarray(x[ids, heads[:, None]], np.float32) for x in (selection.keys, selection.values))
            keys, values = (torch.from_numpy(x).to(device, dtype) for x in pair)
        else:
            keys, values = store.gather_heads(heads, ids).unbind(2)
        mask = None
        if selection.allowed is not None:
            allowed = [selection.allowed[h][:, start : start + block_tokens] for h in heads]
            mask = torch.from_numpy(_joined(allowed, group)).to(device)
        elif sizes.min() < size:
            mask = torch.from_numpy((np.arange(size) < sizes[:, None])[:, None]).to(device)
        moved = None
        if shifts is not None:
            own = [shifts[h][start : start + block_tokens] for h in heads]
            moved = np.stack([np.pad(part, (0, size - len(part))) for part in own])
        yield Block(torch.from_numpy(heads).to(device), keys, values, mask, moved)


def _joined(allowed: list[np.ndarray], group: int) -> np.ndarray:
    """Masks (rows, n) of several KV heads as one (H, rows, S), S the largest n; False from n on.

    Rows are ordered by token, then by query head; in the result by query head, then by token.
    """
    size = max(mask.shape[1] for mask in allowed)
    masks = np.stack([np.pad(mask, ((0, 0), (0, size - mask.shape[1]))) for mask in allowed])
    return masks.reshape(len(masks), -1, group, size).swapaxes(1, 2).reshape(len(masks), -1, size)


def _shared_blocks(
    store: LayerStore, selection: Selection, block_tokens: int, shifts: list[np.ndarray] | None
) -> Iterator[Block]:
    """The past tokens, if all rows of all KV heads attend to the same ones."""
    ids = selection.tokens[0]
    contiguous = len(ids) > 0 and int(ids[-1]) - int(ids[0]) + 1 == len(ids)
    for start in range(0, len(ids), block_tokens):
        part = ids[start : start + block_tokens]
        if selection.keys is not None and selection.values is not None:
            pair = (torch.from_numpy(np.asarray(x[part], np.float32)) for x in (selection.keys, selection.values))
            keys, values = (x.to(store.device, store.dtype).transpose(0, 1) for x in pair)
        else:
            rows = store.gather(int(part[0]), int(part[-1]) + 1, None if contiguous else part)  # (S, H, 2, d)
            keys, values = rows[:, :, 0].transpose(0, 1), rows[:, :, 1].transpose(0, 1)
        yield Block(
            slice(None), keys, values, None, None if shifts is None else shifts[0][start : start + block_tokens]
        )


class Softmax:
    """Attention output of query rows (Hkv, R, d), accumulated over blocks of keys in float32 (float64 for float64)."""

    def __init__(self, queries: torch.Tensor, scaling: float) -> None:
        kind = torch.promote_types(queries.dtype, torch.float32)
        self.queries = queries.to(kind) * scaling
        self.maximum = torch.full((*queries.shape[:2], 1), -torch.inf, dtype=kind, device=queries.device)
        self.total = torch.zeros_like(self.maximum)
        self.output = torch.zeros_like(self.queries)

    def add(
        self, heads: slice | torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None
    ) -> None:
        """Add keys and values (H, S, d) of some KV heads; `mask` is bool (H or 1, R or 1, S), None: all keys."""
        kind = self.queries.dtype
        scores = torch.matmul(self.queries[heads], keys.to(kind).transpose(1, 2))
        if mask is not None:
            scores.masked_fill_(~mask, -torch.inf)
        old = self.maximum[heads]
        maximum = torch.maximum(old, scores.amax(dim=-1, keepdim=True))
        finite = torch.where(maximum.isfinite(), maximum, torch.zeros_like(maximum))  # no token so far
        weights = (scores - finite).exp_()
        rescale = (old - finite).exp_()
        self.total[heads] = self.total[heads] * rescale + weights.sum(dim=-1, keepdim=True)
        self.output[heads] = self.output[heads] * rescale + torch.matmul(weights, values.to(kind))
        self.maximum[heads] = maximum

    def result(self) -> torch.Tensor:
        """Attention output (Hkv, R, d); zero for a row that attended to no token."""
        return self.output / torch.where(self.total > 0, self.total, torch.ones_like(self.total))
