"""Execution of the commands of the KVMU."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from golden.kvmu.command import Command, CommandFault, Fault, Op, Reply
from golden.kvmu.config import KvmuConfig
from golden.kvmu.fetch import Fetch
from golden.kvmu.tables import ContextTables
from golden.kvmu.transfer import Descriptor, Piece, Tier, TransferKind, cut, join
from golden.store import Store, StoreError
from golden.store.layout import CHAINED, OPEN, RESIDENT, SAVED, STORAGE
from util import checks

WITHOUT_CONTEXT = (Op.OPEN, Op.SYNC)
IN_FETCH = (Op.SELECT, Op.MARK, Op.FETCH)  # commands that are valid while a fetch is in progress
# accepted commands that start a step
CHANGES = (Op.APPEND, Op.MOVE, Op.SEAL, Op.FREE, Op.EVICT, Op.HOLD, Op.MIGRATE)


@dataclass(frozen=True)
class Candidate:
    """A cluster that OPEN sends to the HCU."""

    cluster: int
    hash: int
    first_token: int
    count: int


@dataclass(frozen=True)
class Opened:
    """Data that OPEN sends to the HCU: tokens of the context, number of the first candidate, all candidates."""

    tokens: int
    cluster: int
    candidates: tuple[Candidate, ...]


class Kvmu:
    """Executes commands on a store.

    Parameters
    ----------
    config : sizes and settings
    memory : image of device memory, uint8; `origin` is the byte address of its first byte
    base : byte address of the store

    Attributes
    ----------
    descriptors : all DMA descriptors so far, in order
    extents : the same transfers before they are divided into descriptors
    opened : data for the HCU of the last command OPEN; None if it sent none
    uncommitted : a step is in progress: the memory changed since the last STEP
    """

    def __init__(self, config: KvmuConfig, memory: np.ndarray, base: int, origin: int = 0) -> None:
        self.config, self.memory, self.base, self.origin = config, memory, base, origin
        self.descriptors: list[Descriptor] = []
        self.extents: list[Piece] = []
        self.opened: Opened | None = None
        self.uncommitted = False
        self._tables: ContextTables | None = None
        self._fetch: Fetch | None = None
        self._first_candidate = 0  # of the open context; STEP writes it to the context header
        self._tag = 0

    @property
    def context(self) -> int | None:
        """Number of the open context."""
        return None if self._tables is None else self._tables.number

    @property
    def tables(self) -> ContextTables:
        """Tables of the open context."""
        if self._tables is None:
            raise CommandFault(Fault.CONTEXT)
        return self._tables

    @property
    def fetching(self) -> bool:
        """True if a fetch is in progress."""
        return self._fetch is not None

    @property
    def resident_tokens(self) -> int:
        """Tokens of all contexts in device memory; 0 before the first OPEN."""
        return 0 if self._tables is None else int(self._tables.store.header["resident_tokens"])

    def execute(self, command: Command) -> list[Reply]:
        """Execute a command and return its replies. Its transfers are appended to `descriptors`."""
        try:
            if command.op not in {op.value for op in Op} or (command.op == Op.MOVE and self.config.layout.is_encoded):
                raise CommandFault(Fault.OP)
            if self._fetch is not None and command.op not in IN_FETCH:
                raise CommandFault(Fault.FETCHING)
            if self._tables is None and command.op not in WITHOUT_CONTEXT:
                raise CommandFault(Fault.CONTEXT)
            replies = list(getattr(self, f"_{Op(command.op).name.lower()}_command")(command))
        except CommandFault as refusal:
            return [Reply(command.op, refusal.fault, last=1)]
        self.uncommitted |= command.op in CHANGES
        return replies

    def address(self, page: int, head: int, slot: int = 0) -> tuple[Tier, int]:
        """Tier and byte address of a slot of a page in use of the open context."""
        return self.tables.address(page, head, slot)

    def token_slot(self, token: int) -> tuple[int, int] | None:
        """Page and slot of a token of the open context; None if its page was released.

        Searches the token lists of all pages in use, so the time grows with the pages of the context. Raises ValueError
        for a number that is not below the context's count of tokens, and CommandFault without an open context.
        """
        context = self.tables.context
        checks.integer("token", token, 0, int(context.header["tokens"]) - 1)
        # a list keeps the numbers of tokens that have moved away; only live slots count
        for page, slot in np.argwhere(context.lists[: int(context.header["never_used"])] == token).tolist():
            if self.tables.is_live(page, slot):
                return page, slot
        return None

    # one method for each operation; each yields its replies

    def _open_command(self, command: Command) -> Iterator[Reply]:
        self.opened = None
        if self.uncommitted:
            raise CommandFault(Fault.UNCOMMITTED)
        if command.context != self.context:
            self._tables = None
            try:
                store = Store(self.memory, self.base, self.origin)
            except StoreError:
                raise CommandFault(Fault.CONTEXT) from None
            self._check_headers(store, command.context)
            for name in ("page_tokens", "key_bytes"):
                if getattr(store, name) != getattr(self.config, name):
                    raise ValueError(
                        f"{name} of the store must be {getattr(self.config, name)}, got {getattr(store, name)}"
                    )
            self._tables = ContextTables(store, command.context, self.config)
            self.opened = self._candidates(self._tables)
        yield Reply(command.op, last=1)

    def _check_headers(self, store: Store, number: int) -> None:
        """Check the headers of the store and of a context that is to be opened."""
        config = self.config
        if not store.present(number):
            raise CommandFault(Fault.CONTEXT)
        header = store.contexts[number]
        max_pages, page_frames = int(header["max_pages"]), int(store.header["page_frames"])
        sizes = int(header["max_clusters"]), max_pages, page_frames
        limits = config.max_clusters, config.max_pages, config.page_frames
        if any(size > limit for size, limit in zip(sizes, limits, strict=True)):
            raise CommandFault(Fault.CONTEXT)
        page_bytes = config.page_bytes
        ends = (
            config.page_frames_base + page_frames * page_bytes,
            config.staging_base + 2 * config.staging_head_pages * config.head_page_bytes,
            *(store.backing_base(number, storage) + max_pages * page_bytes for storage in (False, True)),
        )
        if max(ends) > 1 << config.address_bits:
            raise CommandFault(Fault.REGION)

    def _sync_command(self, command: Command) -> Iterator[Reply]:
        yield Reply(command.op, last=1)

    def _append_command(self, command: Command) -> Iterator[Reply]:
        tables = self.tables
        tables.admit_cluster(command.cluster, bool(command.opened))
        tables.admit_token(command.cluster, bool(command.opened))
        if command.opened:
            tables.create_cluster(command.cluster, command.hash)
        page, slot = tables.put(command.cluster, int(tables.header["tokens"]))
        tables.add_count(command.cluster, 1)
        tables.header["tokens"] += 1
        tier, address = self.address(page, 0, slot)
        yield Reply(command.op, page=page, slot=slot, tier=tier, address=address, last=1)

    def _step_command(self, command: Command) -> Iterator[Reply]:
        store, pieces, count = self.tables.store, [], 0
        header = store.header
        while int(header["resident_tokens"]) > self.config.max_resident_tokens and int(header["resident_pages"]) > 1:
            frame = store.frames[int(header["oldest"])]
            page, owner = int(frame["page"]), int(frame["context"])
            tables = self.tables if owner == self.context else ContextTables(store, owner, self.config)
            used, saved = int(tables.pages[page]["used"]), tables.has(page, SAVED)
            tier, address = tables.backing_tier(page), tables.backing_address(page, 0)
            if not saved:
                pieces += [
                    Piece(
                        tables.address(page, head)[1],
                        tables.backing_address(page, head),
                        Tier.DEVICE,
                        tier,
                        self.config.layout.used_bytes(used),
                    )
                    for head in self.config.heads
                ]
            tag = 0 if saved else self._tag
            yield Reply(command.op, page=page, tier=tier, address=address, count=used, transit=not saved, tag=tag)
            tables.offload(page)
            count += 1
        last = self._end(command, TransferKind.OFFLOAD, pieces, count=count)
        self.tables.header["first_candidate"] = self._first_candidate
        header["step"] += 1
        self.uncommitted = False
        yield last

    def _select_command(self, command: Command) -> Iterator[Reply]:
        tables = self.tables
        if self._fetch_failed:
            return self._report(command, [], 0)
        if not tables.is_cluster(command.cluster):
            raise CommandFault(Fault.CLUSTER)
        pages = int(tables.context.clusters[command.cluster]["pages"])
        return self._report(command, tables.context.chain(command.cluster), pages)

    def _mark_command(self, command: Command) -> Iterator[Reply]:
        if self._fetch_failed:
            return self._report(command, [], 0)
        return self._report(command, [self._page(command)], 1)

    def _fetch_command(self, command: Command) -> Iterator[Reply]:
        fetch, self._fetch = self._fetch or Fetch(self.config), None
        kind = TransferKind.RETAIN if fetch.retain else TransferKind.FETCH
        yield self._end(command, kind, fetch.pieces, count=fetch.beats, fault=fetch.fault)

    def _lookup_command(self, command: Command) -> Iterator[Reply]:
        yield self._slot_reply(command, command.page, command.slot)

    def _find_command(self, command: Command) -> Iterator[Reply]:
        tables, index = self.tables, command.index
        if not tables.is_cluster(command.cluster):
            raise CommandFault(Fault.CLUSTER)
        for page in tables.context.chain(command.cluster):
            used = int(tables.pages[page]["used"])
            if index < used:
                yield self._slot_reply(command, page, index)
                return
            index -= used
        raise CommandFault(Fault.ADDRESS)

    def _slot_reply(self, command: Command, page: int, slot: int) -> Reply:
        if command.head >= self.config.kv_heads or not self.tables.is_live(page, slot):
            raise CommandFault(Fault.ADDRESS)
        tier, address = self.address(page, command.head, slot)
        return Reply(command.op, page=page, slot=slot, head=command.head, tier=tier, address=address, last=1)

    def _move_command(self, command: Command) -> Iterator[Reply]:
        tables, page, slot = self.tables, command.page, command.slot
        tables.admit_cluster(command.cluster, bool(command.opened))
        if not tables.is_live(page, slot):
            raise CommandFault(Fault.ADDRESS)
        if not tables.has(page, RESIDENT):
            raise CommandFault(Fault.NOT_RESIDENT)
        if int(tables.pages[page]["references"]):
            raise CommandFault(Fault.HELD)
        tables.admit_token(command.cluster, bool(command.opened), source=page)
        source_cluster = int(tables.pages[page]["cluster"])
        sources = [self.address(page, head, slot)[1] for head in self.config.heads]
        tables.change(page, clear_flags=OPEN)
        if command.opened:
            tables.create_cluster(command.cluster, command.hash)
        to_page, to_slot = tables.put(command.cluster, int(tables.context.lists[page, slot]))
        targets = [self.address(to_page, head, to_slot)[1] for head in self.config.heads]
        tables.remove(page, slot)
        tables.add_count(source_cluster, -1)
        tables.add_count(command.cluster, 1)
        if not int(tables.pages[page]["live"]):
            tables.release(page)
        size = self.config.layout.block_bytes
        pieces = [Piece(a, b, Tier.DEVICE, Tier.DEVICE, size) for a, b in zip(sources, targets, strict=True)]
        yield self._end(command, TransferKind.MOVE, pieces, page=to_page, slot=to_slot, address=targets[0])

    def _seal_command(self, command: Command) -> Iterator[Reply]:
        self.tables.change(self._page(command), clear_flags=OPEN)
        yield Reply(command.op, last=1)

    def _free_command(self, command: Command) -> Iterator[Reply]:
        tables, page = self.tables, self._page(command)
        record, holders = tables.pages[page], 0
        if int(record["references"]):
            record["references"] -= 1
            holders = int(record["references"]) + tables.has(page, CHAINED)
        if not holders:
            tables.release(page)
        yield Reply(command.op, count=holders, last=1)

    def _hold_command(self, command: Command) -> Iterator[Reply]:
        tables, page = self.tables, self._page(command)
        record = tables.pages[page]
        if int(record["references"]) == self.config.max_page_references:
            raise CommandFault(Fault.HELD)
        tables.change(page, clear_flags=OPEN)
        record["references"] += 1
        yield Reply(command.op, count=int(record["references"]) + tables.has(page, CHAINED), last=1)

    def _evict_command(self, command: Command) -> Iterator[Reply]:
        tables = self.tables
        if not tables.is_cluster(command.cluster):
            raise CommandFault(Fault.CLUSTER)
        chain = tables.context.chain(command.cluster)
        evicted = chain[command.index : max(command.index, len(chain) - command.page)]
        for page in evicted:
            yield Reply(command.op, page=page, count=int(tables.pages[page]["used"]))
            if int(tables.pages[page]["references"]):
                tables.unlink(page)
            else:
                tables.release(page)
        yield Reply(command.op, count=len(evicted), last=1)

    def _migrate_command(self, command: Command) -> Iterator[Reply]:
        tables, page, pieces = self.tables, self._page(command), []
        if command.tier not in (Tier.HOST, Tier.STORAGE):
            raise CommandFault(Fault.ADDRESS)
        old, new = tables.backing_tier(page), Tier(command.tier)
        sources = [tables.backing_address(page, head) for head in self.config.heads]
        tables.change(page, set_flags=STORAGE * (new == Tier.STORAGE), clear_flags=STORAGE)
        if tables.has(page, SAVED) and old != new:
            size = self.config.layout.used_bytes(int(tables.pages[page]["used"]))
            targets = [tables.backing_address(page, head) for head in self.config.heads]
            pieces = [Piece(a, b, old, new, size) for a, b in zip(sources, targets, strict=True)]
        yield self._end(command, TransferKind.MIGRATE, pieces)

    # helpers

    @property
    def _fetch_failed(self) -> bool:
        return self._fetch is not None and self._fetch.fault != Fault.NONE

    def _report(self, command: Command, pages: Sequence[int], count: int) -> Iterator[Reply]:
        """Report pages in the fetch in progress, or in a new one; the last beat has `count`."""
        if self._fetch is None:
            self._fetch = Fetch(self.config, self._tag, bool(command.retain), command.bank)
        fetch = self._fetch
        heads = [head for head in self.config.heads if command.heads >> head & 1]
        yield from fetch.report(command.op, self.tables, pages, heads)
        self.uncommitted |= fetch.retained > 0
        yield Reply(command.op, fetch.fault, count=count, last=1)

    def _candidates(self, tables: ContextTables) -> Opened:
        """Advance the first candidate; return the candidates."""
        header, window = tables.header, self.config.window_tokens
        tokens, first, clusters = (int(header[name]) for name in ("tokens", "first_candidate", "clusters"))
        records = tables.context.clusters
        while window and first < clusters and int(records[first]["first_token"]) + window < tokens:
            first += 1
        self._first_candidate = first
        entries = (records[number] for number in range(first, clusters))
        candidates = tuple(
            Candidate(number, *(int(entry[name]) for name in ("hash", "first_token", "count")))
            for number, entry in enumerate(entries, start=first)
        )
        return Opened(tokens, first, candidates)

    def _page(self, command: Command) -> int:
        """Page of a command; refuses a page that is not in use."""
        if not self.tables.context.in_use(command.page):
            raise CommandFault(Fault.ADDRESS)
        return command.page

    def _end(
        self,
        command: Command,
        kind: TransferKind,
        pieces: Sequence[Piece],
        *,
        fault: int = 0,
        page: int = 0,
        slot: int = 0,
        address: int = 0,
        count: int = 0,
    ) -> Reply:
        """Append the descriptors of a command and return its last beat."""
        tag = self._tag if pieces else 0
        extents = join(pieces)
        for extent in extents:
            for source, target, size in cut(extent, self.config.max_descriptor_bytes):
                descriptor = Descriptor(source, target, extent.source_tier, extent.target_tier, size, kind, tag, 0)
                self.descriptors.append(descriptor)
        self.extents += extents
        if pieces:
            self.descriptors[-1] = replace(self.descriptors[-1], last=1)
            self._tag = (self._tag + 1) % self.config.tags
        return Reply(
            command.op,
            fault=fault,
            page=page,
            slot=slot,
            address=address,
            count=count,
            tagged=bool(pieces),
            tag=tag,
            last=1,
        )
