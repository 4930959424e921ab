"""The CACHE unit."""

from __future__ import annotations

from collections.abc import Sequence

from golden.kvmu import Descriptor, Tier
from hw.core.isa import ExecUnit
from hw.dre.kvmu.kvmu import GROUP
from hw.dre.kvmu.timing import KvmuTiming
from sw_model.cycles.processes import Counter, Process, Wait
from sw_model.cycles.unit import UnitModel


class RetrievalUnitModel(UnitModel):
    """BEGIN, CLUSTER, FETCH and OFFLOAD: the KV prediction unit."""

    def begin(self) -> None:
        c = self.core.config
        self.kvmu = KvmuTiming(c.kv_heads, min(GROUP, c.max_pages), max(c.max_candidates, c.max_pages))
        self.clustered, self.fetched, self.settled = (Counter(self.clock) for _ in range(3))
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
                yield from self.settled.reach(steps)
            else:
                fetches += 1
                yield from self.fetched.reach(fetches)
            core.take(ExecUnit.RETRIEVAL)
            core.complete(ExecUnit.RETRIEVAL)
            yield 1

    def _tokens(self) -> Process:
        """A step: its tokens one after the other, rows of scores, transfers."""
        core, clock, hcu = self.core, self.clock, self.core.hcu
        while True:
            last, number, clusters = False, 0, 0
            placed = 0  # when the newest token has its place
            while not last:
                last = yield from core.codes.get()
                if not number:
                    clusters = core.data.clusters
                yield 2 + hcu.token_cycles(0, clusters) + 1
                yield from clock.until(placed)
                placed = clock.now + self.kvmu.append(opens=False)  # the cluster's entry takes as long
                clusters += core.data.opened[number]
                number += 1
            yield from clock.until(placed + 1)
            self.clustered.add()
            yield from self._select(clusters)
            yield 4 + -(-core.data.used // self.kvmu.group)  # FETCH looks for marks
            yield from self._transfer(core.data.fetch)
            self.fetched.add()
            yield 4
            yield from self._transfer(core.data.offload)  # transfers of one kind wait for those of another
            self.settled.add()

    def _select(self, clusters: int) -> Wait:
        """Rows load while the one before is selected; a head's clusters are marked while the next one's rows are."""
        core, clock = self.core, self.clock
        yield 4 + -(-clusters // core.config.wtu_lanes)  # the clusters' counts
        selector = marking = 0  # when they are free
        ends = [0, 0]  # of the two rows before: the queue has places for so many
        for head, rows in enumerate(core.data.rows):
            for passes, levels in rows:
                yield from clock.until(ends[-2])
                end = False
                while not end:
                    _, end, _ = yield from core.rows.get()
                    yield 1
                # a register stands before the WTU
                selector = max(clock.now + 2, selector) + core.wtu.cycles(clusters, passes, levels)
                ends.append(selector)
            marking = max(marking, selector + -(-clusters // core.config.wtu_lanes) + 3)
            marking += sum(self.kvmu.select(pages) for pages in core.data.selected[head])
        yield from clock.until(marking)

    def _transfer(self, descriptors: Sequence[Descriptor]) -> Wait:
        """Descriptors, once the step's tokens are in their places, and the acknowledgement of their last."""
        core, word = self.core, self.core.word_bytes
        if not descriptors:
            return
        yield from core.placed.reach(core.steps)
        yield 1  # through a register
        ends: dict[bool, int] = {}
        for one in descriptors:
            sides = one.source_tier != Tier.DEVICE, one.target_tier != Tier.DEVICE
            ends[sides[1]] = yield from core.copier.give(
                one.source // word, one.target // word, one.bytes // word, *sides
            )
            yield 1
        for host, number in ends.items():
            yield from core.copier.wait(number, host)
        yield 4
