"""Retrieval unit: OPEN, KEEP, CLUSTER, SELECT, FETCH, RELEASE, MOVE and OFFLOAD, and the clustering of hash codes.

OPEN selects the data of the step. Hash codes drive the HCU, whose assignments become commands of the KVMU, without
commands of the program.
"""

from __future__ import annotations

from golden.kvmu import Op
from hw.core.isa import ExecUnit
from hw.dre.kvpu import MAX_GROUPS
from sw_model.cycles.columns import Command, Retrieval, Row, Select, Selected, Step, StoreCommand, Token
from sw_model.cycles.layout import READERS, Bell, Count, Engine, Kind, Machine, Queue
from sw_model.cycles.line_cache import written
from sw_model.cycles.ports import read_word, request
from sw_model.cycles.scheduler import (
    Wait,
    add,
    add_later,
    drop,
    head,
    item,
    put,
    reach,
    ring,
    start,
    take,
    until,
)  # fmt: skip
from sw_model.cycles.sequencer import accept, complete, next_command

REPORT_CYCLES = 1  # from the end of a row in the selector to the read of its first beat by the reporter
BUFFERED_BEATS = 2  # beats that the KVPU buffers before the WTU
GATE_BEATS = 4  # beats of a selection between the reporter and the list memory
LIST_CYCLES = 5  # from the end of a row in the selector of the WTU to the first beat of the list of clusters
FREED = 1 << 13  # beats of short rows whose cycles are kept
LISTED = Count.STORED + Engine.WRITE_PAGES - READERS


def execute_retrieval(k: Machine, c: int) -> Wait:
    """Process: commands of the retrieval unit."""
    while True:
        i = yield from next_command(k, c, ExecUnit.RETRIEVAL)
        kind = k.command[i, Command.KIND]
        if kind == Kind.OPEN:
            open_step(k, c, k.command[i, Command.STEP])
            yield 2
            yield from execute_command(k, c, k.command[i, Retrieval.STORE_COMMAND])
        elif kind == Kind.CLUSTER:
            k.slots_needed[c] += k.command[i, Command.TOKENS_END] - k.command[i, Command.TOKENS]
            yield from reach(k, c, Count.SLOTS, k.slots_needed[c])
            yield from written(k, c)
        elif kind == Kind.SELECT:
            yield 1
            yield from select(k, c, i)
        elif kind == Kind.KEEP:
            yield 1
            yield from select(k, c, i)
            yield from reach(k, c, Count.LISTS, k.lists[c])
            yield 1
        elif kind == Kind.FETCH:
            yield 1
            yield from reach(k, c, Count.LISTS, k.lists[c])
            transfers = k.transfers[c]
            yield from execute_command(k, c, k.command[i, Retrieval.STORE_COMMAND])
            yield 1
            yield from reach(k, c, LISTED, k.listed[c])
            if k.transfers[c] != transfers:
                yield from reach(k, c, Count.TRANSFERS, k.transfers[c])
        else:  # RELEASE, MOVE, OFFLOAD
            if k.value[c, Count.SLOTS_WRITTEN] < k.pieces_stored[c]:
                yield from reach(k, c, Count.SLOTS_WRITTEN, k.pieces_stored[c])
                yield 1
            yield 1
            yield from execute_command(k, c, k.command[i, Retrieval.STORE_COMMAND])
            if kind == Kind.MOVE:
                yield 1
                yield from reach(k, c, Count.TRANSFERS, k.transfers[c])
        accept(k, c, ExecUnit.RETRIEVAL)
        complete(k, c, ExecUnit.RETRIEVAL)
        yield 1


def open_step(k: Machine, c: int, step: int) -> None:
    """Begin a step."""
    k.step[c] = step
    k.steps[c] += 1
    clear_lists(k, c)
    k.log_word[c] = k.step_of[step, Step.LOG]


def execute_command(k: Machine, c: int, s: int) -> Wait:
    """Send a command to the KVMU and wait for its last reply."""
    replies = Count.REPLIED + k.store_command[s, StoreCommand.OP]
    count = k.value[c, replies] + 1
    yield from put(k, c, Queue.STORE, s, 0, 0, 0)
    yield from reach(k, c, replies, count)


# Clustering


def receive_codes(k: Machine, c: int) -> Wait:
    """Process: codes to the HCU; those of the next piece wait until keys and values of this one are stored."""
    pieces = 0
    while True:
        last = yield from take(k, c, Queue.CODES)
        yield from put(k, c, Queue.HASH_CODES, last, 0, 0, 0)
        if last:
            pieces += 1
            yield 1
            if k.value[c, Count.SLOTS_WRITTEN] < pieces:
                yield from reach(k, c, Count.SLOTS_WRITTEN, pieces)
                yield 1


def search(k: Machine, c: int) -> Wait:
    """Process: the HCU; the search of a token starts when the previous one ends."""
    steps = 0
    number = 0
    while True:
        yield from take(k, c, Queue.HASH_CODES)
        if steps != k.steps[c]:
            steps = k.steps[c]
            number = 0
        yield k.token[k.step_of[k.step[c], Step.TOKEN] + number, Token.SEARCH]
        yield from put(k, c, Queue.ASSIGNED, number, 0, 0, 0)
        number += 1


def assign(k: Machine, c: int) -> Wait:
    """Process: assignments become commands of the KVMU; SYNC follows the last one if score rows follow."""
    appended = 0
    while True:
        yield from head(k, c, Queue.ASSIGNED)
        number = item(k, c, Queue.ASSIGNED, 0)
        step = k.step[c]
        if number == 0:
            k.pieces_stored[c] += (k.step_of[step, Step.APPENDS] + k.max_step_tokens - 1) // k.max_step_tokens
        yield from put(k, c, Queue.STORE, k.token[k.step_of[step, Step.TOKEN] + number, Token.APPEND], 0, 0, 0)
        drop(k, c, Queue.ASSIGNED)
        ring(k, c, Bell.GET + Queue.ASSIGNED)
        appended += 1
        start(k, c, record_slot, 0, appended)
        if number + 1 == k.step_of[step, Step.APPENDS] and k.step_of[step, Step.HAS_ROWS]:
            yield 1
            k.syncs[c] += 1
            yield from put(k, c, Queue.STORE, k.step_of[step, Step.SYNC], 0, 0, 0)


def clear_lists(k: Machine, c: int) -> None:
    """Empty the page lists."""
    for n in range(k.kv_heads):
        k.list_length[c, n] = 0


def record_slot(k: Machine, c: int, count: int) -> Wait:
    """Process: a token has a slot."""
    yield from reach(k, c, Count.REPLIED + Op.APPEND, count)
    yield 1
    add(k, c, Count.SLOTS, 1)


# Selection


def select(k: Machine, c: int, i: int) -> Wait:
    """Rows from memory to the WTU. Each row loads while the previous one is selected."""
    clusters = k.command[i, Command.LENGTH]
    rows = k.command[i, Select.ROWS]
    if clusters == 0 or rows == 0:
        return
    yield from reach(k, c, Count.LISTS, k.lists[c] - MAX_GROUPS + 1)
    yield 1
    if k.value[c, Count.REPLIED + Op.SYNC] < k.syncs[c]:
        yield from reach(k, c, Count.REPLIED + Op.SYNC, k.syncs[c])
        yield 1
    beats = (clusters + k.wtu_lanes - 1) // k.wtu_lanes
    is_long = clusters > k.wtu_pairs
    add(k, c, Count.BEGUN, 1)  # the first packet
    start(k, c, request_rows, 0, i, is_long, k.value[c, Count.BEGUN])
    if is_long:  # no packet of a row passes the last packet of a long row before
        yield from reach(k, c, Count.REPORTED, k.lists[c])
    for number in range(rows):
        row = k.command[i, Select.ROW] + number
        gate = k.row_end[c, 0]
        cycles = k.row[row, Row.CYCLES]
        packets = k.row[row, Row.PACKETS] if is_long else 1
        for packet in range(packets):
            is_last = number + 1 == rows and packet + 1 == packets
            counted = k.command[i, Command.KIND] == Kind.SELECT
            yield from send_packet(k, c, clusters, gate, is_long, is_last, counted)
            # a pass of a long row ends some cycles after its last beat
            gate = k.accepted[c, 1] + 1
            if is_long and packet:
                gate += k.row[row, Row.PAUSE]
        # the selector sends a row to the reporter when the reporter has finished the row before
        yield from reach(k, c, Count.REPORTED, k.lists[c])
        if is_long:
            k.selector[c] = max(k.accepted[c, 1] + 1, k.now)
        else:  # the row waits one cycle in the input register of the WTU
            end = max(k.accepted[c, 1] + 2, k.selector[c]) + cycles
            k.selector[c] = max(end, k.report_end[c], k.now)
            k.report_end[c] = k.selector[c] + REPORT_CYCLES + beats
            free_beats(k, c, beats)
        k.row_end[c, 0] = k.row_end[c, 1]
        k.row_end[c, 1] = k.selector[c]
    k.lists[c] += 1
    k.selection_beats[c] += beats
    start(k, c, report_beats, 0, k.selection_beats[c])
    start(k, c, list_clusters, 0, i, beats, k.selection_beats[c], k.lists[c])
    if is_long:  # the last packet goes to the reporter
        yield from reach(k, c, Count.SENT, k.lists[c])


def free_beats(k: Machine, c: int, beats: int) -> None:
    """Cycles in which the reporter reads the beats of the newest short row."""
    for n in range(beats):
        k.freed[c, (k.beats[c] - beats + n) & (FREED - 1)] = k.selector[c] + REPORT_CYCLES + n


def report_beats(k: Machine, c: int, end: int) -> Wait:
    """Process: the reporter reads the last row of a selection, while there is space for its beats.

    `end` : beats of all selections up to this one
    """
    unlisted = GATE_BEATS + k.list_beats
    yield from reach(k, c, Count.BEATS_LISTED, end - unlisted - BUFFERED_BEATS)
    add(k, c, Count.SENT, 1)
    yield from reach(k, c, Count.BEATS_LISTED, end - unlisted)
    add(k, c, Count.REPORTED, 1)


def list_clusters(k: Machine, c: int, i: int, beats: int, end: int, number: int) -> Wait:
    """Process: the selected clusters of a KV head become commands of the KVMU, in the order of their beats.

    `end` : beats of all selections up to this one ; `number` : of these selections
    """
    begun = k.selector[c] + LIST_CYCLES
    yield from reach(k, c, Count.LISTS, number - 1)
    for n in range(k.command[i, Select.SELECTS]):
        s = k.command[i, Select.SELECT] + n
        beat = k.select[s, Selected.CLUSTER] // k.wtu_lanes
        add(k, c, Count.BEATS_LISTED, end - beats + beat - k.value[c, Count.BEATS_LISTED])
        yield from until(k, begun + beat)
        yield from put(k, c, Queue.STORE, k.select[s, Selected.STORE_COMMAND], 0, 0, 0)
        yield 1
    if k.command[i, Command.KIND] == Kind.SELECT:
        yield from until(k, begun + beats)
    else:
        yield from until(k, begun + k.command[i, Select.LIST])
    add(k, c, Count.BEATS_LISTED, end - k.value[c, Count.BEATS_LISTED])
    add(k, c, Count.LISTS, 1)


def request_rows(k: Machine, c: int, i: int, is_long: int, begun: int) -> Wait:
    """Process: request the words of each packet; a packet of a long row when the one before has begun.

    `begun`: packets begun when the first one can be requested.
    """
    words = (k.command[i, Command.LENGTH] + k.width - 1) // k.width
    number = 0
    for row in range(k.command[i, Select.ROWS]):
        address = k.command[i, Select.SOURCE] + row * k.command[i, Select.STRIDE]
        packets = k.row[k.command[i, Select.ROW] + row, Row.PACKETS] if is_long else 1
        for _ in range(packets):
            if is_long:
                yield from reach(k, c, Count.BEGUN, begun + number)
            number += 1
            yield from request(k, c, Engine.READ_SCORES, address, words, 0)
            if k.command[i, Command.KIND] == Kind.SELECT:
                counts = k.command[i, Select.COUNTS]
                if counts == 0:
                    counts = k.step_of[k.command[i, Command.STEP], Step.COUNTS]
                yield from request(k, c, Engine.READ_COUNTS, counts, words, 0)
            yield 1


def send_packet(k: Machine, c: int, clusters: int, gate: int, is_long: int, is_last: int, counted: int) -> Wait:
    """The beats of one packet of a row: all clusters of a pair of words before the next pair.

    The WTU accepts the first beat in cycle `gate` at the earliest, and a beat of a short row when the pair memory has
    space. The KVPU buffers two beats.
    """
    remaining = clusters
    first = 1
    pair_beats = k.wtu_pairs // k.wtu_lanes
    while remaining > 0:
        yield from read_word(k, c, Engine.READ_SCORES)
        if counted:
            yield from read_word(k, c, Engine.READ_COUNTS)
        for _ in range((min(k.width, remaining) + k.wtu_lanes - 1) // k.wtu_lanes):
            yield from until(k, k.accepted[c, 0] + 1)
            cycle = max(k.now + 1, k.accepted[c, 1] + 1, gate)
            if not is_long:
                if k.beats[c] >= pair_beats:
                    cycle = max(cycle, k.freed[c, (k.beats[c] - pair_beats) & (FREED - 1)] + 1)
                k.beats[c] += 1
            elif first and not is_last:
                start(k, c, add_later, cycle + 2 - k.now, Count.BEGUN)
            k.accepted[c, 0] = k.accepted[c, 1]
            k.accepted[c, 1] = cycle
            first = 0
            yield 1
        remaining -= k.width
