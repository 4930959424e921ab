"""Cycle model of the retrieval unit (KV prediction unit)."""

from __future__ import annotations

from collections.abc import Sequence

from golden.kvmu import Descriptor, Tier
from hw.core.isa import ExecUnit
from hw.dre.kvmu.kvmu import GROUP
from hw.dre.kvmu.timing import KvmuTiming
from sw_model.cycles.processes import Counter, Process, Wait
from sw_model.cycles.unit import UnitModel


class RetrievalUnitModel(UnitModel):
    """Commands BEGIN, CLUSTER, FETCH and OFFLOAD."""

    def begin(self) -> None:
        c = self.core.config
        self.kvmu = KvmuTiming(c.kv_heads, min(GROUP, c.max_pages), max(c.max_candidates, c.max_pages))
        self.clustered, self.fetched, self.offloaded = (Counter(self.clock) for _ in range(3))
        self.clock.start(self._commands())
        self.clock.start(self._tokens())

    def _commands(self) -> Process:
        core, steps, fetches = self.core, 0, 0
        while True:
            command = yield from core.next(ExecUnit.RETRIEVAL)
            if command.name == "BEGIN":
                yield self.kvmu.begin()
            elif command.name == "CLUSTER":
                steps += 1
                yield from self.clustered.reach(steps)
            elif command.name == "OFFLOAD":
                yield from self.offloaded.reach(steps)
            else:
                fetches += 1
                yield from self.fetched.reach(fetches)
            core.accept(ExecUnit.RETRIEVAL)
            core.complete(ExecUnit.RETRIEVAL)
            yield 1

    def _tokens(self) -> Process:
        """A step: its tokens one after the other, score rows, transfers."""
        core, clock, hcu = self.core, self.clock, self.core.hcu
        while True:
            last, number, clusters = False, 0, 0
            slot_ready = 0  # cycle in which the newest token has its slot
            while not last:
                last = yield from core.codes.get()
                if not number:
                    clusters = core.data.clusters
                yield 2 + hcu.token_cycles(0, clusters) + 1
                yield from clock.until(slot_ready)
                slot_ready = clock.now + self.kvmu.append(
                    opens=False
                )  # writing the cluster's entry takes the same time
                clusters += core.data.opened[number]
                number += 1
            yield from clock.until(slot_ready + 1)
            self.clustered.add()
            yield from self._select(clusters)
            yield 4 + -(-core.data.used // self.kvmu.group)  # FETCH searches the marks
            yield from self._transfer(core.data.fetch)
            self.fetched.add()
            yield 4
            yield from self._transfer(core.data.offload)  # transfers of one kind wait for those of the other kind
            self.offloaded.add()

    def _select(self, clusters: int) -> Wait:
        """Each row loads while the previous one is selected. Pages of a head are marked during the next head."""
        core, clock = self.core, self.clock
        yield 4 + -(-clusters // core.config.wtu_lanes)  # token counts of the clusters
        selector = marking = 0  # cycles in which they become free
        ends = [0, 0]  # of the two previous rows: depth of the queue
        for head, rows in enumerate(core.data.rows):
            for passes, levels in rows:
                yield from clock.until(ends[-2])
                end = False
                while not end:
                    _, end, _ = yield from core.rows.get()
                    yield 1
                # input register of the WTU
                selector = max(clock.now + 2, selector) + core.wtu.cycles(clusters, passes, levels)
                ends.append(selector)
            marking = max(marking, selector + -(-clusters // core.config.wtu_lanes) + 3)
            marking += sum(self.kvmu.select(pages) for pages in core.data.selected[head])
        yield from clock.until(marking)

    def _transfer(self, descriptors: Sequence[Descriptor]) -> Wait:
        """Issue descriptors after the tokens of the step are stored; wait for the last acknowledgement."""
        core, word = self.core, self.core.word_bytes
        if not descriptors:
            return
        yield from core.slots_written.reach(core.steps)
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
