"""What the cycles of a step depend on besides its commands, recorded from the golden model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from golden.clustering import Assignment
from golden.kvmu import Command, Op, Piece, Reply
from golden.kvpu import Kvpu
from golden.store.layout import TABLE_UNIT
from golden.wicsum import RowSelections
from sw_model.cycles.store_commands import StoreCommand, execute


@dataclass
class StepData:
    """A step of one layer of one stream.

    opening, committing : commands OPEN and STEP of the KVMU
    mean_keys, counts, log : byte addresses of the mean keys and token counts of the context, and of the undo log
    clusters : before the step ; scored : clusters that the queries scored; None: no queries
    appends : command of each token ; places : byte address of its slot, or of the block of its slot ; slots : number of
        its slot ; assigned : its cluster ; opened : it is new
    searched : first and end cluster that each token is compared with
    rows : for each group of score rows (passes, levels) of every row
    selects : for each KV head, the command of each selected cluster
    pages : for each KV head, (byte address, past tokens) of every page
    releases, moves : commands that release pages, and that move tokens
    kept : tokens of the step that are stored; None: all ; norms : passes and levels of the row that selects them
    """

    opening: StoreCommand | None = None
    committing: StoreCommand | None = None
    mean_keys: int = 0
    counts: int = 0
    log: int = 0
    clusters: int = 0
    scored: int | None = None
    appends: list[StoreCommand] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    assigned: list[int] = field(default_factory=list)
    opened: list[bool] = field(default_factory=list)
    searched: list[tuple[int, int]] = field(default_factory=list)
    rows: list[list[tuple[int, int]]] = field(default_factory=list)
    selects: dict[int, list[StoreCommand]] = field(default_factory=dict)
    pages: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    releases: list[StoreCommand] = field(default_factory=list)
    moves: list[StoreCommand] = field(default_factory=list)
    kept: list[int] | None = None
    norms: tuple[int, int] = (0, 0)

    @property
    def clusters_after(self) -> int:
        """Clusters of the context after the tokens of the step."""
        return self.clusters + sum(self.opened)

    @property
    def fetched(self) -> list[Piece]:
        """Head pages that are fetched."""
        return [piece for selects in self.selects.values() for select in selects for piece in select.pieces]

    def tokens_of_piece(self, number: int, size: int) -> range:
        """Tokens of piece `number`, if a piece has at most `size` tokens."""
        return range(len(self.appends))[number * size : (number + 1) * size]

    def means(self, tokens: range) -> list[tuple[int, bool, list[int]]]:
        """Clusters of the tokens of a piece: number, whether it is new, and which tokens of the piece."""
        groups: dict[int, list[int]] = {}
        for token in tokens:
            groups.setdefault(self.assigned[token], []).append(token - tokens.start)
        return [(cluster, self.opened[tokens[own[0]]], own) for cluster, own in groups.items()]

    def past(self, head: int) -> int:
        """Past tokens that a KV head attends to."""
        return sum(count for _, count in self.pages.get(head, ()))


class _Recorder:
    """Stands in for methods of a `Kvpu` and its KVMU, and appends to `steps`."""

    def __init__(self, table: Kvpu):
        self.table, self.steps = table, list[StepData]()

    def execute(self, command: Command) -> list[Reply]:
        kvmu = self.table.kvmu
        recorded, replies = execute(kvmu, command)
        op = Op(command.op)
        if op == Op.OPEN:
            header, log = kvmu.tables.header, kvmu.tables.store.header["log_base"]
            keys, counts = (int(header[name]) * TABLE_UNIT for name in ("mean_keys_base", "counts_base"))
            self.steps.append(
                StepData(recorded, None, keys, counts, int(log) * TABLE_UNIT, clusters=int(header["clusters"]))
            )
        step = self.steps[-1]
        if op == Op.APPEND:
            step.appends.append(recorded)
            step.places.append(replies[-1].address)
            step.slots.append(replies[-1].slot)
            step.assigned.append(command.cluster)
            step.opened.append(bool(command.opened))
        elif op == Op.SELECT:
            head = command.heads.bit_length() - 1
            step.selects.setdefault(head, []).append(recorded)
            step.pages.setdefault(head, []).extend((reply.address, reply.count) for reply in replies[:-1])
        elif op == Op.EVICT:
            step.releases.append(recorded)
        elif op == Op.MOVE:
            step.moves.append(recorded)
        elif op == Op.STEP:
            step.committing = recorded
        return replies

    def cluster(self, codes: Any) -> tuple[Assignment, list[Reply]]:
        end = len(self.table.clusters)
        assigned, replies = Kvpu.cluster(self.table, codes)
        for opened, compared in zip(assigned.opened.tolist(), assigned.compared.tolist(), strict=True):
            self.steps[-1].searched.append((end - compared, end))
            end += opened
        return assigned, replies

    def keep(self, norms: Any, count: int) -> RowSelections:
        rows = Kvpu.keep(self.table, norms, count)
        self.steps[-1].kept = rows.selected[0].nonzero()[0].tolist()
        self.steps[-1].norms = int(rows.passes[0]), int(rows.levels[0])
        return rows

    def retrieve(self, groups: Sequence[Any]) -> tuple:
        self.steps[-1].scored = len(self.table.clusters)
        result = Kvpu.retrieve(self.table, groups)
        self.steps[-1].rows = [list(zip(rows.passes.tolist(), rows.levels.tolist(), strict=True)) for rows in result[0]]
        return result


@contextmanager
def recording(table: Kvpu) -> Iterator[list[StepData]]:
    """Record the steps that the golden model `table` executes inside the context: one entry for each OPEN."""
    recorder = _Recorder(table)
    vars(table.kvmu)["execute"] = recorder.execute
    vars(table)["cluster"], vars(table)["retrieve"] = recorder.cluster, recorder.retrieve
    vars(table)["keep"] = recorder.keep
    try:
        yield recorder.steps
    finally:
        for owner, name in ((table.kvmu, "execute"), (table, "cluster"), (table, "retrieve"), (table, "keep")):
            vars(owner).pop(name, None)


def record_steps(table: Kvpu, step: Callable[[], Any]) -> list[StepData]:
    """Execute `step` and return its data, one entry for each layer that it executes."""
    with recording(table) as steps:
        step()
    return steps
