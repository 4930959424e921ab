"""Cycle model of the retrieval unit (KV prediction unit)."""

from __future__ import annotations

from collections.abc import Sequence

from golden.kvmu import Descriptor, Tier
from hw.core.isa import Command, ExecUnit
from hw.dre.kvmu.records import BLOCK_BYTES, HEADER_BLOCKS
from hw.dre.kvmu.timing import KvmuTiming
from sw_model.cycles.processes import Counter, Process, Wait
from sw_model.cycles.unit import UnitModel

TOKEN_LINES = 5  # lines of the store that a token changes: cluster, count, page, token list, page frame
COMMIT_PHASES = 3  # lines, headers and the step number are acknowledged one after the other


class RetrievalUnitModel(UnitModel):
    """Commands OPEN, CLUSTER, SELECT, FETCH and OFFLOAD.

    The model of the line cache is simple: a token that opens a page misses all lines that it changes, other tokens hit.
    """

    def begin(self) -> None:
        word = self.core.word_bytes
        self.line_words = max(BLOCK_BYTES, word) // word
        self.kvmu = KvmuTiming(self.line_words)
        self.context = -1  # open context
        self.clustered, self.selecting, self.fetched, self.offloaded = (Counter(self.clock) for _ in range(4))
        self.fetches, self.offloads = Counter(self.clock), Counter(self.clock)  # FETCH and OFFLOAD commands
        self.selector = self.marking = 0  # cycles in which the WTU and the KVMU become free
        self.row_ends = [0, 0]  # of the two previous rows: depth of the queue of the WTU
        self.clock.start(self._commands())
        self.clock.start(self._tokens())

    def _commands(self) -> Process:
        core, pieces, steps, fetches = self.core, 0, 1, 0  # `steps`: number of the step in progress
        while True:
            command = yield from core.next(ExecUnit.RETRIEVAL)
            if command.name == "OPEN":
                yield from self._open(command.fields.get("context", 0))
            elif command.name == "CLUSTER":
                pieces += 1
                yield from self.clustered.reach(pieces)
            elif command.name == "SELECT":
                yield 1
                yield from self.selecting.reach(steps)
                yield from self._select(command)
            elif command.name == "OFFLOAD":
                self.offloads.add()
                yield from self.offloaded.reach(steps)
                steps += 1
            else:
                fetches += 1
                yield from self.selecting.reach(steps)
                self.fetches.add()
                yield from self.fetched.reach(fetches)
            core.accept(ExecUnit.RETRIEVAL)
            core.complete(ExecUnit.RETRIEVAL)
            yield 1

    def _tokens(self) -> Process:
        """A step: its tokens one after the other, piece by piece; transfers."""
        core, clock, hcu, fetches, steps = self.core, self.clock, self.core.hcu, 0, 0
        while True:
            number, clusters = 0, 0
            while not number or number < len(core.data.opened):
                last = False
                slot_ready = 0  # cycle in which the newest token has its slot
                while not last:
                    last = yield from core.codes.get()
                    if not number:
                        clusters = core.data.clusters
                    yield 2 + hcu.token_cycles(0, clusters) + 1
                    yield from clock.until(slot_ready)
                    opened = core.data.opened[number]
                    if opened:
                        yield from self._lines(TOKEN_LINES)
                    slot_ready = clock.now + self.kvmu.append(opens=opened, opened=opened, first=opened)
                    clusters += core.data.opened[number]
                    number += 1
                yield from clock.until(slot_ready + 1)
                self.clustered.add()
            if core.data.rows:
                yield from self._lines(1)  # changed lines are written
                self.selecting.add()
                fetches += 1
                yield from self.fetches.reach(fetches)
                yield from clock.until(self.marking)
                yield self.kvmu.fetch()
                yield from self._transfer(core.data.fetch)
                self.fetched.add()
            else:
                self.selecting.add()
            steps += 1
            yield from self.offloads.reach(steps)
            yield from core.slots_written.reach(core.pieces)
            yield 4
            yield from self._transfer(core.data.offload)  # transfers of one kind wait for those of the other kind
            yield from self._lines(COMMIT_PHASES)
            self.offloaded.add()

    def _lines(self, count: int) -> Wait:
        """Read lines of the store, one after the other."""
        reader = self.core.readers["store"]
        for _ in range(count):
            yield from reader.request(0, self.line_words)
            for _ in range(self.line_words):
                yield from reader.word()
            yield 1

    def _open(self, context: int) -> Wait:
        """Read the headers and the cluster records, unless the context is open."""
        yield self.kvmu.refused()
        if context == self.context:
            return
        self.context = context
        yield from self._lines(2 * HEADER_BLOCKS * BLOCK_BYTES // (self.line_words * self.core.word_bytes))
        words = self.core.data.clusters * BLOCK_BYTES // self.core.word_bytes
        yield from self.core.readers["store"].request(0, words)
        for _ in range(words):
            yield from self.core.readers["store"].word()

    def _select(self, command: Command) -> Wait:
        """Rows from memory to the WTU. Each row loads while the previous one is selected.

        Pages of a head are marked while the next head is selected.
        """
        core, clock, f = self.core, self.clock, command.fields
        clusters, wtu = core.length(command), core.wtu
        head, beats = f.get("head", 0), -(-clusters // core.config.wtu_lanes)
        rows = core.data.rows[head] if core.data.rows else [(0, 0)] * f["rows"]
        is_long = clusters > core.config.wtu_pairs
        packets = [wtu.packets(passes, levels) if is_long else 1 for passes, levels in rows]
        words = -(-clusters // core.width)
        addresses = [f["source"] + row * f["stride"] for row, count in enumerate(packets) for _ in range(count)]
        clock.start(self._request_rows(addresses, words))
        for (passes, levels), count in zip(rows, packets, strict=True):
            yield from clock.until(self.row_ends[-2])
            for _ in range(count):
                yield from self._send_packet(clusters)
            # the row waits one cycle in the input register of the WTU
            if is_long:  # the selector processes the beats of the passes while they arrive
                beat_cycles = (count - 2) * beats
                yield max(0, wtu.cycles(clusters, passes, levels) - beat_cycles)
                self.selector = clock.now + 2
            else:
                self.selector = max(clock.now + 2, self.selector) + wtu.cycles(clusters, passes, levels)
            self.row_ends.append(self.selector)
        self.marking = max(self.marking, self.selector + beats + 3)
        self.marking += sum(self.kvmu.select(pages, 1) for pages in core.data.selected[head]) if core.data.rows else 0

    def _request_rows(self, addresses: Sequence[int], words: int) -> Process:
        readers = [self.core.readers[name] for name in ("scores", "counts")]
        for address in addresses:
            for reader in readers:
                yield from reader.request(address, words)
            yield 1

    def _send_packet(self, clusters: int) -> Wait:
        """The beats of one packet of a row: all clusters of a pair of words before the next pair."""
        core, remaining = self.core, clusters
        while remaining > 0:
            for name in ("scores", "counts"):
                yield from core.readers[name].word()
            yield -(-min(core.width, remaining) // core.config.wtu_lanes)
            remaining -= core.width

    def _transfer(self, descriptors: Sequence[Descriptor]) -> Wait:
        """Issue descriptors after the tokens of the step are stored; wait for the last acknowledgement."""
        core, word = self.core, self.core.word_bytes
        if not descriptors:
            return
        yield from core.slots_written.reach(core.pieces)
        yield 1  # one register stage
        ends: dict[bool, int] = {}
        for descriptor in descriptors:
            sides = descriptor.source_tier != Tier.DEVICE, descriptor.target_tier != Tier.DEVICE
            ends[sides[1]] = yield from core.copier.copy(
                descriptor.source // word, descriptor.target // word, descriptor.bytes // word, *sides
            )
            yield 1
        for host, number in ends.items():
            yield from core.copier.wait(number, host)
        yield 4
