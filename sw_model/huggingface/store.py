"""Keys and values of one layer: all tokens in host memory, the newest ones also in device memory.

A row holds the key and the value of one token for all KV heads. Rows of the host are in normal memory, in pinned memory
(for a CUDA device), or in a memory-mapped file. Rows of the device are a ring of fixed size. A CUDA device reads pinned
memory itself: the selected rows cross the link without a copy on the host, and while the host continues.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

FIRST_ROWS = 1024  # rows of the first allocation on the host


class _PinnedMemory:
    """Pinned memory of the host as bytes of the CUDA device (CUDA array interface): both have one address space."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor  # must exist as long as the device reads it
        pointer, size = tensor.data_ptr(), tensor.numel() * tensor.element_size()
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (pointer, False), "version": 3}


def readable_from(device: torch.device, rows: torch.Tensor) -> torch.Tensor:
    """Rows of the host as a tensor that the device can read: a view of pinned memory, or the rows themselves."""
    if device.type != "cuda" or not rows.is_pinned():
        return rows
    return torch.as_tensor(_PinnedMemory(rows), device=device).view(rows.dtype).view(rows.shape)


class LayerStore:
    """Rows (Hkv, 2, d) of one layer.

    kv_heads, head_dim  sizes of a row
    dtype, device       type of the elements; device of the model
    device_tokens       rows in device memory
    file                file for the rows of the host; None: memory, pinned for a CUDA device
    """

    def __init__(
        self,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        device_tokens: int,
        file: Path | None = None,
    ) -> None:
        self.kv_heads, self.head_dim, self.dtype, self.device, self.file = kv_heads, head_dim, dtype, device, file
        self.length = 0
        self.ring = torch.zeros((device_tokens, kv_heads, 2, head_dim), dtype=dtype, device=device)
        self._host = self._allocate(FIRST_ROWS)
        self._source = readable_from(device, self._host)

    @property
    def first_resident(self) -> int:
        """Oldest token in device memory; `length` if there is none."""
        return max(0, self.length - len(self.ring))

    @property
    def host_bytes(self) -> int:
        """Bytes of all rows on the host."""
        return self.length * self.kv_heads * 2 * self.head_dim * self.dtype.itemsize

    @property
    def rows(self) -> torch.Tensor:
        """All rows, (N, Hkv, 2, d), on the host."""
        return self._host[: self.length]

    def append(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Add the tokens of a step: keys and values (T, Hkv, d)."""
        rows = torch.stack([keys, values], dim=2)
        self.extend(rows)

    def extend(self, rows: torch.Tensor) -> None:
        """Add rows (T, Hkv, 2, d)."""
        start, end = self.length, self.length + len(rows)
        new = rows.to(self._host.device)  # waits for the device, which can still read the rows of `_host`
        if end > len(self._host):
            host = self._allocate(max(end, 2 * len(self._host)))
            if self.file is None:
                host[:start] = self._host[:start]
            self._host, self._source = host, readable_from(self.device, host)
        self._host[start:end] = new
        self.length = end
        self._fill_ring(rows[max(0, len(rows) - len(self.ring)) :])

    def crop(self, length: int) -> None:
        """Remove all tokens from `length` on."""
        self.length = length
        self._fill_ring(self._host[self.first_resident : length])

    def gather(self, start: int, stop: int, tokens: np.ndarray | None) -> torch.Tensor:
        """Rows (n, Hkv, 2, d) of tokens on the device.

        tokens  int64, ascending; None: the tokens from `start` to `stop` - 1
        """
        first, source = self.first_resident, self._source
        if tokens is None:
            split = min(max(first, start), stop)
            old = source[start:split]
            slots = torch.arange(split, stop, device=self.device) % max(1, len(self.ring))
        else:
            split = int(np.searchsorted(tokens, first))
            old = source.index_select(0, torch.from_numpy(tokens[:split]).to(source.device))
            slots = torch.from_numpy(tokens[split:] % max(1, len(self.ring))).to(self.device)
        newest = self.ring.index_select(0, slots)
        return torch.cat([old.to(self.device), newest]) if len(old) else newest

    def gather_heads(self, heads: np.ndarray, tokens: np.ndarray) -> torch.Tensor:
        """Rows (h, n, 2, d) of some KV heads on the device.

        heads   int64 (h,)
        tokens  int64 (h, n), ascending in every row
        """
        resident = (tokens >= self.first_resident).ravel()
        slots = np.where(tokens >= self.first_resident, tokens % max(1, len(self.ring)), tokens)
        rows = (slots * self.kv_heads + heads[:, None]).ravel()
        shape = (*tokens.shape, 2, self.head_dim)
        parts = []
        for memory, wanted in ((self._source, ~resident), (self.ring, resident)):
            if wanted.any():
                index = torch.from_numpy(rows[wanted]).to(memory.device)
                parts.append((wanted, memory.view(-1, 2, self.head_dim).index_select(0, index).to(self.device)))
        if len(parts) == 1:
            return parts[0][1].view(shape)
        result = torch.empty((tokens.size, 2, self.head_dim), dtype=self.dtype, device=self.device)
        for wanted, part in parts:
            result.index_copy_(0, torch.from_numpy(np.flatnonzero(wanted)).to(self.device), part)
        return result.view(shape)

    def read(self, index: Any, value: bool) -> np.ndarray:
        """Keys or values of tokens as float32 rounded to BF16: `index` is a slice or an array of tokens."""
        index = torch.from_numpy(index) if isinstance(index, np.ndarray) else index
        rows = self.rows[index][..., int(value), :]
        return rows.to(torch.bfloat16).to(torch.float32).numpy()

    def _fill_ring(self, rows: torch.Tensor) -> None:
        """Write the newest rows, which end at `length`, to their slots of the ring."""
        if not len(rows):
            return
        start = (self.length - len(rows)) % len(self.ring)
        before_end = min(len(rows), len(self.ring) - start)
        self.ring[start : start + before_end].copy_(rows[:before_end])
        if before_end < len(rows):
            self.ring[: len(rows) - before_end].copy_(rows[before_end:])

    def _allocate(self, rows: int) -> torch.Tensor:
        shape = (rows, self.kv_heads, 2, self.head_dim)
        size = rows * self.kv_heads * 2 * self.head_dim
        if self.file is None:
            return torch.empty(shape, dtype=self.dtype, device="cpu", pin_memory=self.device.type == "cuda")
        with self.file.open("ab"):
            os.truncate(self.file, size * self.dtype.itemsize)
        return torch.from_file(str(self.file), shared=True, size=size, dtype=self.dtype, device="cpu").view(shape)


class StoredRows:
    """Keys or values of a `LayerStore` for a policy, with the interface of `golden.growable_array.GrowableArray`.

    `extend` counts the rows of a step, which the store has already. `array` reads them as float32 rounded to BF16.
    """

    def __init__(self, store: LayerStore, value: bool) -> None:
        self.store: LayerStore | None = store
        self.value = value
        self._length = store.length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[np.ndarray]:
        return iter(self[:])

    def extend(self, rows: np.ndarray) -> None:
        self._length += len(rows)

    @property
    def array(self) -> StoredRows:
        """This object: rows are read when they are indexed."""
        return self

    def __getitem__(self, index: Any) -> np.ndarray:
        assert self.store is not None, "rows must have a store"
        if isinstance(index, slice):
            index = slice(*index.indices(self._length))
        return self.store.read(index, self.value)

    def __getstate__(self) -> dict[str, Any]:
        return {"store": None, "value": self.value, "_length": self._length}
