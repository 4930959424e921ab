"""Files that hold a stream: all its contexts with their pages, to resume it on another machine.

All numbers are little endian. The file has, in this order:

| section | contents |
|---|---|
| header | `HEADER` |
| table of sections | `SECTION` for the residency list and for each context: bytes and SHA-256 of the section |
| check | SHA-256 of the header and of the table |
| residency list | u32 (pages, 2): context in the file and page of every resident page, the oldest first |
| contexts | for each context: `CONTEXT`, cluster records, page records, token lists, mean keys, keys and values |

Records are those of `golden.store.layout`. A page record has no page frame, and its step is 0. Keys and values are the
used slots of each page in use, KV head after KV head; if they are encoded, the blocks of these slots
(`golden.page_layout`).
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from compiler.positions import Positions
from golden.page_layout import PageLayout
from golden.store import NONE, Context, ContextSizes, Store, StoreError, create_context, interrupted
from golden.store.create import check_context
from golden.store.layout import CLUSTER, OPEN, PAGE, RESIDENT, SAVED, STORAGE
from golden.store.lists import take_frame

MAGIC, VERSION = b"VREXSTRM", 2
HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("kv_heads", "<u4"),
        ("head_dim", "<u4"),
        ("page_tokens", "<u4"),
        ("contexts", "<u4"),
        ("position", "<u4"),  # of RoPE, of the next token
        ("bytes", "<u8"),  # of the file
        ("video", "<u4"),  # position of the first token of the video that can continue; NONE: no video
        ("model", "<u4"),  # number of the model; 0: not stated
        ("seconds", "<f8"),  # time of the first picture of this video
    ]
)
SECTION = np.dtype([("bytes", "<u8"), ("sha256", "u1", (32,))])
COPIED = ("tokens", "clusters", "first_candidate", "never_used", "free_first", "free_last", "free_count")
CONTEXT = np.dtype([(name, "<u4") for name in ("max_clusters", "max_pages", *COPIED, "reserved")])
HASH_BYTES = 32
NO_POSITIONS = Positions()


class ContextFileError(ValueError):
    """A file does not hold a stream, or the stream does not fit the machine."""


@dataclass(frozen=True)
class Machine:
    """Memories of a machine whose retrieval engine is idle, after `golden.store.recover`.

    store             the store in device memory; its memory also holds the page frames
    page_frames_base  byte address of the page frames
    kv_heads          KV heads of a page
    host, storage     images of host memory and storage, uint8, from byte address 0 on
    model             number of the model, such as `Checkpoint.fingerprint`; 0: not stated
    encoded           layout of a head page with encoded keys and values; None: they are in BF16
    """

    store: Store
    page_frames_base: int
    kv_heads: int
    host: np.ndarray
    storage: np.ndarray
    model: int = 0
    encoded: PageLayout | None = None

    @property
    def layout(self) -> PageLayout:
        """Layout of a head page."""
        return self.encoded or PageLayout(self.store.key_bytes // 2 // self.kv_heads, self.store.page_tokens)

    @property
    def page_bytes(self) -> int:
        """Bytes of the keys and values of one page, all KV heads."""
        return self.kv_heads * self.layout.head_page_bytes

    def slots(self, context: Context, page: int) -> Iterator[np.ndarray]:
        """Views on the used slots of a page, or on their blocks, KV head after KV head."""
        record, layout = context.pages[page], self.layout
        flags = int(record["flags"])
        if flags & RESIDENT:
            memory = self.store.memory
            start = self.page_frames_base - self.store.origin + int(record["frame"]) * self.page_bytes
        else:
            memory = self.storage if flags & STORAGE else self.host
            start = self.store.backing_base(context.number, flags & STORAGE != 0) + page * self.page_bytes
        for head in range(self.kv_heads):
            first = start + head * layout.head_page_bytes
            yield memory[first : first + layout.used_bytes(int(record["used"]))]


@dataclass(frozen=True)
class ContextAddress:
    """Where a context of a file is created: number, byte address of its tables, addresses of its offloaded pages.

    `sizes` replaces the capacity that the context had when it was saved.
    """

    number: int
    base: int
    host_base: int = 0
    storage_base: int = 0
    sizes: ContextSizes | None = None


def export_stream(
    machine: Machine, contexts: Sequence[int], path: str | Path, positions: Positions = NO_POSITIONS
) -> None:
    """Save the contexts and the positions of a stream. The file is written under another name and then renamed.

    Raises
    ------
    StoreError
        A context does not exist, or a step is in progress or was interrupted.
    """
    path, store = Path(path), machine.store
    _require_committed(store)
    opened = [store.context(number) for number in contexts]
    header = np.zeros(1, HEADER)
    table = np.zeros(1 + len(opened), SECTION)
    temporary = path.with_name(path.name + ".part")
    try:
        with temporary.open("wb") as file:
            file.write(bytes(HEADER.itemsize + table.nbytes + HASH_BYTES))
            sections = [_residency(store, contexts), *(_context_data(machine, context) for context in opened)]
            for entry, section in zip(table, sections, strict=True):
                digest, start = hashlib.sha256(), file.tell()
                for data in section:
                    digest.update(data)
                    file.write(data)
                entry["bytes"] = file.tell() - start
                entry["sha256"] = np.frombuffer(digest.digest(), np.uint8)
            head_dim = store.key_bytes // 2 // machine.kv_heads
            video = NONE if positions.video is None else positions.video
            header[0] = (
                MAGIC, VERSION, machine.kv_heads, head_dim, store.page_tokens, len(opened), positions.next, file.tell(),
                video, machine.model, positions.seconds,
            )  # fmt: skip
            start_of_file = header.tobytes() + table.tobytes()
            file.seek(0)
            file.write(start_of_file + hashlib.sha256(start_of_file).digest())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _require_committed(store: Store) -> None:
    if interrupted(store):
        raise StoreError("store must have no step in progress, got an undo log with changes; run golden.store.recover")


def _residency(store: Store, contexts: Sequence[int]) -> Iterator[bytes]:
    """Resident pages of the contexts, the oldest first."""
    pages, frame, numbers = [], int(store.header["oldest"]), list(contexts)
    while frame != NONE:
        record = store.frames[frame]
        if int(record["context"]) in numbers:
            pages.append((numbers.index(int(record["context"])), int(record["page"])))
        frame = int(record["newer"])
    yield np.array(pages, "<u4").reshape(-1, 2).tobytes()


def _context_data(machine: Machine, context: Context) -> Iterator[bytes]:
    """Section of one context."""
    header = context.header
    clusters, never_used = int(header["clusters"]), int(header["never_used"])
    names = ("max_clusters", "max_pages", *COPIED)
    yield np.array([(*(header[name] for name in names), 0)], CONTEXT).tobytes()
    yield context.clusters[:clusters].tobytes()
    pages = context.pages[:never_used].copy()
    used = pages["used"].astype(np.int64)
    resident = pages["flags"] & RESIDENT != 0
    pages["flags"] &= np.where(resident, 255 - RESIDENT - SAVED, 255).astype(np.uint8)
    pages["frame"][used > 0] = NONE
    pages["step"] = pages["past"] = 0
    yield pages.tobytes()
    slots = np.arange(machine.store.page_tokens)
    yield np.where(slots < used[:, None], context.lists[:never_used], 0).astype("<u4").tobytes()
    yield context.mean_keys[:clusters].tobytes()
    for page in np.flatnonzero(used).tolist():
        for data in machine.slots(context, page):
            yield data.tobytes()


@dataclass(frozen=True)
class _SavedContext:
    """One context of a file. `data` holds the keys and values of all pages in use."""

    header: np.void
    clusters: np.ndarray
    pages: np.ndarray
    lists: np.ndarray
    mean_keys: np.ndarray
    data: np.ndarray


def import_stream(
    machine: Machine, path: str | Path, addresses: Sequence[ContextAddress], resident: int | None = None
) -> Positions:
    """Create the contexts of a saved stream in the store of a machine, and return its positions.

    Resident pages become the newest pages of the pool. The older ones are offloaded if they have too many tokens or if
    there are not enough free page frames. The engine must read the store again before its next step: by a reset, or by
    OPEN of an imported context.

    Parameters
    ----------
    machine : target; it may differ from the source in everything but the sizes of a page
    path : file of `export_stream`
    addresses : where each context is created, in the order of the export
    resident : largest number of used slots of the pages that stay resident; None: as many as page frames are free

    Raises
    ------
    ContextFileError, StoreError
        The file is truncated, changed or of another model, program or version, or a context does not fit.
        Nothing is changed.
    """
    path, store = Path(path), machine.store
    _require_committed(store)
    positions, residency, saved = _read(machine, path)
    if len(addresses) != len(saved):
        raise ContextFileError(f"{path}: addresses must have {len(saved)} entries, got {len(addresses)}")
    sizes = [_check_address(machine, path, context, at) for context, at in zip(saved, addresses, strict=True)]
    spans = sorted((at.base, at.base + size.nbytes(store)) for at, size in zip(addresses, sizes, strict=True))
    if any(end > start for (_, end), (start, _) in pairwise(spans)):
        raise ContextFileError(f"{path}: addresses of contexts must not overlap")
    if len({at.number for at in addresses}) != len(addresses):
        raise ContextFileError(f"{path}: numbers of contexts must be distinct")

    header = store.header
    free = int(header["page_frames"]) - int(header["never_used"]) + int(header["free_count"])
    kept = residency[max(0, len(residency) - free) :]
    if resident is not None:
        used = np.cumsum([int(saved[index].pages[page]["used"]) for index, page in reversed(kept)])
        kept = kept[len(kept) - int((used <= resident).sum()) :]
    contexts = []
    for context, at, size in zip(saved, addresses, sizes, strict=True):
        create_context(store, at.number, size, at.base, host_base=at.host_base, storage_base=at.storage_base)
        contexts.append(store.context(at.number))
        _write_tables(contexts[-1], context)
    for index, page in kept:
        record = contexts[index].pages[page]
        record["frame"] = take_frame(store, contexts[index].number, page, int(record["used"]))
        record["flags"] |= RESIDENT
    for context, target in zip(saved, contexts, strict=True):
        offset = 0
        for page in np.flatnonzero(context.pages["used"]).tolist():
            if not int(target.pages[page]["flags"]) & RESIDENT:
                target.pages[page]["flags"] = int(target.pages[page]["flags"]) & ~OPEN | SAVED
            for slots in machine.slots(target, page):
                slots[:] = context.data[offset : offset + len(slots)]
                offset += len(slots)
    return positions


def _check_address(machine: Machine, path: Path, context: _SavedContext, at: ContextAddress) -> ContextSizes:
    """Check that a context fits at an address; return its capacity."""
    header, store = context.header, machine.store
    sizes = at.sizes or ContextSizes(int(header["max_clusters"]), int(header["max_pages"]))
    for name, used, size in (
        ("max_clusters", len(context.clusters), sizes.max_clusters),
        ("max_pages", len(context.pages), sizes.max_pages),
    ):
        if size < used:
            raise ContextFileError(f"{path}: {name} of context {at.number} must be at least {used}, got {size}")
    check_context(store, at.number, sizes, at.base, host_base=at.host_base, storage_base=at.storage_base)
    for name, memory, base in (("host", machine.host, at.host_base), ("storage", machine.storage, at.storage_base)):
        needed = base + len(context.pages) * machine.page_bytes
        in_storage = context.pages["flags"] & STORAGE != 0
        if (context.pages["used"] > 0)[in_storage == (name == "storage")].any() and needed > len(memory):
            raise ContextFileError(f"{path}: {name} must have at least {needed} bytes, got {len(memory)}")
    return sizes


def _write_tables(target: Context, saved: _SavedContext) -> None:
    """Copy all tables of a context. No page is resident."""
    target.clusters[: len(saved.clusters)] = saved.clusters
    target.counts[: len(saved.clusters)] = saved.clusters["count"]
    target.pages[: len(saved.pages)] = saved.pages
    target.lists[: len(saved.pages)] = saved.lists
    target.mean_keys[: len(saved.clusters)] = saved.mean_keys
    for name in COPIED:
        target.header[name] = saved.header[name]


def _read(machine: Machine, path: Path) -> tuple[Positions, list[tuple[int, int]], list[_SavedContext]]:
    """Positions, residency list and contexts of a file. Checks the whole file first."""
    size, store = path.stat().st_size, machine.store
    if size < HEADER.itemsize:
        raise ContextFileError(f"{path}: file must have at least {HEADER.itemsize} bytes, got {size}")
    data = np.memmap(path, np.uint8, "r")
    header = data[: HEADER.itemsize].view(HEADER)[0]
    expected = {
        "magic": MAGIC,
        "version": VERSION,
        "kv_heads": machine.kv_heads,
        "head_dim": store.key_bytes // 2 // machine.kv_heads,
        "page_tokens": store.page_tokens,
        "bytes": size,
    }
    for name, value in expected.items():
        if header[name] != value:
            raise ContextFileError(f"{path}: {name} must be {value!r}, got {header[name].item()!r}")
    if machine.model and header["model"] not in (0, machine.model):
        raise ContextFileError(f"{path}: model must be {machine.model:#010x}, got {int(header['model']):#010x}")
    start = HEADER.itemsize + (1 + int(header["contexts"])) * SECTION.itemsize
    if size < start + HASH_BYTES:
        raise ContextFileError(f"{path}: file must have at least {start + HASH_BYTES} bytes, got {size}")
    _check_hash(path, "header", data[:start], data[start : start + HASH_BYTES])
    table, offset, sections = data[HEADER.itemsize : start].view(SECTION), start + HASH_BYTES, []
    for number, entry in enumerate(table):
        section = data[offset : offset + int(entry["bytes"])]
        _check_hash(path, f"section {number}", section, entry["sha256"])
        sections.append(section)
        offset += len(section)
    pages = sections[0].view("<u4").reshape(-1, 2).tolist()
    saved = [_split(machine, path, number, section) for number, section in enumerate(sections[1:], start=1)]
    position, video = int(header["position"]), int(header["video"])
    try:
        positions = Positions(position, None if video == NONE else video, float(header["seconds"]))
    except ValueError as error:
        raise ContextFileError(f"{path}: {error}") from None
    return positions, [(index, page) for index, page in pages], saved


def _check_hash(path: Path, name: str, data: np.ndarray, expected: np.ndarray) -> None:
    digest = hashlib.sha256(data.data).digest()
    if digest != expected.tobytes():
        raise ContextFileError(
            f"{path}: SHA-256 of the {name} must be {expected.tobytes().hex()[:16]}..., got {digest.hex()[:16]}..."
        )


def _split(machine: Machine, path: Path, number: int, section: np.ndarray) -> _SavedContext:
    """Views on the tables in the section of a context."""
    store = machine.store
    header = section[: CONTEXT.itemsize].view(CONTEXT)[0]
    clusters, pages = int(header["clusters"]), int(header["never_used"])
    kinds = {
        "clusters": (CLUSTER, clusters, None),
        "pages": (PAGE, pages, None),
        "lists": (np.dtype("<u4"), pages, store.page_tokens),
        "mean_keys": (np.dtype("<u2"), clusters, store.key_bytes // 2),
    }
    offset, tables = CONTEXT.itemsize, {}
    for name, (kind, count, columns) in kinds.items():
        end = offset + count * kind.itemsize * (columns or 1)
        table = section[offset:end].view(kind)
        tables[name], offset = table.reshape(count, columns) if columns else table, end
    needed = machine.kv_heads * sum(map(machine.layout.used_bytes, tables["pages"]["used"].tolist()))
    if len(section) != offset + needed:
        raise ContextFileError(f"{path}: section {number} must have {offset + needed} bytes, got {len(section)}")
    return _SavedContext(header, **tables, data=section[offset:])


__all__ = ["ContextAddress", "ContextFileError", "Machine", "StoreError", "export_stream", "import_stream"]
