"""Cycles of a core's programs as the model predicts them, against the RTL's; and its processes."""

import numpy as np
import pytest

from hw.config import Config
from hw.core.isa import Command, Event, all_but
from sim.axi import FixedTiming
from sim.core_run import BASES
from sw_model.cycles.core import CoreModel
from sw_model.cycles.processes import Bell, Clock, Counter, Queue
from tests.sw_model.bench_cycles import CASES, compare

TINY = Config.preset("tiny")


def model(latency=12):
    return CoreModel(TINY, {side: FixedTiming(latency) for side in BASES}, BASES, 0, {})


def copies(count, words, wait):
    waits = {Event.COPY: all_but()} if wait else {}
    program = [Command("COPY", {"source": 0, "target": 1000 + 100 * n, "words": words}, waits) for n in range(count)]
    return [*program, Command("END")]


def test_commands_that_wait_take_turns():
    """A chain of copies pays both memory latencies each time; free ones stream at a word per cycle."""
    free, chained = (model(100).run(0, copies(6, 40, wait)) for wait in (False, True))
    assert 6 * 200 < chained < 6 * 300 and free < 0.7 * chained
    five, six = (model().run(0, copies(count, 400, False)) for count in (5, 6))
    assert six - five == pytest.approx(400, rel=0.03)


def test_latency_counts_once_for_each_round_trip():
    one, two = (model(latency).run(0, copies(1, 4, False)) for latency in (20, 50))
    assert two - one == 3 * 30  # the program, the words, their acknowledgement


def test_processes():
    """Cycles, a queue with one place, a counter, a bell."""
    clock, seen = Clock(), []
    queue, counter, bell = Queue(clock, depth=1, latency=2), Counter(clock), Bell(clock)

    def give():
        for item in range(3):
            yield from queue.put(item)
            seen.append(("put", item, clock.now))
            yield 1
        counter.add(2)
        bell.ring()

    def take():
        for _ in range(3):
            item = yield from queue.get()
            seen.append(("get", item, clock.now))
        yield from counter.reach(2)
        seen.append(("end", 0, clock.now))

    clock.start(take())
    clock.start(give())
    clock.run()
    assert seen == [
        ("put", 0, 0), ("get", 0, 2), ("put", 1, 3), ("get", 1, 5), ("put", 2, 6), ("get", 2, 8), ("end", 0, 8),
    ]  # fmt: skip


def test_a_program_without_end_is_refused():
    with pytest.raises(RuntimeError, match="does not end"):
        model().run(0, copies(1, 4, False)[:-1])


@pytest.mark.heavy
def test_predicts_the_rtl(seed):
    """Over sizes, ratios and memories: within three percent on average, no step further off than six."""
    steps = [step for name in CASES for step in compare(CASES[name], seed)]
    errors = np.array([step["predicted"] / step["cycles"] - 1 for step in steps])
    assert len(steps) >= 20 and np.abs(errors).mean() <= 0.03 and np.abs(errors).max() <= 0.06
