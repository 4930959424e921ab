"""HC table: hash code, token count and token list of every cluster (V-Rex, Fig. 8 and 11).

The address of a cluster's mean key follows from the cluster number. Token lists are stored in memory, in list pages of
`list_page_tokens` token indices. The list pages of a cluster are linked in order; all except the last are full. Every
change is written to memory at once, so that another layer can use the unit and the table can be loaded again. All
values are integers; the RTL gives the same replies and the same writes in the same order.
"""

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from util import checks

RECORD_BYTES, INDEX_BYTES, COUNT_BYTES = 16, 4, 2


class Fault(IntEnum):
    """Reasons for which a command is rejected, numbered as in the RTL."""

    NONE = 0
    CLUSTER = 1
    COUNT = 2
    NO_PAGE = 3
    REGION = 4


@dataclass(frozen=True)
class HcTableConfig:
    """Sizes and memory regions of one HC table.

    max_clusters      clusters of one layer
    max_list_pages    pages for token lists of one layer
    list_page_tokens  token indices of one list page
    key_dim           elements of a mean key, all KV heads
    bases             byte addresses of the cluster records, the token lists, the list links, the mean keys and the
                      token counts
    address_bits      width of a byte address
    """

    max_clusters: int
    max_list_pages: int
    list_page_tokens: int
    key_dim: int
    bases: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0)
    address_bits: int = 48

    def __post_init__(self) -> None:
        for name in ("max_clusters", "max_list_pages", "list_page_tokens", "key_dim"):
            checks.integer(name, getattr(self, name), 1)
        for base in self.bases:
            checks.integer("bases", base, 0)

    @property
    def region_bad(self) -> bool:
        """True if a region does not fit into the address space."""
        sizes = (
            self.max_clusters * RECORD_BYTES,
            self.max_list_pages * self.list_page_tokens * INDEX_BYTES,
            self.max_list_pages * INDEX_BYTES,
            self.max_clusters * self.key_dim * 2,
            self.max_clusters * COUNT_BYTES,
        )
        return any(base + size > 1 << self.address_bits for base, size in zip(self.bases, sizes, strict=True))


@dataclass(frozen=True)
class ClusterEntry:
    """One cluster: hash code, number of its first token, token count, first and last page of its token list."""

    hash: int
    first_token: int
    count: int
    first: int
    newest: int

    def record(self) -> bytes:
        """Cluster record in memory, little-endian: u32 hash, u32 first_token, u16 count, first, newest, zero."""
        words = np.array([self.count, self.first, self.newest, 0], "<u2")
        return np.array([self.hash, self.first_token], "<u4").tobytes() + words.tobytes()


@dataclass
class HcTable:
    """Table of one layer. `writes` collects the writes to memory as (byte address, bytes), in order."""

    config: HcTableConfig
    entries: list[ClusterEntry] = field(default_factory=list)
    links: dict[int, int] = field(default_factory=dict)
    used: int = 0  # list pages in use
    writes: list[tuple[int, bytes]] = field(default_factory=list)

    def begin(self, used: int = 0) -> Fault:
        """Empty the table. The first `used` list pages stay reserved."""
        if self.config.region_bad:
            return Fault.REGION
        self.entries, self.links, self.used = [], {}, used
        return Fault.NONE

    def load(self, entry: ClusterEntry) -> Fault:
        """Append an entry that was saved in memory."""
        if self.config.region_bad:
            return Fault.REGION
        if len(self.entries) == self.config.max_clusters:
            return Fault.CLUSTER
        self.entries.append(entry)
        return Fault.NONE

    def link(self, page: int, next_page: int) -> Fault:
        """Set the list page that follows `page`."""
        if self.config.region_bad:
            return Fault.REGION
        self.links[page] = next_page
        return Fault.NONE

    def update(self, *, token: int, cluster: int, hash: int, count: int, opened: bool) -> Fault:
        """Add a token to a cluster that then has `count` tokens; with `opened`, to the next new cluster.

        Rejected without a change: a cluster number that is not the next one or not in the table; a count that is not
        one more than the stored one (the cluster is saturated, or an earlier token was rejected); no free list page.
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
        records, lists, links, _, counts = config.bases
        address = lists + (page * config.list_page_tokens + slot) * INDEX_BYTES
        self.writes.append((address, token.to_bytes(INDEX_BYTES, "little")))
        self.writes.append((records + cluster * RECORD_BYTES, entry.record()))
        self.writes.append((counts + cluster * COUNT_BYTES, count.to_bytes(COUNT_BYTES, "little")))
        if not slot and not opened:
            self.links[old.newest] = page
            self.writes.append((links + old.newest * INDEX_BYTES, page.to_bytes(INDEX_BYTES, "little")))
        return Fault.NONE

    def cluster_fault(self, cluster: int) -> Fault:
        """Fault of a command that reads `cluster`; NONE if the cluster exists."""
        if self.config.region_bad:
            return Fault.REGION
        return Fault.NONE if cluster < len(self.entries) else Fault.CLUSTER

    def mean_key_address(self, cluster: int) -> int:
        """Byte address of the mean key of a cluster (BF16, KV heads one after the other)."""
        return self.config.bases[3] + cluster * self.config.key_dim * 2

    def pages(self, cluster: int) -> list[tuple[int, int]]:
        """Byte address and token count of every list page of a cluster, in order."""
        entry, out = self.entries[cluster], []
        page, remaining = entry.first, entry.count
        while remaining:
            n_entries = min(remaining, self.config.list_page_tokens)
            out.append((self.config.bases[1] + page * self.config.list_page_tokens * INDEX_BYTES, n_entries))
            remaining -= n_entries
            page = self.links[page] if remaining else page
        return out

    def counts(self, lanes: int) -> np.ndarray:
        """Token counts of all clusters in rows of `lanes`: int64 (beats, lanes), at least one row, zero padded."""
        size = len(self.entries)
        out = np.zeros((max(1, -(-size // lanes)), lanes), np.int64)
        out.ravel()[:size] = [entry.count for entry in self.entries]
        return out
