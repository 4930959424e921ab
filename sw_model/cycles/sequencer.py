"""Program fetch and command sequencer, and the command queues of the units."""

from __future__ import annotations

from hw.core.isa import ExecUnit, SyncEvent
from sw_model.cycles.columns import Barrier, Command
from sw_model.cycles.layout import DEPTH, Count, Engine, Kind, Machine, Side
from sw_model.cycles.ports import read_word, request
from sw_model.cycles.scheduler import Wait, add, head, item, pop, put, reach

EVENTS = len(SyncEvent)
SIDES = len(Side)


def sequence(k: Machine, c: int, address: int, first: int, count: int) -> Wait:
    """Process: read a program and put its commands into the queues. `first` is its first command in the table."""
    yield 1  # ASK
    yield from request(
        k, c, Engine.READ_PROGRAM, address, (count + k.word_commands - 1) // k.word_commands * k.command_words, 0
    )
    for number in range(count):
        if number % k.word_commands == 0:
            for _ in range(k.command_words):
                yield 1
                yield from read_word(k, c, Engine.READ_PROGRAM)
        yield 1
        i = first + number
        unit = k.command[i, Command.UNIT]
        if k.command[i, Command.KIND] == Kind.END:
            yield from finish(k, c)
            break
        count_waits(k, c, i)
        yield from put(k, c, unit, i, 0, 0, 0)
        k.issued[c, unit] += 1


def finish(k: Machine, c: int) -> Wait:
    """END: wait for all commands."""
    yield 2  # DRAIN, FINISH
    for event in range(EVENTS):
        yield from reach(k, c, event, k.issued[c, unit_of(event)])
    k.end[c] = k.now + 1


def unit_of(event: int) -> int:
    """Unit that signals an event."""
    return ExecUnit.MATRIX if event == SyncEvent.OPERANDS else event


def count_waits(k: Machine, c: int, i: int) -> None:
    """Replace the wait fields of a command by the number of signals of each event that it waits for."""
    for event in range(EVENTS):
        wait = k.command[i, Command.WAITS + event]
        k.command[i, Command.WAITS + event] = k.issued[c, unit_of(event)] - (wait - 1) if wait else 0


def next_command(k: Machine, c: int, unit: int) -> Wait:
    """Wait for the next command of a unit and for the events that it names; the unit executes it from then on."""
    yield from head(k, c, unit)
    i = item(k, c, unit, 0)
    for event in range(EVENTS):
        if k.value[c, event] < k.command[i, Command.WAITS + event]:
            yield from reach(k, c, event, k.command[i, Command.WAITS + event])
            yield 1
    k.command[i, Command.START] = k.now
    k.started[c, unit, (k.start_head[c, unit] + k.start_count[c, unit]) & (DEPTH - 1)] = i
    k.start_count[c, unit] += 1
    return i


def meet(k: Machine, c: int) -> Wait:
    """Process: BARRIERs. All cores of the step are released when the last one has started its BARRIER."""
    while True:
        i = yield from next_command(k, c, ExecUnit.SYNC)
        add(k, c, Count.BARRIERS, 1)
        number = k.value[c, Count.BARRIERS]
        for other in range(k.command[i, Barrier.CORES]):
            yield from reach(k, other, Count.BARRIERS, number)
        yield 1
        if c == 0:
            record_traffic(k)
        accept(k, c, ExecUnit.SYNC)
        complete(k, c, ExecUnit.SYNC)
        yield 1


def record_traffic(k: Machine) -> None:
    """Record the words that both memories have moved up to a BARRIER of core 0."""
    for side in range(SIDES):
        for write in range(2):
            k.traffic[k.marks, 2 * side + write] = k.moved[side, write]
    k.marks += 1


def accept(k: Machine, c: int, unit: int) -> None:
    """Remove the command that `next_command` returned."""
    pop(k, c, unit)


def complete(k: Machine, c: int, unit: int) -> None:
    """Count the oldest started command of a unit as complete in this cycle."""
    i = k.started[c, unit, k.start_head[c, unit]]
    k.start_head[c, unit] = (k.start_head[c, unit] + 1) & (DEPTH - 1)
    k.start_count[c, unit] -= 1
    k.command[i, Command.DONE] = k.now + 1
    add(k, c, unit, 1)
