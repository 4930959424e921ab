"""Sizes of a store, and creation and deletion of stores and contexts."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from golden.store.layout import (
    ABSENT,
    BACKING_UNIT,
    CLUSTER,
    CONTEXT_HEADER,
    CONTEXT_MAGIC,
    FRAME,
    HEADER_BYTES,
    NONE,
    PAGE,
    PRESENT,
    RESIDENT,
    STORE_HEADER,
    STORE_MAGIC,
    TABLE_UNIT,
    TABLES,
    VERSION,
    Store,
    StoreError,
)
from golden.store.share import drop_page
from util import checks


def _aligned(nbytes: int) -> int:
    return -(-nbytes // TABLE_UNIT) * TABLE_UNIT


@dataclass(frozen=True)
class StoreSizes:
    """Sizes of the tables that all contexts of a store share.

    contexts     entries of the table of contexts
    page_frames  page frames of the pool
    page_tokens  token slots of a page, at most 32
    key_bytes    mean key of all KV heads: kv_heads * head_dim * 2
    log_entries  capacity of the undo log
    line_bytes   line of the undo log: the larger of 32 bytes and one memory word
    """

    contexts: int
    page_frames: int
    page_tokens: int
    key_bytes: int
    log_entries: int
    line_bytes: int = 32

    def __post_init__(self) -> None:
        for name in ("contexts", "page_frames", "log_entries"):
            checks.integer(name, getattr(self, name), 1, NONE - 1)
        checks.integer("page_tokens", self.page_tokens, 1, 32)
        if checks.integer("key_bytes", self.key_bytes, 2) % 2:
            raise ValueError(f"key_bytes must be even, got {self.key_bytes}")
        if checks.integer("line_bytes", self.line_bytes, 32) & (self.line_bytes - 1):
            raise ValueError(f"line_bytes must be a power of two, got {self.line_bytes}")

    @property
    def offsets(self) -> dict[str, int]:
        """Byte offset of every table from the store header; `end`: the bytes of all of them."""
        sizes = {
            "header": HEADER_BYTES,
            "contexts": self.contexts * CONTEXT_HEADER.itemsize,
            "frames": self.page_frames * FRAME.itemsize,
            "log": self.log_entries * 2 * self.line_bytes,
        }
        return _offsets(sizes)

    @property
    def nbytes(self) -> int:
        """Bytes of the shared tables."""
        return self.offsets["end"]


@dataclass(frozen=True)
class ContextSizes:
    """Capacity of one context."""

    max_clusters: int
    max_pages: int

    def __post_init__(self) -> None:
        for name in ("max_clusters", "max_pages"):
            checks.integer(name, getattr(self, name), 1, NONE - 1)

    def offsets(self, store: StoreSizes | Store) -> dict[str, int]:
        """Byte offset of every table from the base of the context; `end`: the bytes of all of them."""
        sizes = {
            "clusters": self.max_clusters * CLUSTER.itemsize,
            "counts": self.max_clusters * 2,
            "pages": self.max_pages * PAGE.itemsize,
            "lists": self.max_pages * store.page_tokens * 4,
            "mean_keys": self.max_clusters * store.key_bytes,
        }
        return _offsets(sizes)

    def nbytes(self, store: StoreSizes | Store) -> int:
        """Bytes of the tables of one context, without its header."""
        return self.offsets(store)["end"]


def _offsets(sizes: dict[str, int]) -> dict[str, int]:
    out, start = {}, 0
    for name, nbytes in sizes.items():
        out[name] = start
        start += _aligned(nbytes)
    return {**out, "end": start}


def store_bytes(sizes: StoreSizes, contexts: Iterable[ContextSizes]) -> int:
    """Bytes of device memory of a store with these contexts, without page frames."""
    return sizes.nbytes + sum(context.nbytes(sizes) for context in contexts)


def create_store(memory: np.ndarray, base: int, sizes: StoreSizes, origin: int = 0) -> Store:
    """Make an empty store in `sizes.nbytes` bytes from `base`. Raises StoreError if they lie outside the memory.

    `origin` is the byte address of the first byte of `memory`.
    """
    start = base - origin
    if base % TABLE_UNIT or not 0 <= start <= len(memory) - sizes.nbytes:
        raise StoreError(
            f"base must be a multiple of {TABLE_UNIT} with {sizes.nbytes} bytes of memory behind it, got {base:#x}"
        )
    memory[start : start + sizes.nbytes] = 0
    header = memory[start : start + HEADER_BYTES].view(STORE_HEADER)[0]
    offsets = sizes.offsets
    values = {
        "magic": STORE_MAGIC,
        "version": VERSION,
        "contexts": sizes.contexts,
        **{f"{name}_base": (base + offsets[name]) // TABLE_UNIT for name in ("contexts", "frames", "log")},
        "log_entries": sizes.log_entries,
        "page_frames": sizes.page_frames,
        **dict.fromkeys(("free_first", "free_last", "oldest", "newest"), NONE),
        "page_tokens": sizes.page_tokens,
        "key_bytes": sizes.key_bytes,
        "line_bytes": sizes.line_bytes,
    }
    for name, value in values.items():
        header[name] = value
    return Store(memory, base, origin)


def create_context(
    store: Store, number: int, sizes: ContextSizes, base: int, *, host_base: int = 0, storage_base: int = 0
) -> None:
    """Make an empty context in `sizes.nbytes(store)` bytes from `base`.

    Parameters
    ----------
    number : entry of the table of contexts; it must be absent
    base : byte address of the tables, a multiple of 128
    host_base, storage_base : byte addresses of the offloaded pages, multiples of 4096

    Raises
    ------
    StoreError
        The context exists, an address is not aligned, or the tables overlap other tables of the store.
    """
    check_context(store, number, sizes, base, host_base=host_base, storage_base=storage_base)
    offsets = sizes.offsets(store)
    header = store.contexts[number : number + 1]
    header.view(np.uint8)[:] = 0
    values = {
        "magic": CONTEXT_MAGIC,
        "version": VERSION,
        "max_clusters": sizes.max_clusters,
        "max_pages": sizes.max_pages,
        **{f"{name}_base": (base + offsets[name]) // TABLE_UNIT for name in TABLES},
        "host_pages_base": host_base // BACKING_UNIT,
        "storage_pages_base": storage_base // BACKING_UNIT,
        "free_first": NONE,
        "free_last": NONE,
    }
    for name, value in values.items():
        header[name] = value
    store.bytes(base + offsets["counts"], offsets["pages"] - offsets["counts"])[:] = 0
    header["state"] = PRESENT


def check_context(
    store: Store, number: int, sizes: ContextSizes, base: int, *, host_base: int = 0, storage_base: int = 0
) -> None:
    """Raise the error of `create_context` with these arguments, if any."""
    checks.integer("context", number, 0, len(store.contexts) - 1)
    if store.present(number):
        raise StoreError(f"context must be absent, got {number}")
    for name, value, unit in (
        ("base", base, TABLE_UNIT),
        ("host_base", host_base, BACKING_UNIT),
        ("storage_base", storage_base, BACKING_UNIT),
    ):
        if checks.integer(name, value, 0) % unit or value // unit > NONE:
            raise StoreError(f"{name} must be a multiple of {unit} below {unit << 32:#x}, got {value:#x}")
    nbytes = sizes.nbytes(store)
    end = base + nbytes
    if not store.contains(base, nbytes):
        raise StoreError(f"context {number} must lie inside the memory, got {nbytes} bytes from {base:#x}")
    numbers, spans = context_spans(store)
    others = {name: span for name, span in regions(store, contexts=False).items() if base < span[1] and span[0] < end}
    for name, (starts, ends) in spans.items():
        for n in np.flatnonzero((base < ends) & (starts < end)).tolist():
            others[f"{name} of context {numbers[n]}"] = int(starts[n]), int(ends[n])
    for name, (start, stop) in others.items():
        raise StoreError(f"context {number} must not overlap {name} ({start:#x} to {stop:#x}), got base {base:#x}")


def delete_context(store: Store, number: int) -> None:
    """Remove a context: its page frames become free unless other contexts share them, its table entry absent."""
    context = store.context(number)
    for page in range(int(context.header["never_used"])):
        record = context.pages[page]
        if int(record["used"]) and int(record["flags"]) & RESIDENT:
            drop_page(store, context, page)
    context.header["state"] = ABSENT


def regions(store: Store, *, contexts: bool = True) -> dict[str, tuple[int, int]]:
    """First byte address and end of every table in device memory, by name; `contexts`: also those of each context."""
    header = store.header
    out = {"the store header": (store.base, store.base + HEADER_BYTES)}
    shared = {
        "contexts": len(store.contexts) * HEADER_BYTES,
        "frames": len(store.frames) * FRAME.itemsize,
        "log": store.log.size,
    }
    for name, nbytes in shared.items():
        start = int(header[f"{name}_base"]) * TABLE_UNIT
        out[name] = (start, start + nbytes)
    if contexts:
        numbers, spans = context_spans(store)
        for name, (starts, ends) in spans.items():
            for number, start, end in zip(numbers.tolist(), starts.tolist(), ends.tolist(), strict=True):
                out[f"{name} of context {number}"] = start, end
    return out


def context_spans(store: Store) -> tuple[np.ndarray, dict[str, tuple[np.ndarray, np.ndarray]]]:
    """Numbers of the contexts, and for every table, its first byte address and its end in each of them."""
    numbers = np.flatnonzero(store.all_present())
    names = ("max_clusters", "max_pages", *(f"{name}_base" for name in TABLES))
    values = {name: store.contexts[name][numbers].astype(np.int64) for name in names}
    clusters, pages = values["max_clusters"], values["max_pages"]
    nbytes = {
        "clusters": clusters * CLUSTER.itemsize,
        "counts": clusters * 2,
        "pages": pages * PAGE.itemsize,
        "lists": pages * store.page_tokens * 4,
        "mean_keys": clusters * store.key_bytes,
    }
    starts = {name: values[f"{name}_base"] * TABLE_UNIT for name in TABLES}
    return numbers, {name: (starts[name], starts[name] + nbytes[name]) for name in TABLES}
