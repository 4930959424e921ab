"""Cycle model of the retrieval unit: command state machine, HCU, WTU and KVMU."""

from __future__ import annotations

from collections.abc import Sequence

from golden.kvmu import Op
from hw.core.isa import ExecUnit
from sw_model.cycles.kvmu import KvmuModel
from sw_model.cycles.processes import Counter, Process, Queue, Wait
from sw_model.cycles.state import IssuedCommand
from sw_model.cycles.step_data import StepData
from sw_model.cycles.store_commands import FETCH, SYNC, StoreCommand
from sw_model.cycles.unit import UnitModel

REPORT_CYCLES = 1  # from the end of a row in the selector to the read of its first beat by the reporter
BUFFERED_BEATS = 2  # beats that the KVPU buffers before the WTU
BITMAP_BEATS = 4  # beats of a selection that wait for the list of clusters
LIST_CYCLES = 3  # from the end of a row in the selector of the WTU to the first beat of the list of clusters


class RetrievalUnitModel(UnitModel):
    """Commands OPEN, CLUSTER, SELECT, FETCH and OFFLOAD.

    OPEN selects the data of the step. Hash codes drive the HCU, whose assignments become commands of the KVMU, without
    commands of the program.
    """

    def begin(self) -> None:
        clock = self.clock
        self.kvmu = KvmuModel(self.core)
        self.step = StepData()
        self.hash_codes = Queue(clock, depth=self.core.config.max_step_tokens)
        self.results = Queue(clock, depth=1, latency=1)  # output register of the HCU
        self.slots = Counter(clock)  # tokens with a slot, in the cycle in which it is recorded
        self.slots_needed = 0
        self.syncs = 0  # steps with score rows
        self.lists = Counter(clock)  # lists of selected clusters that have left the WTU
        self.reported = Counter(clock)  # lists of which the reporter of the WTU has read all beats
        self.listing = False  # a list of selected clusters leaves the WTU
        self.sent = Counter(clock)  # lists of which all beats have left the memory, if the row is long
        self.report_end = 0  # cycle in which it has read the newest row
        self.lists_needed = 0
        self.selector = 0  # cycle in which the selector of the WTU becomes free
        self.row_ends = [0, 0]  # of the two previous rows: depth of the queue of the WTU
        self.beats = 0  # beats of short rows
        self.freed: list[int] = []  # cycle in which the reporter of the WTU reads each of these beats
        self.accepted = (-1, -1)  # cycles in which the WTU accepts the two newest beats
        for process in (self._commands, self._receive_codes, self._search, self._assign):
            clock.start(process())

    def _commands(self) -> Process:
        core, kvmu = self.core, self.kvmu
        while True:
            command = yield from core.next(ExecUnit.RETRIEVAL)
            if command.name == "OPEN":
                self._begin_step(command.data)
                yield 2
                yield from self._execute(command.data.opening or StoreCommand(Op.OPEN))
            elif command.name == "CLUSTER":
                self.slots_needed += len(command.tokens)
                yield from self.slots.reach(self.slots_needed)
                yield from kvmu.cache.written()
            elif command.name == "SELECT":
                yield 1
                yield from self._select(command)
            elif command.name == "FETCH":
                yield 1
                yield from self.lists.reach(self.lists_needed)
                transfers = kvmu.transfers
                yield from self._execute(FETCH)
                yield 1
                yield from kvmu.lists_written.reach(kvmu.list_entries)
                if kvmu.transfers is not transfers:
                    yield from kvmu.transfers.done.reach(1)
            else:
                if core.slots_written.value < kvmu.stored:
                    yield from core.slots_written.reach(kvmu.stored)
                    yield 1
                yield 1
                yield from self._execute(command.data.committing or StoreCommand(Op.STEP))
            core.accept(ExecUnit.RETRIEVAL)
            core.complete(ExecUnit.RETRIEVAL)
            yield 1

    def _begin_step(self, step: StepData) -> None:
        self.step = step
        self.kvmu.stored += -(-len(step.appends) // self.core.config.max_step_tokens)
        self.kvmu.cache.log_word = step.log // self.core.word_bytes

    def _execute(self, command: StoreCommand) -> Wait:
        """Send a command to the KVMU and wait for its last reply."""
        count = self.kvmu.replied[command.op].value + 1
        yield from self.kvmu.queue.put(command)
        yield from self.kvmu.replied[command.op].reach(count)

    # clustering

    def _receive_codes(self) -> Process:
        """Codes to the HCU; those of the next piece wait until the keys and values of this one are stored."""
        core, pieces = self.core, 0
        while True:
            last = yield from core.codes.get()
            yield from self.hash_codes.put(last)
            if last:
                pieces += 1
                yield 1
                if core.slots_written.value < pieces:
                    yield from core.slots_written.reach(pieces)
                    yield 1

    def _search(self) -> Process:
        """The HCU: the search of a token starts when the previous one ends."""
        step, number = self.step, 0
        while True:
            yield from self.hash_codes.get()
            if step is not self.step:
                step, number = self.step, 0
            yield self.core.hcu.token_cycles(*step.searched[number])
            yield from self.results.put(number)
            number += 1

    def _assign(self) -> Process:
        """Assignments of the HCU become commands of the KVMU; SYNC follows the last one if score rows follow."""
        kvmu, appended = self.kvmu, 0
        while True:
            number = yield from self.results.head()
            step = self.step
            if not number:
                kvmu.clear_lists()
            yield from kvmu.queue.put(step.appends[number])
            self.results.items.popleft()
            self.results.get_bell.ring()
            appended += 1
            self.clock.start(self._record_slot(appended))
            if number + 1 == len(step.appends) and step.rows:
                yield 1
                self.syncs += 1
                yield from kvmu.queue.put(SYNC)

    def _record_slot(self, count: int) -> Process:
        yield from self.kvmu.replied[Op.APPEND].reach(count)
        yield 1
        self.slots.add()

    # selection

    def _select(self, command: IssuedCommand) -> Wait:
        """Rows from memory to the WTU. Each row loads while the previous one is selected."""
        core, clock, f, data = self.core, self.clock, command.fields, command.data
        clusters, wtu = core.length(command), core.wtu
        if not (clusters and f["rows"]):
            return
        while self.listing:  # clusters have priority over commands
            yield self.lists.bell
        yield 1
        replied = self.kvmu.replied[Op.SYNC]
        if replied.value < self.syncs:
            yield from replied.reach(self.syncs)
            yield 1
        head, beats = f.get("head", 0), -(-clusters // core.config.wtu_lanes)
        rows = data.rows[head] if data.rows else [(0, 0)] * f["rows"]
        is_long = clusters > core.config.wtu_pairs
        packets = [wtu.packets(passes, levels) if is_long else 1 for passes, levels in rows]
        words = -(-clusters // core.width)
        addresses = [f["source"] + row * f["stride"] for row, count in enumerate(packets) for _ in range(count)]
        begun = Counter(clock, 1 if is_long else len(addresses))  # packets that may be requested
        clock.start(self._request_rows(addresses, data.counts // core.word_bytes, words, begun))
        if is_long:  # no packet of a row passes the last packet of a long row before
            yield from self.reported.reach(self.lists_needed)
        for (passes, levels), count in zip(rows, packets, strict=True):
            gate, cycles = self.row_ends[-2], wtu.cycles(clusters, passes, levels)
            for number in range(count):
                yield from self._send_packet(clusters, gate, is_long, begun)
                # a pass of a long row ends some cycles after its last beat
                gate = self.accepted[1] + 1 + (cycles // (count - 2) - beats if is_long and number else 0)
            # the selector sends a row to the reporter when the reporter has finished the row before
            yield from self.reported.reach(self.lists_needed)
            if is_long:
                self.selector = max(self.accepted[1] + 1, clock.now)
            else:  # the row waits one cycle in the input register of the WTU
                self.selector = max(self.accepted[1] + 2, self.selector) + cycles
                self.selector = max(self.selector, self.report_end, clock.now)
                self.report_end = self.selector + REPORT_CYCLES + beats
                self.freed += range(self.selector + REPORT_CYCLES, self.selector + REPORT_CYCLES + beats)
            self.row_ends.append(self.selector)
        self.lists_needed += 1
        clock.start(self._list_clusters(data.selects.get(head, ()), beats, self.lists_needed))
        if is_long:  # the last packet goes to the reporter
            yield from self.sent.reach(self.lists_needed)

    def _list_clusters(self, selects: Sequence[StoreCommand], beats: int, number: int) -> Process:
        """The selected clusters of a KV head become commands of the KVMU, in the order of their beats."""
        lanes = self.core.config.wtu_lanes
        begin = self.selector + LIST_CYCLES
        yield from self.lists.reach(number - 1)
        events = [(beats - BITMAP_BEATS - BUFFERED_BEATS, self.sent), (beats - BITMAP_BEATS, self.reported)]
        for select in selects:
            beat = select.cluster // lanes
            while events and beat >= events[0][0]:
                events.pop(0)[1].add()
            yield from self.clock.until(begin + beat)
            self.listing = True
            yield from self.kvmu.queue.put(select)
            yield 1
        for _, event in events:
            event.add()
        yield from self.clock.until(begin + beats)
        self.listing = False
        self.lists.add()

    def _request_rows(self, addresses: Sequence[int], counts: int, words: int, begun: Counter) -> Process:
        """Request the words of each packet; a packet of a long row when the one before has begun."""
        readers = self.core.readers
        for number, address in enumerate(addresses, start=1):
            yield from begun.reach(number)
            yield from readers["scores"].request(address, words)
            yield from readers["counts"].request(counts, words)
            yield 1

    def _send_packet(self, clusters: int, gate: int, is_long: bool, begun: Counter) -> Wait:
        """The beats of one packet of a row: all clusters of a pair of words before the next pair.

        The WTU accepts the first beat in cycle `gate` at the earliest, and a beat of a short row when the pair memory
        has space. The KVPU buffers two beats.
        """
        core, clock, remaining, first = self.core, self.clock, clusters, True
        pair_beats = core.config.wtu_pairs // core.config.wtu_lanes
        while remaining > 0:
            for name in ("scores", "counts"):
                yield from core.readers[name].word()
            for _ in range(-(-min(core.width, remaining) // core.config.wtu_lanes)):
                yield from clock.until(self.accepted[0] + 1)
                earliest = max(clock.now + 1, self.accepted[1] + 1, gate)
                if not is_long:
                    if self.beats >= pair_beats:
                        earliest = max(earliest, self.freed[self.beats - pair_beats] + 1)
                    self.beats += 1
                elif first:
                    clock.at(earliest + 2, begun.add)
                self.accepted, first = (self.accepted[1], earliest), False
                yield 1
            remaining -= core.width
