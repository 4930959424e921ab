"""Accesses of KVMU commands to the store, in the order of the state machines in `hw/dre/kvmu/`."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np

from golden.kvmu import Command, Kvmu, Op, Piece, Reply
from golden.kvmu.tables import ContextTables
from golden.kvmu.transfer import Tier
from golden.store import NONE, Store
from golden.store.layout import OPEN, RESIDENT, SAVED
from hw.dre.kvmu.headers import CONTEXT_BLOCKS, STEP_BLOCK, STORE_BLOCK
from hw.dre.kvmu.records import BLOCK_BYTES, HEADER_BLOCKS, TABLE_BYTES

BLOCKS = TABLE_BYTES // BLOCK_BYTES  # blocks of a unit of table addresses
BACKING_BLOCK = 1  # block of a context header with the addresses of its backing pages


class Act(IntEnum):
    """One action of a command; in brackets the meaning of its value."""

    WAIT = 0  # [cycles]
    READ = 1  # read a block of the store [block]
    WRITE = 2  # write parts of a block [block]
    LOG = 3  # write the line of a block to the undo log [block]
    FLUSH = 4  # write all changed lines to memory
    INVALIDATE = 5  # drop all lines
    CANDIDATES = 6  # send the cluster records to the HCU [Candidates]
    COPY = 7  # a job of the copy generator [CopyJob]
    FINISH = 8  # end the transfers of the command
    DRAIN = 9  # wait until no transfer is in flight
    COMMITTED = 10  # the undo log is empty


Action = tuple[Act, Any]


@dataclass(frozen=True)
class Candidates:
    """Cluster records that OPEN reads: number of the first block, records, and how many of them left the window."""

    block: int
    records: int
    expired: int


@dataclass(frozen=True)
class CopyJob:
    """A page that is reported or copied.

    entries : entries of page lists, as KV heads ; once : one reply instead of one for each head ; pieces : to copy
    """

    entries: Sequence[int] = ()
    once: bool = False
    pieces: Sequence[Piece] = ()


@dataclass(frozen=True)
class StoreCommand:
    """A command of the KVMU and its actions between the check and the last reply; `cluster`: of SELECT."""

    op: Op
    actions: Sequence[Action] = field(default=(), repr=False)
    cluster: int = 0

    @property
    def pieces(self) -> list[Piece]:
        """Memory that the command copies."""
        return [piece for act, value in self.actions if act is Act.COPY for piece in value.pieces]


ONE: Action = (Act.WAIT, 1)
TWO: Action = (Act.WAIT, 2)
# Headers flush, then the dispatcher waits for transfers
SYNC = StoreCommand(Op.SYNC, (ONE, (Act.FLUSH, 0), ONE, (Act.DRAIN, 0)))
FETCH = StoreCommand(Op.FETCH, ((Act.FINISH, 0),))


class Blocks:
    """Numbers of the blocks of a store that hold its records."""

    def __init__(self, store: Store):
        self.store, self.header = store, store.base // BLOCK_BYTES
        self.frames = int(store.header["frames_base"]) * BLOCKS
        self.contexts = int(store.header["contexts_base"]) * BLOCKS

    def context(self, number: int, block: int) -> int:
        """Block of the header of a context."""
        return self.contexts + HEADER_BLOCKS * number + block

    def frame(self, frame: int) -> int:
        """Block of the record of a page frame."""
        return self.frames + frame // 2

    def table(self, tables: ContextTables, name: str) -> int:
        """First block of a table of a context."""
        return int(tables.header[f"{name}_base"]) * BLOCKS

    def cluster(self, tables: ContextTables, cluster: int) -> int:
        """Block of the record of a cluster."""
        return self.table(tables, "clusters") + cluster

    def count(self, tables: ContextTables, cluster: int) -> int:
        """Block of the token count of a cluster."""
        return self.table(tables, "counts") + cluster // 16

    def page(self, tables: ContextTables, page: int) -> int:
        """Block of the record of a page."""
        return self.table(tables, "pages") + page

    def mean_key(self, tables: ContextTables, cluster: int) -> range:
        """First block of each line of the mean key of a cluster."""
        store = self.store
        first = self.table(tables, "mean_keys") * BLOCK_BYTES + cluster * store.key_bytes
        line, last = store.line_bytes // BLOCK_BYTES, (first + store.key_bytes - 1) // BLOCK_BYTES
        return range(first // BLOCK_BYTES // line * line, last + 1, line)

    def token(self, tables: ContextTables, page: int, slot: int) -> int:
        """Block of the token number of a slot."""
        return self.table(tables, "lists") + (page * self.store.page_tokens + slot) // 8


def execute(kvmu: Kvmu, command: Command) -> tuple[StoreCommand, list[Reply]]:
    """Execute a command of the core on the golden model; returns its accesses and its replies.

    Raises ValueError for an operation that the core does not use, or a command that is refused.
    """
    makers = {
        Op.OPEN: _open, Op.APPEND: _append, Op.SELECT: _select, Op.STEP: _step, Op.FETCH: _fetch, Op.EVICT: _evict,
        Op.MOVE: _move,
    }  # fmt: skip
    op = Op(command.op)
    if op not in makers:
        raise ValueError(f"op must be one of {', '.join(o.name for o in makers)}, got {op.name}")
    maker = makers[op](kvmu, command)
    next(maker)  # records what the command depends on
    replies = Kvmu.execute(kvmu, command)
    if replies[-1].fault:
        raise ValueError(f"fault of {op.name} must be 0, got {replies[-1].fault}")
    actions = maker.send(replies)
    return StoreCommand(op, tuple(actions), command.cluster), replies


# Each maker yields once before the command and then gets its replies.
Maker = Generator[Any, Any, None]


def _open(kvmu: Kvmu, command: Command) -> Maker:
    is_open = kvmu.context == command.context
    yield
    if is_open:
        yield []
        return
    tables, opened = kvmu.tables, kvmu.opened
    assert opened is not None, "another context was opened"
    blocks = Blocks(tables.store)
    first = int(tables.header["first_candidate"])
    expired = opened.cluster - first
    yield [
        ONE,
        (Act.INVALIDATE, 0),
        *((Act.READ, blocks.header + n) for n in range(HEADER_BLOCKS)),
        ONE,
        *((Act.READ, blocks.context(tables.number, n)) for n in range(HEADER_BLOCKS)),
        TWO,
        (Act.CANDIDATES, Candidates(blocks.cluster(tables, first), expired + len(opened.candidates), expired)),
    ]


def _append(kvmu: Kvmu, command: Command) -> Maker:
    tables, cluster = kvmu.tables, command.cluster
    blocks, store = Blocks(tables.store), tables.store.header
    pages = 0 if command.opened else int(tables.context.clusters[cluster]["pages"])
    last_page = int(tables.context.clusters[cluster]["last_page"]) if pages else NONE
    has_open_page = bool(pages) and tables.has(last_page, OPEN)
    reused = int(tables.header["free_count"]) > 0, int(store["free_count"]) > 0
    newest = int(store["newest"])
    replies = yield
    page, slot = replies[-1].page, replies[-1].slot
    actions: list[Action] = [TWO]  # IDLE, START
    if not command.opened:
        actions.append((Act.READ, blocks.cluster(tables, cluster)))
        actions += [(Act.LOG, block) for block in blocks.mean_key(tables, cluster)]
    if pages:
        actions.append((Act.READ, blocks.page(tables, last_page)))
    if has_open_page:
        actions.append((Act.WRITE, blocks.page(tables, page)))
    else:
        actions += [ONE, *_open_page(blocks, tables, page, last_page, reused, newest)]  # ALLOCATE
    actions += [
        (Act.WRITE, blocks.token(tables, page, slot)),
        (Act.WRITE, blocks.cluster(tables, cluster)),
        (Act.WRITE, blocks.count(tables, cluster)),
        ONE,  # ANSWER
    ]
    yield actions


def _open_page(
    blocks: Blocks, tables: ContextTables, page: int, last_page: int, reused: tuple[bool, bool], newest: int
) -> list[Action]:
    """Allocate a page and its page frame, write its record, and append it to a chain whose last page is `last_page`.

    `reused` : the page, and the page frame, are from the free lists ; `newest` : page frame that was the newest one
    """
    return [
        ONE,  # free pages: IDLE
        *([(Act.READ, blocks.page(tables, page))] if reused[0] else []),
        ONE,  # ALLOCATED
        *_take_frame(blocks, int(tables.pages[page]["frame"]), reused[1], newest),
        (Act.WRITE, blocks.page(tables, page)),
        *([(Act.WRITE, blocks.page(tables, last_page))] if last_page != NONE else []),
    ]


def _take_frame(blocks: Blocks, frame: int, reused: bool, newest: int) -> list[Action]:
    """Allocate a page frame, which is from the free list if it is `reused`; `newest` was the newest one."""
    return [
        ONE,  # page frames: IDLE
        *([(Act.READ, blocks.frame(frame))] if reused else []),
        (Act.WRITE, blocks.frame(frame)),
        *([(Act.WRITE, blocks.frame(newest))] if newest != NONE else []),
        ONE,  # ALLOCATED
    ]


class Ages:
    """Copy of the list of ages: the neighbours of the page frames in use."""

    def __init__(self, store: Store):
        self.older, self.newer = (store.frames[name].astype(np.int64) for name in ("older", "newer"))
        self.newest = int(store.header["newest"])

    def renew(self, frame: int) -> list[int]:
        """Make a page frame the newest one; returns its old neighbours and the newest frame before, or [] if it was."""
        older, newer = int(self.older[frame]), int(self.newer[frame])
        if newer == NONE:
            return []
        if older != NONE:
            self.newer[older] = newer
        self.older[newer] = older
        return [older, newer, self.take(frame)]

    def take(self, frame: int) -> int:
        """Append a page frame; the one that was the newest before."""
        newest, self.newest = self.newest, frame
        self.older[frame], self.newer[frame] = newest, NONE
        if newest != NONE:
            self.newer[newest] = frame
        return newest


def _renew_frame(blocks: Blocks, frame: int, ages: Ages) -> list[Action]:
    """Make a page frame the newest one."""
    actions: list[Action] = [ONE, (Act.READ, blocks.frame(frame))]  # IDLE, READ_FRAME
    if neighbours := ages.renew(frame):
        older, newer, newest = neighbours
        actions += [
            ONE,  # LINK_OLDER
            *([(Act.WRITE, blocks.frame(older))] if older != NONE else []),
            ONE,  # LINK_NEWER
            *((Act.WRITE, blocks.frame(number)) for number in (newer, frame, newest)),
        ]
    return [*actions, ONE]  # RENEWED


def _select(kvmu: Kvmu, command: Command) -> Maker:
    tables, header = kvmu.tables, kvmu.tables.store.header
    blocks = Blocks(tables.store)
    chain = tables.context.chain(command.cluster)
    absent = {page for page in chain if not tables.is_resident(page)}
    free, ages = int(header["free_count"]), Ages(tables.store) if command.retain else None
    replies = yield
    beats: dict[int, list[Reply]] = {}
    for reply in replies[:-1]:
        beats.setdefault(reply.page, []).append(reply)
    actions: list[Action] = [ONE, (Act.READ, blocks.cluster(tables, command.cluster))]
    for page in chain if command.heads else ():
        actions += [(Act.READ, blocks.page(tables, page)), ONE]  # VISIT
        if page in beats:
            targets = {beat.head: beat.address for beat in beats[page] if beat.transit}
            frame = int(tables.pages[page]["frame"])
            if ages and page not in absent:
                actions += _renew_frame(blocks, frame, ages)
            elif ages:
                taken = _take_frame(blocks, frame, free > 0, ages.take(frame))
                actions += [*taken, (Act.WRITE, blocks.page(tables, page))]
                free = max(0, free - 1)
                targets = {head: tables.address(page, head)[1] for head in kvmu.config.heads}
            tier, nbytes = tables.backing_tier(page), kvmu.config.layout.used_bytes(int(tables.pages[page]["used"]))
            pieces = [
                Piece(tables.backing_address(page, head), target, tier, Tier.DEVICE, nbytes)
                for head, target in targets.items()
            ]
            actions.append((Act.COPY, CopyJob([beat.head for beat in beats[page]], pieces=pieces)))
        actions.append(ONE)  # NEXT
    yield [*actions, ONE]


def _fetch(kvmu: Kvmu, command: Command) -> Maker:
    yield
    yield FETCH.actions


def _move(kvmu: Kvmu, command: Command) -> Maker:
    tables, page, cluster = kvmu.tables, command.page, command.cluster
    blocks, header, own = Blocks(tables.store), tables.store.header, tables.header
    source = tables.pages[page].copy()
    frame, source_cluster = int(source["frame"]), int(source["cluster"])
    if source_cluster == cluster:
        raise ValueError(f"cluster of a moved token must be another one, got {cluster}")
    sources = [tables.address(page, head, command.slot)[1] for head in kvmu.config.heads]
    last_page = NONE if command.opened else int(tables.context.clusters[cluster]["last_page"])
    opens = last_page == NONE or not tables.has(last_page, OPEN)
    free_pages, free_frames, newest = int(own["free_count"]), int(header["free_count"]), int(header["newest"])
    free_page, free_frame = int(own["free_last"]), int(header["free_last"])
    older, newer = (int(tables.store.frames[frame][name]) for name in ("older", "newer"))
    replies = yield
    target, slot = replies[-1].page, replies[-1].slot
    actions: list[Action] = [
        ONE,  # IDLE
        (Act.READ, blocks.page(tables, page)),
        ONE,  # CHECK_SOURCE
        (Act.READ, blocks.token(tables, page, command.slot)),
        ONE,  # START
        *([] if command.opened else [(Act.READ, blocks.cluster(tables, cluster))]),
        *([] if last_page == NONE else [(Act.READ, blocks.page(tables, last_page))]),
        *([ONE] if opens else []),  # ALLOCATE
        (Act.WRITE, blocks.page(tables, page)),  # SEAL_SOURCE
    ]
    if opens:
        actions += _open_page(blocks, tables, target, last_page, (free_pages > 0, free_frames > 0), newest)
        free_pages, free_frames = max(0, free_pages - 1), max(0, free_frames - 1)
        if newer == NONE:
            newer = int(tables.pages[target]["frame"])
    else:
        actions.append((Act.WRITE, blocks.page(tables, target)))
    pieces = [
        Piece(address, tables.address(target, head, slot)[1], Tier.DEVICE, Tier.DEVICE, kvmu.config.layout.block_bytes)
        for head, address in enumerate(sources)
    ]
    actions += [
        (Act.WRITE, blocks.token(tables, target, slot)),
        (Act.WRITE, blocks.cluster(tables, cluster)),
        (Act.WRITE, blocks.count(tables, cluster)),
        (Act.COPY, CopyJob(pieces=pieces)),
        (Act.WRITE, blocks.page(tables, page)),  # CLEAR_SLOT
        (Act.READ, blocks.cluster(tables, source_cluster)),
        (Act.WRITE, blocks.cluster(tables, source_cluster)),
        (Act.WRITE, blocks.count(tables, source_cluster)),
        ONE,  # CHECK_EMPTY
    ]
    if int(source["live"]) == 1 << command.slot:
        near = Neighbours(
            int(source["previous"]), int(source["next"]), older, newer,
            free_page if free_pages else NONE, free_frame if free_frames else NONE,
        )  # fmt: skip
        actions += [ONE, *_release(blocks, tables, page, source_cluster, frame, near), ONE]  # page editor: IDLE, ANSWER
    yield [*actions, ONE, *FETCH.actions]  # ANSWER


@dataclass(frozen=True)
class Neighbours:
    """Numbers of the records that change with the release of a page; NONE: there is none.

    previous, following : pages of the chain ; older, newer : page frames ; page, frame : last ones of the free lists
    """

    previous: int
    following: int
    older: int
    newer: int
    page: int
    frame: int


def _release(
    blocks: Blocks,
    tables: ContextTables,
    page: int,
    cluster: int,
    frame: int,
    near: Neighbours,
    *,
    report: bool = False,
) -> list[Action]:
    """Remove a page from its chain, and release its page frame and its number. `report` : a reply names it."""

    def write_page(number: int) -> list[Action]:
        return [(Act.WRITE, blocks.page(tables, number))] if number != NONE else []

    def write_frame(number: int) -> list[Action]:
        return [(Act.WRITE, blocks.frame(number))] if number != NONE else []

    return [
        (Act.READ, blocks.page(tables, page)),
        *([(Act.COPY, CopyJob(once=True))] if report else []),  # REPORT
        ONE,  # UNCHAIN
        (Act.READ, blocks.cluster(tables, cluster)),
        (Act.WRITE, blocks.cluster(tables, cluster)),
        (Act.WRITE, blocks.count(tables, cluster)),
        ONE,  # LINK_PREVIOUS
        *write_page(near.previous),
        ONE,  # LINK_NEXT
        *write_page(near.following),
        TWO,  # DROP; page frames: IDLE
        (Act.READ, blocks.frame(frame)),
        ONE,  # LINK_OLDER
        *write_frame(near.older),
        ONE,  # LINK_NEWER
        *write_frame(near.newer),
        *write_frame(frame),
        *write_frame(near.frame),
        TWO,  # RELEASED; free pages: IDLE
        *write_page(page),
        *write_page(near.page),
        TWO,  # RELEASED, NEXT
    ]


def _evict(kvmu: Kvmu, command: Command) -> Maker:
    """The pages leave the chain one after the other; each one is the oldest page of the rest of the chain."""
    tables, cluster = kvmu.tables, command.cluster
    blocks, header = Blocks(tables.store), tables.store.header
    chain = tables.context.chain(cluster)
    kept, free_page, free_frame = command.index, int(tables.header["free_last"]), int(header["free_last"])
    free_pages, free_frames = int(tables.header["free_count"]), int(header["free_count"])
    end = max(kept, len(chain) - command.page)
    actions: list[Action] = [ONE, (Act.READ, blocks.cluster(tables, cluster))]  # IDLE
    if end > kept:
        actions += [(Act.READ, blocks.page(tables, page)) for page in chain[:kept]]
    links = {
        int(frame): (int(tables.store.frames[frame]["older"]), int(tables.store.frames[frame]["newer"]))
        for frame in tables.pages["frame"][chain[kept:end]]
    }
    for number in range(kept, end):
        page = chain[number]
        frame = int(tables.pages[page]["frame"])
        if not tables.has(page, RESIDENT) or int(tables.pages[page]["references"]):
            raise ValueError(f"page {page} must be in device memory and have one reference to be released")
        older, newer = links.pop(frame)
        for other, (its_older, its_newer) in links.items():
            links[other] = older if its_older == frame else its_older, newer if its_newer == frame else its_newer
        near = Neighbours(
            chain[kept - 1] if kept else NONE, chain[number + 1] if number + 1 < len(chain) else NONE, older, newer,
            free_page if free_pages else NONE, free_frame if free_frames else NONE,
        )  # fmt: skip
        actions += _release(blocks, tables, page, cluster, frame, near, report=True)
        free_page, free_frame, free_pages, free_frames = page, frame, free_pages + 1, free_frames + 1
    yield
    yield [*actions, ONE]  # ANSWER


def _step(kvmu: Kvmu, command: Command) -> Maker:
    tables = kvmu.tables
    blocks = Blocks(tables.store)
    actions: list[Action] = [TWO, *_offload(kvmu, tables, blocks), ONE]  # IDLE, CHECK; ANSWER
    yield
    phases = tables.store.line_bytes // BLOCK_BYTES >= HEADER_BLOCKS
    context = [(Act.WRITE, blocks.context(tables.number, n)) for n in CONTEXT_BLOCKS]
    store = (Act.WRITE, blocks.header + STORE_BLOCK)
    flush = (Act.FLUSH, 0)
    commit = [*context, flush, store] if phases else [*context, store, flush]
    step = [(Act.WRITE, blocks.header + STEP_BLOCK), flush, ONE, (Act.COMMITTED, 0)]
    yield [*actions, (Act.FINISH, 0), (Act.DRAIN, 0), ONE, *commit, *step]


def _offload(kvmu: Kvmu, tables: ContextTables, blocks: Blocks) -> Iterator[Action]:
    """Actions of the offloader: the oldest pages, until few enough tokens are resident."""
    store, header = tables.store, tables.store.header
    tokens, pages = int(header["resident_tokens"]), int(header["resident_pages"])
    frame, free_last = int(header["oldest"]), int(header["free_last"])
    free = int(header["free_count"])
    while tokens > kvmu.config.max_resident_tokens and pages > 1:
        record = store.frames[frame]
        owner = int(record["context"])
        page, newer = int(record["page"]), int(record["newer"])
        own = tables if owner == tables.number else ContextTables(store, owner, kvmu.config)
        assert own.has(page, RESIDENT)
        used, tier = int(own.pages[page]["used"]), own.backing_tier(page)
        yield from (
            (Act.READ, blocks.frame(frame)),
            (Act.READ, blocks.context(owner, 0)),
            (Act.READ, blocks.context(owner, BACKING_BLOCK)),
            (Act.READ, blocks.page(own, page)),
            ONE,  # page frames: IDLE
            (Act.READ, blocks.frame(frame)),
            TWO,  # LINK_OLDER, LINK_NEWER
        )
        if newer != NONE:
            yield Act.WRITE, blocks.frame(newer)
        yield Act.WRITE, blocks.frame(frame)
        if free:
            yield Act.WRITE, blocks.frame(free_last)
        pieces: list[Piece] = []
        if not own.has(page, SAVED):
            size = kvmu.config.layout.used_bytes(used)
            pieces = [
                Piece(own.address(page, head)[1], own.backing_address(page, head), Tier.DEVICE, tier, size)
                for head in kvmu.config.heads
            ]
        # RELEASED; WRITE_PAGE; COPY; CHECK
        yield from (ONE, (Act.WRITE, blocks.page(own, page)), (Act.COPY, CopyJob(once=True, pieces=pieces)), ONE)
        tokens, pages, free, free_last, frame = tokens - used, pages - 1, free + 1, frame, newer
