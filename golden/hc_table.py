"""HC table as a unit: what is kept of every cluster, and the list of its tokens in pages (V-Rex, Fig. 8 and 11).

An entry has the cluster's hash, count and first token; its place among the representatives follows from its number.
Token lists live in memory, in pages of `page_tokens` indices: a cluster's pages are linked in order, all full but the
last. Everything that changes goes to memory as it changes, so that a table can be left and taken up again. All
integers; the RTL gives the same replies and the same writes in the same order.
"""

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from util import checks

RECORD_BYTES, INDEX_BYTES = 16, 4


class Fault(IntEnum):
    """Why a command is refused."""

    NONE = 0
    CLUSTER = 1
    COUNT = 2
    NO_PAGE = 3
    REGION = 4


@dataclass(frozen=True)
class HcTableConfig:
    """Sizes of one unit, and byte addresses of its four regions: records, token lists, links, representative keys."""

    max_clusters: int
    max_list_pages: int
    list_page_tokens: int
    key_dim: int
    bases: tuple[int, int, int, int] = (0, 0, 0, 0)
    address_bits: int = 48

    def __post_init__(self) -> None:
        for name in ("max_clusters", "max_list_pages", "list_page_tokens", "key_dim"):
            checks.integer(name, getattr(self, name), 1)
        for base in self.bases:
            checks.integer("bases", base, 0)

    @property
    def region_bad(self) -> bool:
        """A region does not fit into the address space."""
        sizes = (
            self.max_clusters * RECORD_BYTES,
            self.max_list_pages * self.list_page_tokens * INDEX_BYTES,
            self.max_list_pages * INDEX_BYTES,
            self.max_clusters * self.key_dim * 2,
        )
        return any(base + size > 1 << self.address_bits for base, size in zip(self.bases, sizes, strict=True))


@dataclass(frozen=True)
class ClusterEntry:
    """One cluster: `first` and `newest` are pages of its token list."""

    hash: int
    first_token: int
    count: int
    first: int
    newest: int

    def record(self) -> bytes:
        """The record in memory, little-endian: u32 hash, u32 first_token, u16 count, first, newest, zero."""
        words = np.array([self.count, self.first, self.newest, 0], "<u2")
        return np.array([self.hash, self.first_token], "<u4").tobytes() + words.tobytes()


@dataclass
class HcTable:
    """Clusters of one layer; `writes` gathers (address, bytes) in order."""

    config: HcTableConfig
    entries: list[ClusterEntry] = field(default_factory=list)
    links: dict[int, int] = field(default_factory=dict)
    used: int = 0  # pages in use
    writes: list[tuple[int, bytes]] = field(default_factory=list)

    def begin(self, used: int = 0) -> Fault:
        """An empty table whose lists begin at page `used`."""
        if self.config.region_bad:
            return Fault.REGION
        self.entries, self.links, self.used = [], {}, used
        return Fault.NONE

    def load(self, entry: ClusterEntry) -> Fault:
        """Append an entry that was saved."""
        if self.config.region_bad:
            return Fault.REGION
        if len(self.entries) == self.config.max_clusters:
            return Fault.CLUSTER
        self.entries.append(entry)
        return Fault.NONE

    def link(self, page: int, next_page: int) -> Fault:
        """Page `following` comes after `page`."""
        if self.config.region_bad:
            return Fault.REGION
        self.links[page] = next_page
        return Fault.NONE

    def update(self, *, token: int, cluster: int, hash: int, count: int, opened: bool) -> Fault:
        """A token joined a cluster, which then had `count`, or opened it: the next one.

        Refused, without a change: a cluster out of turn or beyond the table; a count that is not one more than
        before (the cluster is saturated, or an earlier token was refused); no page left.
        """
        size, config = len(self.entries), self.config
        if config.region_bad:
            return Fault.REGION
        if cluster >= config.max_clusters or (cluster != size if opened else cluster >= size):
            return Fault.CLUSTER
        old = ClusterEntry(hash, token, 0, 0, 0) if opened else self.entries[cluster]
        if count != old.count + 1:
            return Fault.COUNT
        slot = old.count % config.list_page_tokens
        page = old.newest if slot else self.used
        if not slot and self.used == config.max_list_pages:
            return Fault.NO_PAGE
        entry = ClusterEntry(old.hash, old.first_token, count, page if opened else old.first, page)
        self.entries[cluster:] = [entry, *self.entries[cluster + 1 :]]
        self.used += not slot
        records, lists, links, _ = config.bases
        address = lists + (page * config.list_page_tokens + slot) * INDEX_BYTES
        self.writes.append((address, token.to_bytes(INDEX_BYTES, "little")))
        self.writes.append((records + cluster * RECORD_BYTES, entry.record()))
        if not slot and not opened:
            self.links[old.newest] = page
            self.writes.append((links + old.newest * INDEX_BYTES, page.to_bytes(INDEX_BYTES, "little")))
        return Fault.NONE

    def cluster_fault(self, cluster: int) -> Fault:
        if self.config.region_bad:
            return Fault.REGION
        return Fault.NONE if cluster < len(self.entries) else Fault.CLUSTER

    def mean_key_address(self, cluster: int) -> int:
        """Byte address of a cluster's representative key, all KV heads one after the other, BF16."""
        return self.config.bases[3] + cluster * self.config.key_dim * 2

    def pages(self, cluster: int) -> list[tuple[int, int]]:
        """Byte address and tokens of every page of a cluster's list, in order."""
        entry, out = self.entries[cluster], []
        page, remaining = entry.first, entry.count
        while remaining:
            n_entries = min(remaining, self.config.list_page_tokens)
            out.append((self.config.bases[1] + page * self.config.list_page_tokens * INDEX_BYTES, n_entries))
            remaining -= n_entries
            page = self.links[page] if remaining else page
        return out

    def counts(self, lanes: int) -> np.ndarray:
        """Counts of all clusters as rows of `lanes`, int64 (beats, lanes), zero beyond the last; at least one row."""
        size = len(self.entries)
        out = np.zeros((max(1, -(-size // lanes)), lanes), np.int64)
        out.ravel()[:size] = [entry.count for entry in self.entries]
        return out
