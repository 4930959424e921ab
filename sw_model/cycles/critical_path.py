"""Critical path of programs on the cycle model: which commands the time of a step, or of a part of it, consists of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hw.core.isa import ExecUnit, SyncEvent
from sw_model.cycles.columns import Command
from sw_model.cycles.layout import Kind

DEVICE, HOST = "device memory", "host link"
RELEASE = 4  # cycles from the end of a command to the start of one that has waited for it
ON_CHIP = ("MULTIPLY", "BARRIER")  # commands that do not wait for a memory


@dataclass(frozen=True)
class Segment:
    """Part of a critical path: a command on a core from the end of the command before it to its own end, in cycles."""

    core: int
    command: str
    unit: str
    start: int
    end: int


def critical_path(commands: Sequence[np.ndarray]) -> list[Segment]:
    """The chain of commands that ends last, in the order of time; segments follow each other without a gap.

    `commands` : for each core, the rows of the table of commands (`sw_model.cycles.columns.Command`) after a run

    The predecessor of a command is the command whose end it waits for. If it has not waited, its unit was busy with the
    command before, or its operands were in use by a MULTIPLY. That of a BARRIER is one of the core that arrives last.
    """
    cores = [_Core(rows) for rows in commands]
    core = max(range(len(cores)), key=lambda c: cores[c].done.max(initial=0))
    at = int(cores[core].done.argmax())
    path, end = list[Segment](), int(cores[core].done[at])
    while at >= 0:
        c = cores[core]
        command = c.name(at)
        if command == "BARRIER":
            number = c.number[at]
            core = max(range(len(cores)), key=lambda n: cores[n].start[cores[n].units[ExecUnit.SYNC][number]])
            c = cores[core]
            at = c.units[ExecUnit.SYNC][number]
        before = c.predecessor(at, end)
        start = 0
        if before >= 0:
            start = int(c.done[before] if c.done[before] < end else min(c.start[at], end))
        path.append(Segment(core, command, ExecUnit(c.unit[at]).name, start, end))
        at, end = before, start
    return path[::-1]


def memory_of(command: str, copies: bool) -> str:
    """Memory that a command waits for, or empty.

    `copies` : pages are copied from the host. Then SELECT waits until their copies have begun, FETCH until they end.
    """
    if command in ON_CHIP:
        return ""
    return HOST if copies and command in ("SELECT", "FETCH") else DEVICE


def shares(path: Sequence[Segment], start: int, end: int, *, copies: bool) -> list[tuple[str, str, str, float]]:
    """Command, unit and memory of a part of a path, with their share of its cycles, largest first."""
    cycles = Counter[tuple[str, str]]()
    for s in path:
        cycles[s.command, s.unit.lower()] += max(0, min(s.end, end) - max(s.start, start))
    return [
        (command, unit, memory_of(command, copies), count / (end - start))
        for (command, unit), count in cycles.most_common()
        if count
    ]


class _Core:
    """Commands of a core that were executed, and for each unit the numbers of its commands."""

    def __init__(self, rows: np.ndarray):
        self.rows = rows
        self.unit, self.kind = rows[:, Command.UNIT], rows[:, Command.KIND]
        self.start, self.done = rows[:, Command.START], rows[:, Command.DONE]
        self.units = {unit: np.flatnonzero(self.unit == unit).tolist() for unit in ExecUnit}
        self.number = {at: number for numbers in self.units.values() for number, at in enumerate(numbers)}

    def name(self, at: int) -> str:
        return Kind(self.kind[at]).name

    def predecessor(self, at: int, end: int) -> int:
        """Command that delays command `at`, which ends in cycle `end`; -1: none."""
        start, waits, readers = self.start[at], list[int](), list[int]()
        for event in SyncEvent:
            if count := int(self.rows[at, Command.WAITS + event]):
                if event == SyncEvent.OPERANDS:
                    readers.append(self.units[ExecUnit.MATRIX][count - 1])
                else:
                    waits.append(self.units[ExecUnit(int(event))][count - 1])
        number = self.number[at]
        previous = [self.units[ExecUnit(int(self.unit[at]))][number - 1]] if number else []
        awaited = [n for n in waits if start - RELEASE <= self.done[n] <= start + 1]
        busy = [n for n in previous if start <= self.done[n] < end]
        for candidates in (awaited, busy, readers, [n for n in (*waits, *previous) if self.done[n] < end]):
            if candidates:
                return max(candidates, key=lambda n: self.done[n])
        return -1
