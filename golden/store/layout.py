"""Records of the store and their views on a memory image.

All numbers are little endian, u32 unless stated. Bases of tables are stored divided by 128, those of host and storage
pages divided by 4096. NONE marks the end of a list.

| record         | address                     | bytes | contents                                                      |
|----------------|-----------------------------|-------|---------------------------------------------------------------|
| store header   | `cfg_store_base`            | 128   | `STORE_HEADER`; its last word, `step`, counts committed steps |
| context header | contexts_base + 128 n       | 128   | `CONTEXT_HEADER`                                              |
| cluster        | clusters_base + 32 cluster  | 32    | `CLUSTER`                                                     |
| token count    | counts_base + 2 cluster     | 2     | u16, equal to `count` of the cluster record                   |
| page           | pages_base + 32 page        | 32    | `PAGE`                                                        |
| token list     | lists_base + 4 slot number  | 4     | number of the token in slot page * page_tokens + slot         |
| mean key       | mean_keys_base + key_bytes n| -     | BF16, the KV heads of a cluster one after the other           |
| page frame     | frames_base + 16 frame      | 16    | `FRAME`                                                       |
| log entry      | log_base + 2 line_bytes n   | -     | old content of a line, then a line with `LOG_TAG`             |

The tables from cluster to mean key exist once per context. The page frames and their two lists (free frames, resident
pages in the order of their age) are shared by all contexts.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

NONE = 0xFFFFFFFF
STORE_MAGIC, CONTEXT_MAGIC, VERSION = 0x53585256, 0x43585256, 1  # "VRXS", "VRXC"
HEADER_BYTES, TABLE_UNIT, BACKING_UNIT = 128, 128, 4096
ABSENT, PRESENT = 0, 1  # values of `state`
# flags of a page
CHAINED, OPEN, RESIDENT, STORAGE, SAVED = 1, 2, 4, 8, 16


def _words(*names: str, size: int) -> np.dtype:
    """Record of u32 fields. A name with a number, as in `reserved:12`, is an array of words."""
    fields: list[tuple] = []
    for name in names:
        title, _, count = name.partition(":")
        fields.append((title, "<u4", (int(count),)) if count else (title, "<u4"))
    kind = np.dtype(fields)
    assert kind.itemsize == size, kind
    return kind


STORE_HEADER = _words(
    "magic",
    "version",
    "contexts",  # entries of the table of context headers
    "contexts_base",
    "frames_base",
    "log_base",
    "log_entries",  # capacity of the undo log
    "page_frames",  # page frames of the pool
    "never_used",  # lowest page frame that was never used
    "free_first",  # free page frames, the one released first
    "free_last",
    "free_count",
    "oldest",  # page frames in use: the oldest
    "newest",
    "resident_pages",
    "resident_tokens",  # used slots of the resident pages
    "page_tokens",
    "key_bytes",  # mean key of all KV heads
    "line_bytes",  # line of the undo log
    "reserved:12",
    "step",  # committed steps
    size=HEADER_BYTES,
)
CONTEXT_HEADER = _words(
    "magic",
    "version",
    "state",
    "max_clusters",
    "max_pages",
    "clusters_base",
    "counts_base",
    "pages_base",
    "lists_base",
    "mean_keys_base",
    "host_pages_base",
    "storage_pages_base",
    "tokens",
    "clusters",
    "first_candidate",  # lowest cluster that the next token may join
    "never_used",  # lowest page that was never used
    "free_first",  # free pages, the one released first
    "free_last",
    "free_count",
    "reserved:13",
    size=HEADER_BYTES,
)
COUNT_BYTE = 52  # of a context header: where `clusters` begins
CLUSTER = _words("hash", "first_token", "count", "pages", "first_page", "last_page", "reserved:2", size=32)
PAGE = np.dtype(
    [
        ("cluster", "<u4"),
        ("next", "<u4"),  # next page of the chain, or next free page
        ("previous", "<u4"),
        ("frame", "<u4"),
        ("live", "<u4"),  # bit k: slot k holds a token
        ("used", "u1"),  # slots that hold or held a token; 0: the page is free
        ("references", "u1"),  # without the reference of its cluster
        ("flags", "u1"),
        ("reserved", "u1"),
        ("step", "<u4"),  # step that last put a token on the page
        ("past", "<u4"),  # used slots before that step
    ]
)
FRAME = _words("context", "page", "older", "newer", size=16)  # `newer` of a free frame: next free frame
LOG_TAG = _words("address", "step", "reserved:6", size=32)  # address: that of the line divided by 32

TABLES = ("clusters", "counts", "pages", "lists", "mean_keys")


class StoreError(ValueError):
    """The memory does not hold a valid store, or an argument does not fit the store."""


@dataclass(frozen=True)
class Context:
    """Views on the tables of one context.

    header  CONTEXT_HEADER, one record
    clusters, counts, pages  one entry per cluster or page
    lists   u32 (pages, page_tokens): token numbers
    mean_keys  u16 (clusters, key_bytes / 2): BF16 bit patterns
    """

    number: int
    header: np.void
    clusters: np.ndarray
    counts: np.ndarray
    pages: np.ndarray
    lists: np.ndarray
    mean_keys: np.ndarray

    def chain(self, cluster: int) -> list[int]:
        """Pages of a cluster, in order."""
        out, page = [], int(self.clusters[cluster]["first_page"])
        while page != NONE:
            out.append(page)
            page = int(self.pages[page]["next"])
        return out

    def in_use(self, page: int) -> bool:
        """True if the page holds or held a token and was not released."""
        return page < int(self.header["never_used"]) and int(self.pages[page]["used"]) > 0

    def tokens(self, page: int) -> list[int]:
        """Token numbers in the used slots of a page. The entry of a slot whose token moved away is out of date."""
        return self.lists[page, : int(self.pages[page]["used"])].tolist()


class Store:
    """Views on a store in a memory image.

    Parameters
    ----------
    memory : uint8 (bytes,), edited in place
    base : byte address of the store header
    origin : byte address of the first byte of `memory`

    Raises
    ------
    StoreError
        There is no store of this version at `base`, or a table lies outside the memory.
    """

    def __init__(self, memory: np.ndarray, base: int, origin: int = 0) -> None:
        if memory.dtype != np.uint8 or memory.ndim != 1:
            raise StoreError(f"memory must be a uint8 array of one axis, got {memory.dtype} with {memory.ndim}")
        if base % TABLE_UNIT or not 0 <= base - origin <= len(memory) - HEADER_BYTES:
            raise StoreError(f"base must be a multiple of {TABLE_UNIT} inside the memory, got {base:#x}")
        self.memory, self.base, self.origin = memory, base, origin
        self.header = self.bytes(base, HEADER_BYTES).view(STORE_HEADER)[0]
        self._expect("store header", self.header, STORE_MAGIC)
        header = self.header
        self.page_tokens, self.key_bytes = int(header["page_tokens"]), int(header["key_bytes"])
        self.line_bytes = int(header["line_bytes"])
        self._geometry()
        self.contexts = self._table("contexts", header["contexts_base"], CONTEXT_HEADER, int(header["contexts"]))
        self.frames = self._table("frames", header["frames_base"], FRAME, int(header["page_frames"]))

    def count_byte(self, number: int) -> int:
        """Byte address of the number of clusters of a context."""
        return int(self.header["contexts_base"]) * TABLE_UNIT + number * HEADER_BYTES + COUNT_BYTE

    @property
    def page_bytes(self) -> int:
        """Bytes of the keys and values of one page, all KV heads."""
        return 2 * self.key_bytes * self.page_tokens

    @cached_property
    def log(self) -> np.ndarray:
        """uint8 (entries, 2, line_bytes): undo log."""
        entries, line = int(self.header["log_entries"]), self.line_bytes
        data = self._table("log", self.header["log_base"], np.dtype("u1"), entries * 2 * line)
        return data.reshape(entries, 2, line)

    def contains(self, address: int, nbytes: int) -> bool:
        """True if the bytes from `address` on lie inside the memory."""
        return self.origin <= address and address + nbytes <= self.origin + len(self.memory)

    def bytes(self, address: int, nbytes: int) -> np.ndarray:
        """View on bytes of the memory."""
        return self.memory[address - self.origin : address - self.origin + nbytes]

    def present(self, number: int) -> bool:
        """True if `number` is a context of this version."""
        return 0 <= number < len(self.contexts) and bool(self.all_present(slice(number, number + 1))[0])

    def all_present(self, numbers: slice = slice(None)) -> np.ndarray:
        """For each entry of the table of contexts, True if it is a context of this version."""
        headers = self.contexts[numbers]
        expected = {"magic": CONTEXT_MAGIC, "version": VERSION, "state": PRESENT}
        return np.logical_and.reduce([headers[name] == value for name, value in expected.items()])

    def context(self, number: int) -> Context:
        """Views on the tables of a context. StoreError if it does not exist."""
        if not self.present(number):
            raise StoreError(f"context must be present in the store, got {number}")
        header = self.contexts[number]
        clusters, pages = int(header["max_clusters"]), int(header["max_pages"])
        sizes = {
            "clusters": (CLUSTER, clusters),
            "counts": (np.dtype("<u2"), clusters),
            "pages": (PAGE, pages),
            "lists": (np.dtype("<u4"), pages * self.page_tokens),
            "mean_keys": (np.dtype("<u2"), clusters * self.key_bytes // 2),
        }
        tables = {name: self._table(name, header[f"{name}_base"], *size) for name, size in sizes.items()}
        tables["lists"] = tables["lists"].reshape(pages, self.page_tokens)
        tables["mean_keys"] = tables["mean_keys"].reshape(clusters, -1)
        return Context(number, header, **tables)

    def backing_base(self, number: int, storage: bool) -> int:
        """Byte address of the host or storage pages of a context."""
        name = "storage_pages_base" if storage else "host_pages_base"
        return int(self.contexts[number][name]) * BACKING_UNIT

    def _table(self, name: str, unit: np.uint32, kind: np.dtype, count: int) -> np.ndarray:
        start, nbytes = int(unit) * TABLE_UNIT, count * kind.itemsize
        if not self.contains(start, nbytes):
            raise StoreError(f"{name} must lie inside the memory, got {nbytes} bytes from {start:#x}")
        return self.bytes(start, nbytes).view(kind)

    def _expect(self, name: str, header: np.void, magic: int) -> None:
        for field, value in (("magic", magic), ("version", VERSION)):
            if int(header[field]) != value:
                raise StoreError(f"{field} of the {name} must be {value:#x}, got {int(header[field]):#x}")

    def _geometry(self) -> None:
        if not 1 <= self.page_tokens <= 32:
            raise StoreError(f"page_tokens of the store header must be between 1 and 32, got {self.page_tokens}")
        if self.key_bytes < 2 or self.key_bytes % 2:
            raise StoreError(f"key_bytes of the store header must be even and positive, got {self.key_bytes}")
        if self.line_bytes < 32 or self.line_bytes & (self.line_bytes - 1):
            raise StoreError(f"line_bytes of the store header must be a power of two from 32, got {self.line_bytes}")
