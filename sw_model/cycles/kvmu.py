"""KVMU: its commands one after the other, their accesses to the store, and their transfers."""

from __future__ import annotations

from sw_model.cycles.columns import Action, Descriptor, Extent, Job, StoreCommand
from sw_model.cycles.copy_unit import copy, wait_for_copy
from sw_model.cycles.layout import Count, Engine, Machine, Queue, Side
from sw_model.cycles.line_cache import LOG, READ, WRITE, access, flush, invalidate
from sw_model.cycles.ports import next_word, read_word, remove_word, request, write_word
from sw_model.cycles.scheduler import Wait, add, head, item, pop, put, reach, start, take, until
from sw_model.cycles.store_commands import Act

CLOSE_DEVICE, CLOSE_HOST = 2, 4  # cycles from the acknowledgement of the last transfer to the end of its tag
COUNTS = 4  # counts of the line cache


def execute_store(k: Machine, c: int) -> Wait:
    """Process: commands of the KVMU."""
    while True:
        s = yield from take(k, c, Queue.STORE)
        yield 2  # acceptance, check
        for n in range(k.store_command[s, StoreCommand.ACTS]):
            a = k.store_command[s, StoreCommand.ACT] + n
            act = k.act[a, Action.ACT]
            if act == Act.WAIT:
                yield k.act[a, Action.VALUE]
            elif act <= Act.LOG:
                kind = READ if act == Act.READ else WRITE if act == Act.WRITE else LOG
                yield from access(k, c, k.act[a, Action.VALUE], kind)
            elif act == Act.FLUSH:
                yield from flush(k, c)
            elif act == Act.INVALIDATE:
                yield from invalidate(k, c)
            elif act == Act.CANDIDATES:
                yield from send_candidates(k, c, a)
            elif act == Act.COPY:
                yield from copy_page(k, c, k.act[a, Action.VALUE])
            elif act == Act.FINISH:
                yield from finish_transfers(k, c, k.act[a, Action.VALUE])
            elif act == Act.DRAIN:
                yield from reach(k, c, Count.TRANSFERS, k.transfers[c])
                yield 1
            elif act == Act.COMMITTED:
                commit(k, c)
        yield 2  # last reply
        add(k, c, Count.REPLIED + k.store_command[s, StoreCommand.OP], 1)


def commit(k: Machine, c: int) -> None:
    """The undo log is empty."""
    k.log_entries[c] = 0
    for n in range(COUNTS):
        k.commit[k.commits, n] = k.counts[c, n]
    k.commits += 1


def send_candidates(k: Machine, c: int, a: int) -> Wait:
    """The candidate loader: one read past the cache; expired records leave, then BEGIN and the candidates."""
    candidates = k.act[a, Action.RECORDS]
    expired = k.act[a, Action.EXPIRED]
    if candidates == 0:
        yield 3
        return
    skipped = k.act[a, Action.VALUE] % k.word_records
    records = skipped + candidates
    words = (records + k.word_records - 1) // k.word_records * k.record_words
    address = k.act[a, Action.VALUE] // k.word_records * k.record_words
    yield from request(k, c, Engine.READ_STORE, address, words, 0)
    yield 2
    for number in range(records):
        if k.record_words > 1:
            for _ in range(k.record_words):
                yield from read_word(k, c, Engine.READ_STORE)
                yield 1
        elif number % k.word_records == 0:
            yield from next_word(k, c, Engine.READ_STORE)
        if number == skipped + expired:
            yield 2  # end of the expired records, BEGIN
        if k.record_words == 1:
            if number % k.word_records == k.word_records - 1 or number == records - 1:
                remove_word(k, c, Engine.READ_STORE, k.now)
            yield 1
    yield 3 if expired == candidates else 1


def copy_page(k: Machine, c: int, j: int) -> Wait:
    """The copy generator: replies and pieces of a page. The joiner merges pieces or sends an extent."""
    once, pieces, entries = k.job[j, Job.ONCE], k.job[j, Job.PIECES], k.job[j, Job.ENTRIES]
    yield 1 + once
    if once and pieces == 0:
        return
    for n in range(max(entries, pieces)):
        if n < pieces:
            extent = k.piece[k.job[j, Job.PIECE] + n, 0]
            if extent >= 0:
                yield from send_extent(k, c, extent)
        yield 1
        if n < entries:
            yield from put(k, c, Queue.ENTRIES, k.entry[k.job[j, Job.ENTRY] + n, 0], 0, 0, 0)
            k.listed[c] += 1


def send_extent(k: Machine, c: int, extent: int) -> Wait:
    """Send an extent to the splitter."""
    k.extents_issued[c] += 1
    yield from put(k, c, Queue.EXTENTS, extent, 0, 0, 0)


def finish_transfers(k: Machine, c: int, extent: int) -> Wait:
    """End of the transfers of a command: the last extent; wait until all descriptors are accepted."""
    yield 1
    if extent < 0:
        return
    yield from send_extent(k, c, extent)
    yield 1
    yield from reach(k, c, Count.EXTENTS_SENT, k.extents_issued[c])
    yield 1
    k.transfers[c] += 1
    start(k, c, complete_transfers, 0, k.descriptors_sent[c])


def split_extents(k: Machine, c: int) -> Wait:
    """Process: descriptors of the extents, after the keys and values of the step are stored."""
    while True:
        yield from head(k, c, Queue.EXTENTS)
        e = item(k, c, Queue.EXTENTS, 0)
        yield from reach(k, c, Count.SLOTS_WRITTEN, k.pieces_stored[c])
        for n in range(k.extent[e, Extent.DESCRIPTORS]):
            yield from put(k, c, Queue.DESCRIPTORS, k.extent[e, Extent.DESCRIPTOR] + n, e, 0, 0)
            k.descriptors_sent[c] += 1
            yield 1
        pop(k, c, Queue.EXTENTS)
        add(k, c, Count.EXTENTS_SENT, 1)


def issue_descriptors(k: Machine, c: int) -> Wait:
    """Process: descriptors to the copy engine."""
    while True:
        yield from head(k, c, Queue.DESCRIPTORS)
        n = item(k, c, Queue.DESCRIPTORS, 0)
        from_host = k.extent[item(k, c, Queue.DESCRIPTORS, 1), Extent.FROM_HOST]
        to_host = k.extent[item(k, c, Queue.DESCRIPTORS, 1), Extent.TO_HOST]
        k.newest[c, to_host] = yield from copy(
            k, c, k.descriptor[n, Descriptor.SOURCE], k.descriptor[n, Descriptor.TARGET],
            k.descriptor[n, Descriptor.WORDS], from_host, to_host,
        )  # fmt: skip
        pop(k, c, Queue.DESCRIPTORS)
        add(k, c, Count.DESCRIPTORS_ISSUED, 1)
        yield 1


def complete_transfers(k: Machine, c: int, descriptors: int) -> Wait:
    """Process: the end of the transfers of a command."""
    yield from reach(k, c, Count.DESCRIPTORS_ISSUED, descriptors)
    device = k.newest[c, Side.DEVICE]
    host = k.newest[c, Side.HOST]
    k.newest[c, Side.DEVICE] = 0
    k.newest[c, Side.HOST] = 0
    end = 0
    if device:
        yield from wait_for_copy(k, c, device, Side.DEVICE)
        end = k.now + CLOSE_DEVICE
    if host:
        yield from wait_for_copy(k, c, host, Side.HOST)
        end = max(end, k.now + CLOSE_HOST)
    yield from until(k, end)
    add(k, c, Count.TRANSFERS, 1)


def write_lists(k: Machine, c: int) -> Wait:
    """Process: entries of the page lists, one word with strobes each, from the start of the region on.

    The second lists are taken to have the addresses of the first ones.
    """
    while True:
        yield from head(k, c, Queue.ENTRIES)
        kv_head = item(k, c, Queue.ENTRIES, 0)
        position = k.list_length[c, kv_head]
        k.list_length[c, kv_head] += 1
        address = kv_head * k.list_words + position // k.list_entries
        yield from request(k, c, Engine.WRITE_PAGES, address, 1, 1)
        yield from write_word(k, c, Engine.WRITE_PAGES)
        pop(k, c, Queue.ENTRIES)
        yield 1
