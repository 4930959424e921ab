"""Finds races: two commands that access the same word of memory, one of them writing, in an order that no wait ensures.

The golden machine executes commands one after the other, so that a missing wait does not change its results. This check
derives which commands are complete when another one starts, from the waits and barriers of the programs alone:

- Commands of one unit start in order, and signal their events in order. The retrieval unit executes one at a time.
- A command starts after the events that it waits for.
- A BARRIER is complete when all cores of the step have started theirs.

The accesses are those of the golden interpreter. Of the retrieval unit they include the rows of scores that SELECT
and KEEP read, and its decisions, as words of one more memory: the number of clusters, which OPEN, hash codes and
CLUSTER change, the kept tokens of the step, and the page lists. Page lists and pages change from the first SELECT
after a FETCH up to the next FETCH. Its own tables are not included; one unit on one core accesses them. The number that
COUNT reads is a word of each core.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from compiler.machine.interpreter import FastInterpreter
from golden.core_interpreter import CoreInterpreter
from hw.core.isa import BY_NAME, LIST_SETS, Command, Destination, ExecUnit, LengthSource, SyncEvent

DECISIONS = 2  # memory of the decisions of the retrieval unit
PAGE_LISTS = 1  # word of the first page list
Words = tuple[int, int, int]  # memory, first word, number of words
CLUSTERS: Words = (DECISIONS, 0, 1)  # number of clusters
KEPT: Words = (DECISIONS, PAGE_LISTS + (1 << 16), 1)  # tokens of the step that are kept
OWN = 3  # memory of the registers of a core; its word is the number of the core
COUNTED: Words = (OWN, 0, 1)  # number of clusters of the last COUNT


class Race(AssertionError):
    """Two accesses without an order. The message is one line and names both commands."""


@dataclass(frozen=True)
class Access:
    """Words that a command reads and writes."""

    reads: list[Words]
    writes: list[Words]


class AccessRecorder(FastInterpreter):
    """An interpreter that records the words which every command accesses in `accesses`.

    Products are those of `FastInterpreter`; every other command takes the code of `CoreInterpreter`, which passes all
    its accesses to `_read` and `_write`.
    """

    _read, _write = CoreInterpreter._read, CoreInterpreter._write

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self.accesses: list[Access] = []
        self._lists = 0  # page lists of the open context
        self._first: Access | None = None  # accesses of the first SELECT since the last FETCH

    def _device(self) -> None:
        """No direct access to the device memory, which would not be recorded."""

    def execute(self, command: Any) -> None:
        """Execute one command, and append its accesses."""
        self.reads.clear()
        self.writes.clear()
        super().execute(command)
        reads, writes = (list(chain(*accesses.values())) for accesses in (self.reads, self.writes))
        self.accesses.append(Access(reads, writes))
        f, name = command.fields, command.name
        if name == "GATHER" or f.get("length") == LengthSource.TOKENS:
            reads.append((DECISIONS, PAGE_LISTS + f.get("head", 0), 1))
        if f.get("length") == LengthSource.CLUSTERS:
            reads.append(CLUSTERS)
        if f.get("length") == LengthSource.COUNTED:
            reads.append(COUNTED)
        if name == "COUNT":
            writes.append(COUNTED)
        if name in ("OPEN", "CLUSTER") or f.get("destination") == Destination.CODES:
            writes.append(CLUSTERS)
        if name == "OPEN":
            self._lists = f.get("lists", 0)
        if name == "SELECT":
            words = self._blocks(self.clusters)
            reads += [(0, f["source"] + row * f["stride"], words) for row in range(f["rows"])]
            self._first = self._first or self.accesses[-1]
        if name == "KEEP":
            reads.append((0, f["source"], self._blocks(f["tokens"])))
            writes.append(KEPT)
        if name == "STORE" and self.kept is not None:
            reads.append(KEPT)
        if name == "FETCH":
            writes += self._selection()
            if self._first:
                self._first.writes.extend(writes)
            self._first = None

    def _selection(self) -> list[Words]:
        """Page lists and pages that change from the first SELECT to FETCH."""
        heads, size = len(self.pages) // LIST_SETS, 2 * self.head_words
        first = self._lists * heads
        pages = chain(*self.pages[first : first + heads])
        lists = (DECISIONS, PAGE_LISTS + first, heads)
        return [lists, *((0, page, tokens * size) for page, tokens in pages)]


@dataclass
class _Point:
    """A command in its program.

    core, index, name : core, number in its program, mnemonic
    unit, number : unit, and number among the commands of this unit
    complete : for each core and unit, commands that are complete when it starts
    """

    core: int
    index: int
    name: str
    unit: ExecUnit
    number: int
    complete: np.ndarray = field(repr=False)

    def precedes(self, other: _Point) -> bool:
        """Whether it is complete when `other` starts."""
        return bool(other.complete[self.core, self.unit] > self.number)

    def __str__(self) -> str:
        return f"{self.name} (command {self.index} of core {self.core})"


def _walk(core: int, cores: int, program: Sequence[Command]) -> Iterator[_Point]:
    """The commands of a program up to END. The caller adds to `complete` of a BARRIER what its release ensures."""
    points: dict[ExecUnit, list[_Point]] = {unit: [] for unit in ExecUnit}
    signalled: dict[ExecUnit, list[np.ndarray]] = {unit: [] for unit in ExecUnit}  # complete when a command is complete
    for index, command in enumerate(program):
        unit = BY_NAME[command.name].unit
        if unit is None:
            return
        complete = np.zeros((cores, len(ExecUnit)), np.int64)
        if points[unit]:
            serial = unit is ExecUnit.RETRIEVAL
            np.maximum(complete, signalled[unit][-1] if serial else points[unit][-1].complete, out=complete)
        for event, wait in command.waits.items():
            awaited = len(points[event.unit]) - (wait - 1) if wait else 0
            if awaited > 0:
                # OPERANDS says that a MULTIPLY has started, not that its results are in memory
                last = points[event.unit][awaited - 1].complete if event is SyncEvent.OPERANDS else \
                    signalled[event.unit][awaited - 1]  # fmt: skip
                np.maximum(complete, last, out=complete)
        point = _Point(core, index, command.name, unit, len(points[unit]), complete)
        points[unit].append(point)
        yield point
        done = point.complete.copy()
        if signalled[unit]:
            np.maximum(done, signalled[unit][-1], out=done)
        done[core, unit] = point.number + 1
        signalled[unit].append(done)


def _points(programs: Sequence[Sequence[Command]]) -> Iterator[_Point]:
    """All commands in an order in which they can be executed."""
    walks = [_walk(core, len(programs), program) for core, program in enumerate(programs)]
    while walks:
        barriers = list[_Point]()
        for walk in walks:
            for point in walk:
                yield point
                if point.name == "BARRIER":
                    barriers.append(point)
                    break
        if not barriers:
            return
        released = np.maximum.reduce([point.complete for point in barriers])
        for point in barriers:
            point.complete = released


def check_order(programs: Sequence[Sequence[Command]], accesses: Sequence[Sequence[Access]]) -> int:
    """Check that all accesses to written words have an order; returns the number of pairs.

    `programs` : of each core ; `accesses` : of the commands of each program, as `AccessRecorder` records them

    Raises `Race` for the first pair without an order.
    """
    written: set[tuple[int, int]] = set()
    for core, each in enumerate(accesses):
        for access in each:
            written.update(_words(core, access.writes))
    writers: dict[tuple[int, int], _Point] = {}
    readers: defaultdict[tuple[int, int], list[_Point]] = defaultdict(list)
    pairs = 0

    def check(earlier: _Point, later: _Point, at: tuple[int, int]) -> None:
        nonlocal pairs
        if earlier is not later:
            pairs += 1
            if not earlier.precedes(later):
                raise Race(f"word {at[1]} of memory {at[0]}: {later} does not wait for {earlier}")

    for point in _points(programs):
        access = accesses[point.core][point.index]
        for at in _words(point.core, access.reads):
            if at in written:
                if at in writers:
                    check(writers[at], point, at)
                readers[at].append(point)
        for at in _words(point.core, access.writes):
            for reader in readers.pop(at, []):
                check(reader, point, at)
            if at in writers:
                check(writers[at], point, at)
            writers[at] = point
    return pairs


def _words(core: int, accesses: Iterable[Words]) -> Iterator[tuple[int, int]]:
    """Memory and number of every word that a command of a core accesses."""
    for memory, first, count in accesses:
        start = core if memory == OWN else first
        yield from ((memory, word) for word in range(start, start + count))
