"""Cycle model of the KVMU: its commands one after the other, their accesses to the store, and their transfers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from golden.kvmu import Op, Piece, Tier, cut, join
from hw.core.retrieval.page_lists import LIST_ENTRY, QUEUE_DEPTH, list_words
from hw.dre.kvmu.records import BLOCK_BYTES
from hw.dre.transfer import BOUNDARY
from sw_model.cycles.line_cache import LineCacheModel
from sw_model.cycles.processes import Counter, Process, Queue, Wait
from sw_model.cycles.state import CoreState
from sw_model.cycles.store_commands import Act, Candidates, CopyJob, StoreCommand

CLOSE_CYCLES = {False: 2, True: 4}  # from the acknowledgement of the last transfer to the end of its tag; device, host


@dataclass
class Transfers:
    """Copies of one command: number of descriptors up to its last one; `done` when all copies are complete."""

    descriptors: int
    done: Counter


class KvmuModel:
    """Executes store commands from `queue`. `replied[op]` counts the last replies.

    Attributes
    ----------
    queue : commands ; cache : lines of the store
    lists_written : entries of the page lists that memory has acknowledged ; list_entries : all entries
    transfers : of the newest command that copies pages
    stored : number of STORE commands that transfers wait for
    """

    def __init__(self, core: CoreState):
        self.core, self.clock = core, core.clock
        config, word = core.config, core.word_bytes
        self.queue = Queue(core.clock, depth=2, latency=1)
        self.cache = LineCacheModel(config.cache_lines, word, core.readers["store"], core.writers["store"])
        self.replied = {op: Counter(core.clock) for op in Op}
        self.entries = Queue(core.clock, depth=QUEUE_DEPTH)
        self.list_words, self.entries_per_word = list_words(config.max_pages, 8 * word), 8 * word // LIST_ENTRY.size
        self.list_lengths = [0] * config.kv_heads
        self.list_entries = self.stored = 0
        self.lists_written = core.writers["pages"].stored
        self.pending: Piece | None = None  # extent in the joiner
        self.extents = Queue(core.clock, depth=1, latency=1)
        self.sent = Counter(core.clock)  # extents whose descriptors are accepted
        self.descriptors = Queue(core.clock, depth=2, latency=1)  # buffer before the copy engine
        self.issued = Counter(core.clock)  # descriptors that the copy engine has accepted
        self.extents_issued = self.descriptors_sent = 0
        self.newest: dict[bool, int] = {}  # number of the newest copy to each side
        self.transfers = Transfers(0, Counter(core.clock, 1))
        for process in (self._execute, self._write_lists, self._split, self._issue):
            core.clock.start(process())

    def _execute(self) -> Process:
        while True:
            command: StoreCommand = yield from self.queue.get()
            yield 2  # acceptance, check
            for act, value in command.actions:
                if act is Act.WAIT:
                    yield value
                elif act is Act.READ:
                    yield from self.cache.read(value)
                elif act is Act.WRITE:
                    yield from self.cache.write(value)
                elif act is Act.LOG:
                    yield from self.cache.log(value)
                else:
                    yield from self._act(act, value)
            yield 2  # last reply
            self.replied[command.op].add()

    def _act(self, act: Act, value: Any) -> Wait:
        """The less frequent actions."""
        if act is Act.FLUSH:
            yield from self.cache.flush()
        elif act is Act.INVALIDATE:
            yield from self.cache.invalidate()
        elif act is Act.CANDIDATES:
            yield from self._send_candidates(value)
        elif act is Act.COPY:
            yield from self._copy(value)
        elif act is Act.FINISH:
            yield from self._finish()
        elif act is Act.DRAIN:
            yield from self.transfers.done.reach(1)
            yield 1
        elif act is Act.COMMITTED:
            self.cache.entries = 0
            self.core.commits.append(replace(self.cache.counts))

    def _send_candidates(self, candidates: Candidates) -> Wait:
        """The candidate loader: one read past the cache; expired records leave, then BEGIN and the candidates."""
        if not candidates.records:
            yield 3
            return
        reader, word = self.core.readers["store"], self.core.word_bytes
        per_word, words_per_record = max(1, word // BLOCK_BYTES), max(1, BLOCK_BYTES // word)
        skipped = candidates.block % per_word
        records = skipped + candidates.records
        words = -(-records // per_word) * words_per_record
        yield from reader.request(candidates.block // per_word * per_word * BLOCK_BYTES // word, words)
        yield 2
        for number in range(records):
            if words_per_record > 1:
                for _ in range(words_per_record):
                    yield from reader.word()
                    yield 1
            elif number % per_word == 0:
                yield from reader.words.head()
            if number == skipped + candidates.expired:
                yield 2  # end of the expired records, BEGIN
            if words_per_record == 1:
                if number % per_word == per_word - 1 or number == records - 1:
                    reader.read()
                yield 1
        yield 1 + 2 * (candidates.expired == candidates.records)

    def _copy(self, job: CopyJob) -> Wait:
        """The copy generator: replies and pieces of a page."""
        yield 1 + job.once
        if job.once and not job.pieces:
            return
        for n in range(max(len(job.entries), len(job.pieces))):
            if n < len(job.pieces):
                yield from self._push(job.pieces[n])
            yield 1
            if n < len(job.entries):
                yield from self.entries.put(job.entries[n])
                self.list_entries += 1

    def _push(self, piece: Piece) -> Wait:
        """The joiner: merge the piece with the pending extent, or send this extent to the splitter."""
        joined = join([self.pending, piece]) if self.pending else [piece]
        if len(joined) > 1:
            yield from self._send(joined[0])
        self.pending = joined[-1]

    def _send(self, extent: Piece) -> Wait:
        self.extents_issued += 1
        yield from self.extents.put(extent)

    def _finish(self) -> Wait:
        """End of the transfers of a command: wait until all descriptors are accepted."""
        yield 1
        if not self.pending:
            return
        extent, self.pending = self.pending, None
        yield from self._send(extent)
        yield 1
        yield from self.sent.reach(self.extents_issued)
        yield 1
        self.transfers = Transfers(self.descriptors_sent, Counter(self.clock))
        self.clock.start(self._complete(self.transfers))

    def _split(self) -> Process:
        """The splitter: descriptors of the extents, after the keys and values of the step are stored."""
        while True:
            extent: Piece = yield from self.extents.head()
            yield from self.core.slots_written.reach(self.stored)
            sides = extent.source_tier != Tier.DEVICE, extent.target_tier != Tier.DEVICE
            for part in cut(extent, BOUNDARY):
                yield from self.descriptors.put((part, sides))
                self.descriptors_sent += 1
                yield 1
            self.extents.pop()
            self.sent.add()

    def _issue(self) -> Process:
        """Descriptors to the copy engine."""
        word = self.core.word_bytes
        while True:
            parts, sides = yield from self.descriptors.head()
            source, target, size = (part // word for part in parts)
            self.newest[sides[1]] = yield from self.core.copier.copy(source, target, size, *sides)
            self.descriptors.pop()
            self.issued.add()
            yield 1

    def _complete(self, transfers: Transfers) -> Process:
        yield from self.issued.reach(transfers.descriptors)
        newest, self.newest, end = self.newest, {}, 0
        for host, number in newest.items():
            yield from self.core.copier.wait(number, host)
            end = max(end, self.clock.now + CLOSE_CYCLES[host])
        yield from self.clock.until(end)
        transfers.done.add()

    def clear_lists(self) -> None:
        """Empty the page lists at the start of a step."""
        self.list_lengths = [0] * len(self.list_lengths)

    def _write_lists(self) -> Process:
        """Entries of the page lists, one word with strobes each. The lists are assumed at the start of the region."""
        writer = self.core.writers["pages"]
        while True:
            head = yield from self.entries.head()
            position = self.list_lengths[head]
            self.list_lengths[head] += 1
            yield from writer.request(head * self.list_words + position // self.entries_per_word, 1, True)
            yield from writer.put()
            self.entries.pop()
            yield 1
