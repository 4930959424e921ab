"""Page table of the KV cache: location of every token, resident pages, and the reads that a selection needs.

Tokens of one cluster share pages, so that fetching a selected cluster takes a few long reads instead of many short ones
(V-Rex, Section V-C). A `PageTable` belongs to one layer of one sequence and has two tiers. Device memory consists of
page frames and holds the resident pages. Host memory (or the SSD) holds every offloaded page at its page number. All
values are integers; the RTL returns the same tables, extents and descriptors.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from util import checks

DEVICE, HOST = "device", "host"


@dataclass(frozen=True)
class PagingConfig:
    """Parameters of the paging.

    page_tokens          token slots of a page
    max_resident_tokens  tokens that stay in device memory after a step (the newest pages)
    layout               `clustered`: tokens of one cluster share pages; `arrival`: one token per page
    retain_fetched       True: a fetched page becomes resident, and every selected page the newest one
    """

    page_tokens: int = 32
    max_resident_tokens: int = 4096
    layout: str = "clustered"
    retain_fetched: bool = False

    def __post_init__(self) -> None:
        checks.integer("page_tokens", self.page_tokens, 1)
        checks.integer("max_resident_tokens", self.max_resident_tokens, 1)
        checks.one_of("layout", self.layout, ("clustered", "arrival"))
        checks.flag("retain_fetched", self.retain_fetched)

    @property
    def slots(self) -> int:
        """Token slots of a page in this layout."""
        return self.page_tokens if self.layout == "clustered" else 1


@dataclass(frozen=True)
class PageAddressMap:
    """Byte addresses of token slots in one tier.

    The order in memory is layer, page, KV head, slot; a slot holds the key (2 d bytes) and then the value (2 d bytes).
    The part of a page that belongs to one head is contiguous.

    kv_heads, head_dim  KV heads; elements of one head (d)
    page_tokens         slots of a page
    base                byte address of layer 0
    pages               pages of one layer; None: no limit, and only layer 0
    """

    kv_heads: int
    head_dim: int
    page_tokens: int
    base: int = 0
    pages: int | None = None

    def __post_init__(self) -> None:
        for name in ("kv_heads", "head_dim", "page_tokens"):
            checks.integer(name, getattr(self, name), 1)
        checks.integer("base", self.base, 0)
        if self.pages is not None:
            checks.integer("pages", self.pages, 1)

    @property
    def slot_bytes(self) -> int:
        """Bytes of the key and value of one head of one token, BF16."""
        return 4 * self.head_dim

    def address(self, page: int, head: int, slot: int, layer: int = 0) -> int:
        """Byte address of a slot. ValueError if an argument is out of range."""
        checks.integer("page", page, 0, None if self.pages is None else self.pages - 1)
        checks.integer("head", head, 0, self.kv_heads - 1)
        checks.integer("slot", slot, 0, self.page_tokens - 1)
        checks.integer("layer", layer, 0, 0 if self.pages is None else None)
        index = layer * (self.pages or 0) + page
        return self.base + ((index * self.kv_heads + head) * self.page_tokens + slot) * self.slot_bytes


@dataclass
class Page:
    """One page: its cluster, page frame (None: offloaded), tokens by slot (-1: the token moved), and host copy."""

    cluster: int
    frame: int | None
    tokens: list[int] = field(default_factory=list)
    on_host: bool = False


@dataclass(frozen=True)
class Fetch:
    """Transfers from the host that one selection needs.

    pages    for each KV head, the offloaded pages to read, int64 ascending
    hits     for each KV head, the number of selected pages that are resident
    extents  int64 (E, 2): host byte address and bytes of each contiguous read, ascending; every slot is read once
    """

    pages: list[np.ndarray]
    hits: np.ndarray
    extents: np.ndarray

    @property
    def nbytes(self) -> int:
        """Bytes of all reads."""
        return int(self.extents[:, 1].sum())


class PageTable:
    """Page table of one layer. Free page and page frame numbers are used again, the oldest first."""

    def __init__(self, config: PagingConfig, kv_heads: int, head_dim: int) -> None:
        self.config = config
        self.host = PageAddressMap(kv_heads, head_dim, config.slots)
        self.device = PageAddressMap(kv_heads, head_dim, config.slots)
        self.pages: list[Page | None] = []
        self.resident: dict[int, None] = {}  # page numbers, oldest first
        self.resident_tokens = 0
        self.frames = 0  # page frames used so far: size of the device memory
        self._open: dict[int, int] = {}
        self._free_pages: deque[int] = deque()
        self._free_frames: deque[int] = deque()
        self._page_of: list[int] = []
        self._slot_of: list[int] = []

    @property
    def tokens(self) -> int:
        """Tokens of the layer."""
        return len(self._page_of)

    def append(self, clusters: Sequence[int] | np.ndarray) -> list[int]:
        """Store the new tokens of one step, then offload. Returns the pages that must be written to the host.

        clusters  int (T,): the cluster of each token, in order of arrival

        A token goes to the open page of its cluster. A page closes when it is full or offloaded. After the step the
        oldest pages are offloaded while more than `max_resident_tokens` tokens and more than one page are resident.
        """
        for cluster in checks.integers("clusters", clusters, None, low=0).tolist():
            page, slot = self._allocate_slot(self.tokens, cluster)
            self._page_of.append(page)
            self._slot_of.append(slot)
        return self._offload()

    def locate(self, token: int, head: int) -> tuple[str, int]:
        """Tier and byte address of one head of a token."""
        token = checks.integer("token", token, 0, self.tokens - 1)
        number, slot = self._page_of[token], self._slot_of[token]
        page = self._page(number)
        if page.frame is None:
            return HOST, self.host.address(number, head, slot)
        return DEVICE, self.device.address(page.frame, head, slot)

    def fetch(self, tokens: Sequence[np.ndarray]) -> Fetch:
        """Reads that bring the tokens `tokens[h]` of every KV head h to the device.

        Every offloaded page is read once per head, up to its last used slot. Adjacent reads are merged.
        """
        if len(tokens) != self.host.kv_heads:
            raise ValueError(f"tokens must have one list for each of {self.host.kv_heads} heads, got {len(tokens)}")
        resident = np.array([page is not None and page.frame is not None for page in self.pages], bool)
        used = np.array([len(page.tokens) if page else 0 for page in self.pages], np.int64)
        page_of = np.array(self._page_of, np.int64)
        pages_to_fetch, hits, units, selected = [], [], [], np.zeros(len(self.pages), bool)
        for head, ids in enumerate(tokens):
            selected_mask = np.zeros(len(self.pages), bool)
            selected_mask[page_of[checks.integers("tokens", ids, None, low=0, high=self.tokens - 1)]] = True
            pages_to_fetch.append(np.flatnonzero(selected_mask & ~resident))
            hits.append(int((selected_mask & resident).sum()))
            selected |= selected_mask
            units.append(pages_to_fetch[-1] * self.host.kv_heads + head)
        unit = np.sort(np.concatenate(units))
        start = unit * self.config.slots * self.host.slot_bytes
        extents = merge(start, used[unit // self.host.kv_heads] * self.host.slot_bytes)
        if self.config.retain_fetched:
            for number in np.flatnonzero(selected).tolist():
                if resident[number]:
                    self.resident[number] = self.resident.pop(number)
                else:
                    self._enter(number)
        return Fetch(pages_to_fetch, np.array(hits, np.int64), extents)

    def move(self, tokens: Sequence[int] | np.ndarray, clusters: Sequence[int] | np.ndarray) -> np.ndarray:
        """Move resident tokens to other clusters, as a split of clusters does. Returns the copies, int64 (M, 4).

        A copy is (page, slot) of the source and (page, slot) of the destination, in the order of `tokens`. Pages
        without tokens are freed. Raises ValueError if a token occurs twice or is not resident.
        """
        ids = checks.integers("tokens", tokens, None, low=0, high=self.tokens - 1).tolist()
        owners = checks.integers("clusters", clusters, len(ids), low=0).tolist()
        if len(set(ids)) != len(ids):
            raise ValueError(f"tokens must be distinct, got {ids}")
        for token in ids:
            if self._page(self._page_of[token]).frame is None:
                raise ValueError(f"tokens must be resident, got {token} on page {self._page_of[token]}")
        old_pages = [self._page_of[token] for token in ids]
        for number in old_pages:  # no token is appended to a page that is being emptied
            self._close(number)
        copies = []
        for token, owner in zip(ids, owners, strict=True):
            source = (self._page_of[token], self._slot_of[token])
            target = self._allocate_slot(token, owner)
            self._page(source[0]).tokens[source[1]] = -1
            self._page_of[token], self._slot_of[token] = target
            copies.append((*source, *target))
        for number in dict.fromkeys(old_pages):
            if all(token < 0 for token in self._page(number).tokens):
                self._free(number)
        return np.array(copies, np.int64).reshape(-1, 4)

    def _page(self, number: int) -> Page:
        page = self.pages[number]
        assert page is not None, number
        return page

    def _allocate_slot(self, token: int, cluster: int) -> tuple[int, int]:
        key = cluster if self.config.layout == "clustered" else token
        number = self._open.get(key)
        if number is None:
            number = self._free_pages.popleft() if self._free_pages else len(self.pages)
            if number == len(self.pages):
                self.pages.append(None)
            self.pages[number] = Page(key, None)
            self._enter(number)
            self._open[key] = number
        page = self._page(number)
        page.tokens.append(token)
        self.resident_tokens += 1
        if len(page.tokens) == self.config.slots:
            self._close(number)
        return number, len(page.tokens) - 1

    def _enter(self, number: int) -> None:
        page = self._page(number)
        if self._free_frames:
            page.frame = self._free_frames.popleft()
        else:
            page.frame = self.frames
            self.frames += 1
        self.resident[number] = None
        self.resident_tokens += len(page.tokens)

    def _leave(self, number: int) -> None:
        page = self._page(number)
        assert page.frame is not None
        self._free_frames.append(page.frame)
        page.frame = None
        del self.resident[number]
        self.resident_tokens -= len(page.tokens)
        self._close(number)

    def _close(self, number: int) -> None:
        cluster = self._page(number).cluster
        if self._open.get(cluster) == number:
            del self._open[cluster]

    def _free(self, number: int) -> None:
        if number in self.resident:
            self._leave(number)
        self.pages[number] = None
        self._free_pages.append(number)

    def _offload(self) -> list[int]:
        written = []
        while self.resident_tokens > self.config.max_resident_tokens and len(self.resident) > 1:
            number = next(iter(self.resident))
            page = self._page(number)
            if not page.on_host:  # a fetched page has not changed since it was written
                written.append(number)
                page.on_host = True
            self._leave(number)
        return written


def merge(start: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Merge adjacent ranges. `start` and `length` are ascending ranges; returns int64 (E, 2) of start and length."""
    start = checks.integers("start", start, None)
    length = checks.integers("length", length, len(start), low=0)
    first = np.ones(len(start), bool)
    first[1:] = start[1:] != start[:-1] + length[:-1]
    run_starts = np.flatnonzero(first)
    total = np.add.reduceat(length, run_starts) if len(run_starts) else length
    return np.stack([start[run_starts], total], axis=1)


def runs(ids: np.ndarray) -> np.ndarray:
    """Runs of consecutive numbers in an ascending list: int64 (E, 2) of first number and count."""
    ids = checks.integers("ids", ids, None)
    return merge(ids, np.ones_like(ids))


def descriptors(extents: np.ndarray, max_bytes: int, boundary: int = 4096) -> np.ndarray:
    """Divide extents (byte address, bytes) into transfers of at most `max_bytes` within multiples of `boundary`."""
    checks.integer("max_bytes", max_bytes, 1)
    checks.integer("boundary", boundary, 1)
    out = []
    for address, size in checks.integers("extents", extents, None, 2, low=0).tolist():
        end = address + size
        while address < end:
            stop = min(end, address + max_bytes, (address // boundary + 1) * boundary)
            out.append((address, stop - address))
            address = stop
    return np.array(out, np.int64).reshape(-1, 2)


def compaction(kept: np.ndarray, first: int = 0) -> np.ndarray:
    """Moves that close the gaps of a pruned cache, in a safe order: int64 (M, 3) of source, destination, count.

    kept   entry numbers to keep, strictly ascending
    first  number that the first of them gets; the others follow without gaps

    Entries at the right position do not move. A destination is never above its source, so that copying in order needs
    no buffer. QuickPrefill keeps order and positions of the entries.
    """
    source = checks.integers("kept", kept, None, low=checks.integer("first", first, 0))
    if (np.diff(source) <= 0).any():
        raise ValueError(f"kept must be strictly ascending, got {source.tolist()}")
    target = first + np.arange(len(source))
    moving = source != target
    blocks = runs(source[moving])
    begins = np.searchsorted(source, blocks[:, 0])
    return np.stack([blocks[:, 0], target[begins], blocks[:, 1]], axis=1)
