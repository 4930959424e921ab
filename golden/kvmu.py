"""Model of the KVMU: executes its commands on the page tables of one layer; returns replies and DMA descriptors.

It extends the page table of `golden.page_table` by the limits of hardware (table sizes, faults), memory regions, a
staging area for fetched pages, storage as a third tier, reference counts and DMA tags. All values are integers; the
RTL gives the same replies and descriptors in the same order.

A head page is the part of a page that belongs to one KV head; it is contiguous in memory and the unit of a transfer.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from golden.page_table import PageAddressMap, PageTable, PagingConfig
from util import checks


class Op(IntEnum):
    """Operations, numbered as in the RTL."""

    BEGIN = 0
    APPEND = 1
    STEP = 2
    SELECT = 3
    FETCH = 4
    LOOKUP = 5
    FIND = 6
    MOVE = 7
    SEAL = 8
    FREE = 9
    MIGRATE = 10
    SYNC = 11
    HOLD = 12
    MARK = 13
    EVICT = 14


class Fault(IntEnum):
    """Reasons for which a command is rejected, numbered as in the RTL."""

    NONE = 0
    OP = 1
    CLUSTER = 2
    ADDRESS = 3
    NO_PAGE = 4
    NO_PAGE_FRAME = 5
    NOT_RESIDENT = 6
    STAGING = 7
    REGION = 8
    HELD = 11


class Tier(IntEnum):
    """Memories that hold pages."""

    DEVICE = 0
    HOST = 1
    STORAGE = 2


class TransferKind(IntEnum):
    """Purpose of a transfer."""

    FETCH = 0
    RETAIN = 1
    OFFLOAD = 2
    MOVE = 3
    MIGRATE = 4


@dataclass(frozen=True)
class Command:
    """One command. Fields that the operation does not read are 0."""

    op: int
    cluster: int = 0
    page: int = 0
    slot: int = 0
    head: int = 0
    heads: int = 0
    index: int = 0
    tier: int = 0
    layer: int = 0
    retain: int = 0
    bank: int = 0


@dataclass(frozen=True)
class Reply:
    """One beat of a reply. The last beat of a command has `last` = 1."""

    op: int
    fault: int = 0
    page: int = 0
    slot: int = 0
    head: int = 0
    tier: int = 0
    address: int = 0
    count: int = 0
    transit: int = 0
    tagged: int = 0
    tag: int = 0
    last: int = 0


@dataclass(frozen=True)
class Piece:
    """Bytes to copy from one byte address to another."""

    source: int
    target: int
    source_tier: int
    target_tier: int
    nbytes: int


@dataclass(frozen=True)
class Descriptor:
    """One transfer of the DMA engine."""

    source: int
    target: int
    source_tier: int
    target_tier: int
    bytes: int
    kind: int
    tag: int
    last: int


def join(pieces: Iterable[Piece]) -> list[Piece]:
    """Merge consecutive pieces that are adjacent at the source and at the destination."""
    out: list[Piece] = []
    for piece in pieces:
        previous = out[-1] if out else None
        if (
            previous is not None
            and (previous.source_tier, previous.target_tier) == (piece.source_tier, piece.target_tier)
            and previous.source + previous.nbytes == piece.source
            and previous.target + previous.nbytes == piece.target
        ):
            size = previous.nbytes + piece.nbytes
            out[-1] = Piece(previous.source, previous.target, previous.source_tier, previous.target_tier, size)
        else:
            out.append(piece)
    return out


def cut(piece: Piece, burst: int, boundary: int = 4096) -> list[tuple[int, int, int]]:
    """Divide a piece into (source, destination, bytes) of at most `burst` bytes.

    No transfer crosses a multiple of `boundary` at the source or at the destination.
    """
    out, done = [], 0
    while done < piece.nbytes:
        source, target = piece.source + done, piece.target + done
        size = min(burst, piece.nbytes - done, boundary - source % boundary, boundary - target % boundary)
        out.append((source, target, size))
        done += size
    return out


@dataclass(frozen=True)
class KvmuConfig:
    """Sizes and settings of one KVMU.

    kv_heads, head_dim    KV heads; elements of one head
    page_tokens           token slots of a page
    max_pages             page numbers of one layer
    page_frames           page frames of one layer in device memory
    max_clusters          clusters of one layer
    tags                  DMA tags
    bases                 byte addresses of the page frames, the host pages, the storage pages and the staging area
    address_bits          width of a byte address
    staging_head_pages    head pages of each of the two banks of the staging area
    max_resident_tokens   tokens that stay in device memory after STEP
    offload_to_storage    True: new pages are offloaded to storage instead of host memory
    max_descriptor_bytes  largest DMA descriptor
    max_page_references   largest reference count of a page, its own cluster excluded
    """

    kv_heads: int
    head_dim: int
    page_tokens: int
    max_pages: int
    page_frames: int
    max_clusters: int
    tags: int = 4
    bases: tuple[int, int, int, int] = (0, 0, 0, 0)
    address_bits: int = 48
    staging_head_pages: int = 0
    max_resident_tokens: int = 1
    offload_to_storage: bool = False
    max_descriptor_bytes: int = 4096
    max_page_references: int = 15

    def __post_init__(self) -> None:
        for name in (
            "kv_heads",
            "head_dim",
            "page_tokens",
            "max_pages",
            "page_frames",
            "max_clusters",
            "tags",
            "max_descriptor_bytes",
        ):
            checks.integer(name, getattr(self, name), 1)
        for base in self.bases:
            checks.integer("bases", base, 0)

    @property
    def head_page_bytes(self) -> int:
        """Bytes of the keys and values of one page for one KV head, BF16."""
        return 4 * self.head_dim * self.page_tokens


@dataclass
class BackingCopy:
    """Tier to which a page is offloaded, and whether a copy of the page exists there."""

    tier: Tier
    saved: bool = False


@dataclass
class Kvmu:
    """Executes commands on the tables of one layer.

    config       sizes and settings
    layer        number of the layer; selects the memory regions
    descriptors  all DMA descriptors so far, in order
    extents      the same transfers before they are divided into descriptors
    """

    config: KvmuConfig
    layer: int = 0
    descriptors: list[Descriptor] = field(default_factory=list)
    extents: list[Piece] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._tag = 0
        self._begin(self.layer)

    def _begin(self, layer: int) -> None:
        config = self.config
        self.layer = layer
        # STEP applies the limit of resident tokens; the table never offloads by itself
        self.table = _Table(PagingConfig(config.page_tokens, max(1, config.max_resident_tokens)), config)
        sizes = (config.kv_heads, config.head_dim, config.page_tokens)
        rows = {Tier.DEVICE: config.page_frames, Tier.HOST: config.max_pages, Tier.STORAGE: config.max_pages}
        size = config.head_page_bytes * config.kv_heads
        self._maps = {t: PageAddressMap(*sizes, config.bases[t] + layer * rows[t] * size, rows[t]) for t in Tier}
        ends = [config.bases[t] + (layer + 1) * rows[t] * size for t in Tier]
        ends.append(config.bases[3] + 2 * config.staging_head_pages * config.head_page_bytes)
        self.region_bad = max(ends) > 1 << config.address_bits

    @property
    def resident_tokens(self) -> int:
        """Tokens in device memory."""
        return self.table.resident_tokens

    def execute(self, command: Command) -> list[Reply]:
        """Execute a command and return its replies. Its transfers are appended to `descriptors`."""
        valid_ops = {op.value for op in Op}
        if self.region_bad and command.op != Op.BEGIN:
            return [Reply(command.op, Fault.REGION, last=1)]
        if command.op not in valid_ops:
            return [Reply(command.op, Fault.OP, last=1)]
        return list(getattr(self, f"_{Op(command.op).name.lower()}_command")(command))

    def address(self, page: int, head: int, slot: int = 0) -> tuple[Tier, int]:
        """Tier and byte address of a slot of a page in use."""
        entry = self.table.page(page)
        if entry.frame is not None:
            return Tier.DEVICE, self._maps[Tier.DEVICE].address(entry.frame, head, slot)
        backing_tier = self.table.backing_copies[page].tier
        return backing_tier, self._maps[backing_tier].address(page, head, slot)

    # one method for each operation

    def _begin_command(self, command: Command) -> list[Reply]:
        self._begin(command.layer)
        return [Reply(command.op, Fault.REGION if self.region_bad else Fault.NONE, last=1)]

    def _sync_command(self, command: Command) -> list[Reply]:
        return [Reply(command.op, last=1)]

    def _append_command(self, command: Command) -> list[Reply]:
        if command.cluster >= self.config.max_clusters:
            return [Reply(command.op, Fault.CLUSTER, last=1)]
        if cause := self.table.full(command.cluster):
            return [Reply(command.op, cause, last=1)]
        page, slot = self.table.add(command.cluster)
        tier, address = self.address(page, 0, slot)
        return [Reply(command.op, page=page, slot=slot, tier=tier, address=address, last=1)]

    def _step_command(self, command: Command) -> list[Reply]:
        table, pieces, replies = self.table, [], []
        while table.resident_tokens > self.config.max_resident_tokens and len(table.resident) > 1:
            page = next(iter(table.resident))
            backing_tier = table.backing_copies[page]
            used = len(table.page(page).tokens)
            units = [
                (self.address(page, h)[1], self._maps[backing_tier.tier].address(page, h, 0)) for h in self._heads()
            ]
            if not backing_tier.saved:
                pieces += [
                    Piece(a, b, Tier.DEVICE, backing_tier.tier, used * 4 * self.config.head_dim) for a, b in units
                ]
            tag = 0 if backing_tier.saved else self._tag
            replies.append(
                Reply(
                    command.op,
                    page=page,
                    tier=backing_tier.tier,
                    address=units[0][1],
                    count=used,
                    transit=not backing_tier.saved,
                    tag=tag,
                )
            )
            backing_tier.saved = True
            table.leave(page)
        return [*replies, self._end(command, TransferKind.OFFLOAD, pieces, count=len(replies))]

    def _select_command(self, command: Command) -> list[Reply]:
        if command.cluster >= self.config.max_clusters:
            return [Reply(command.op, Fault.CLUSTER, last=1)]
        pages = self.table.chains.get(command.cluster, [])
        self.table.mark(pages, command.heads)
        return [Reply(command.op, count=len(pages), last=1)]

    def _fetch_command(self, command: Command) -> list[Reply]:
        table, config = self.table, self.config
        pieces, replies, cause, staged = [], [], Fault.NONE, 0
        for page in sorted(table.marks):
            entry, marked = table.page(page), table.marks[page]
            hit, backing_tier = entry.frame is not None, table.backing_copies[page].tier
            if not hit and command.retain:
                marked = (1 << config.kv_heads) - 1
                if not table.frame_available:
                    cause = Fault.NO_PAGE_FRAME
                    break
                table.enter(page)
            for head in self._heads():
                if not marked >> head & 1:
                    continue
                if hit or command.retain:
                    target = self.address(page, head)[1]
                elif staged == config.staging_head_pages:
                    cause = Fault.STAGING
                    break
                else:
                    unit = command.bank * config.staging_head_pages + staged
                    target = config.bases[3] + unit * config.head_page_bytes
                    staged += 1
                if not hit:
                    source = self._maps[backing_tier].address(page, head, 0)
                    pieces.append(
                        Piece(source, target, backing_tier, Tier.DEVICE, len(entry.tokens) * 4 * config.head_dim)
                    )
                tag = 0 if hit else self._tag
                replies.append(
                    Reply(
                        command.op,
                        page=page,
                        head=head,
                        address=target,
                        count=len(entry.tokens),
                        transit=not hit,
                        tag=tag,
                    )
                )
            if cause:
                break
        table.marks.clear()
        kind = TransferKind.RETAIN if command.retain else TransferKind.FETCH
        return [*replies, self._end(command, kind, pieces, count=len(replies), fault=cause)]

    def _lookup_command(self, command: Command) -> list[Reply]:
        if not self.table.in_use(command.page) or command.head >= self.config.kv_heads:
            return [Reply(command.op, Fault.ADDRESS, last=1)]
        return [self._slot_reply(command, command.page, command.slot)]

    def _find_command(self, command: Command) -> list[Reply]:
        if command.cluster >= self.config.max_clusters:
            return [Reply(command.op, Fault.CLUSTER, last=1)]
        index = command.index
        if command.head < self.config.kv_heads:
            for page in self.table.chains.get(command.cluster, []):
                used = len(self.table.page(page).tokens)
                if index < used:
                    return [self._slot_reply(command, page, index)]
                index -= used
        return [Reply(command.op, Fault.ADDRESS, last=1)]

    def _slot_reply(self, command: Command, page: int, slot: int) -> Reply:
        if not self.table.alive(page, slot):
            return Reply(command.op, Fault.ADDRESS, last=1)
        tier, address = self.address(page, command.head, slot)
        return Reply(command.op, page=page, slot=slot, head=command.head, tier=tier, address=address, last=1)

    def _move_command(self, command: Command) -> list[Reply]:
        table, page, slot = self.table, command.page, command.slot
        cause = Fault.NONE
        if command.cluster >= self.config.max_clusters:
            cause = Fault.CLUSTER
        elif not table.alive(page, slot):
            cause = Fault.ADDRESS
        elif table.page(page).frame is None:
            cause = Fault.NOT_RESIDENT
        elif page in table.extra_references:
            cause = Fault.HELD
        else:
            table.seal(page)
            cause = table.full(command.cluster)
        if cause:
            return [Reply(command.op, cause, last=1)]
        previous = [self.address(page, head, slot)[1] for head in self._heads()]
        token = table.page(page).tokens[slot]
        to_page, to_slot = table.move([token], [command.cluster])[0, 2:].tolist()
        target_addresses = [self.address(to_page, head, to_slot)[1] for head in self._heads()]
        size = 4 * self.config.head_dim
        pieces = [Piece(a, b, Tier.DEVICE, Tier.DEVICE, size) for a, b in zip(previous, target_addresses, strict=True)]
        return [self._end(command, TransferKind.MOVE, pieces, page=to_page, slot=to_slot, address=target_addresses[0])]

    def _seal_command(self, command: Command) -> list[Reply]:
        if not self.table.in_use(command.page):
            return [Reply(command.op, Fault.ADDRESS, last=1)]
        self.table.seal(command.page)
        return [Reply(command.op, last=1)]

    def _free_command(self, command: Command) -> list[Reply]:
        if not self.table.in_use(command.page):
            return [Reply(command.op, Fault.ADDRESS, last=1)]
        return [Reply(command.op, count=self.table.free(command.page), last=1)]

    def _hold_command(self, command: Command) -> list[Reply]:
        table, page = self.table, command.page
        if not table.in_use(page):
            return [Reply(command.op, Fault.ADDRESS, last=1)]
        if table.extra_references.get(page, 0) == self.config.max_page_references:
            return [Reply(command.op, Fault.HELD, last=1)]
        table.seal(page)
        table.extra_references[page] = table.extra_references.get(page, 0) + 1
        return [Reply(command.op, count=table.holders(page), last=1)]

    def _mark_command(self, command: Command) -> list[Reply]:
        if not self.table.in_use(command.page):
            return [Reply(command.op, Fault.ADDRESS, last=1)]
        self.table.mark([command.page], command.heads)
        return [Reply(command.op, count=1, last=1)]

    def _evict_command(self, command: Command) -> list[Reply]:
        if command.cluster >= self.config.max_clusters:
            return [Reply(command.op, Fault.CLUSTER, last=1)]
        chain = self.table.chains.get(command.cluster, [])
        evicted = chain[command.index : max(command.index, len(chain) - command.page)]
        replies = [Reply(command.op, page=page, count=len(self.table.page(page).tokens)) for page in evicted]
        for page in evicted:
            self.table.unchain(page)
        return [*replies, Reply(command.op, count=len(evicted), last=1)]

    def _migrate_command(self, command: Command) -> list[Reply]:
        table, page = self.table, command.page
        if not table.in_use(page) or command.tier not in (Tier.HOST, Tier.STORAGE):
            return [Reply(command.op, Fault.ADDRESS, last=1)]
        backing_tier, tier, pieces = table.backing_copies[page], Tier(command.tier), []
        if backing_tier.saved and backing_tier.tier != tier:
            size = len(table.page(page).tokens) * 4 * self.config.head_dim
            for head in self._heads():
                source, target = (self._maps[t].address(page, head, 0) for t in (backing_tier.tier, tier))
                pieces.append(Piece(source, target, backing_tier.tier, tier, size))
        backing_tier.tier = tier
        return [self._end(command, TransferKind.MIGRATE, pieces)]

    def _heads(self) -> range:
        return range(self.config.kv_heads)

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
            last = self.descriptors[-1]
            self.descriptors[-1] = Descriptor(**{**vars(last), "last": 1})
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


class _Table(PageTable):
    """Page table with limits, a list of pages for each cluster, backing copies, reference counts and marks."""

    def __init__(self, config: PagingConfig, unit: KvmuConfig) -> None:
        super().__init__(config, unit.kv_heads, unit.head_dim)
        self.unit = unit
        self.chains: dict[int, list[int]] = {}
        self.backing_copies: dict[int, BackingCopy] = {}
        self.extra_references: dict[int, int] = {}  # references of a page, its own cluster excluded, if above zero
        self.marks: dict[int, int] = {}

    @property
    def frame_available(self) -> bool:
        return bool(self._free_frames) or self.frames < self.unit.page_frames

    def full(self, cluster: int) -> Fault:
        """Fault of the next token of the cluster if there is no free page or page frame, else NONE."""
        if cluster in self._open:
            return Fault.NONE
        if not self._free_pages and len(self.pages) == self.unit.max_pages:
            return Fault.NO_PAGE
        return Fault.NONE if self.frame_available else Fault.NO_PAGE_FRAME

    def page(self, number: int):
        return self._page(number)

    def in_use(self, number: int) -> bool:
        return number < len(self.pages) and self.pages[number] is not None

    def alive(self, number: int, slot: int) -> bool:
        return self.in_use(number) and slot < len(self.page(number).tokens) and self.page(number).tokens[slot] >= 0

    def add(self, cluster: int) -> tuple[int, int]:
        page, slot = self._allocate_slot(self.tokens, cluster)
        self._page_of.append(page)
        self._slot_of.append(slot)
        return page, slot

    def seal(self, number: int) -> None:
        self._close(number)

    def leave(self, number: int) -> None:
        self._leave(number)

    def enter(self, number: int) -> None:
        self._enter(number)

    def mark(self, pages: Sequence[int], heads: int) -> None:
        if heads:
            for page in pages:
                self.marks[page] = self.marks.get(page, 0) | heads

    def holders(self, number: int) -> int:
        return self.extra_references.get(number, 0) + (number in self.chains[self.page(number).cluster])

    def free(self, number: int) -> int:
        """Remove one reference, that of the cluster last. Frees the page at zero. Returns the remaining references."""
        if number not in self.extra_references:
            self._free(number)
            return 0
        self.extra_references[number] -= 1
        holder_count = self.holders(number)
        if not self.extra_references[number]:
            del self.extra_references[number]
        if not holder_count:
            self._free(number)
        return holder_count

    def unchain(self, number: int) -> None:
        """Remove the reference of the cluster."""
        self._close(number)
        if number in self.extra_references:
            self.chains[self.page(number).cluster].remove(number)
        else:
            self._free(number)

    def _allocate_slot(self, token: int, cluster: int) -> tuple[int, int]:
        page, slot = super()._allocate_slot(token, cluster)
        chain = self.chains.setdefault(cluster, [])
        if page not in chain:
            chain.append(page)
            self.backing_copies[page] = BackingCopy(Tier.STORAGE if self.unit.offload_to_storage else Tier.HOST)
        return page, slot

    def _free(self, number: int) -> None:
        chain = self.chains[self.page(number).cluster]
        if number in chain:
            chain.remove(number)
        del self.backing_copies[number]
        self.marks.pop(number, None)
        super()._free(number)
