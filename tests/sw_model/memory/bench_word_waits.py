"""How long a single word waits for a memory that the load units of all cores keep busy.

Run by hand: python -m tests.sw_model.memory.bench_word_waits [cycles]. Each core has as many bursts in flight as its
load unit, in the interleaved tiles of a matrix; besides them one word is read at a time, at random addresses. The last
column is `sw_model.layer_timing.WORD_WAITS`: the latency of a word, divided by the time in which all words in flight
are read. It falls while the channels of the memory drift apart; 200,000 cycles are the time of a large product with
weights.
"""

import heapq
import sys

import numpy as np

from hw.core.processor import READ_ENGINES
from sw_model.core_ports import DRIFT, burst_bytes, load_bytes_per_s, word_bytes
from sw_model.memory.live import DramTiming
from sw_model.systems import System, load_system, memory_model
from sw_model.unit_cycles import PORT_CYCLES
from util import text


def measure(system: System, cycles: int, seed: int = 1) -> tuple[float, float, float]:
    """Mean latencies of a word and of a burst of a load unit in cycles; bytes per second of the load units."""
    core = system.core
    assert core
    word, burst, cores = word_bytes(core), burst_bytes(system), core.config.cores
    timing = DramTiming(memory_model(system.memory), core.clock_mhz)
    rng, tile = np.random.default_rng(seed), word * core.config.dpe_inputs
    lead, read = rng.integers(0, DRIFT + 1, cores), [0] * cores
    words = timing.memory.capacity_bytes // word
    latencies = list[int](), list[int]()
    waiting = list[tuple[int, int, int, int]]()  # cycle of the answer, number, cycle of the request, core

    def request(now: int, number: int) -> None:
        if number == cores:
            address, size = int(rng.integers(words)) * word, word
        else:
            tiles, inside = divmod(read[number], tile)
            address, size = ((tiles + int(lead[number])) * cores + number) * tile + inside, burst
            read[number] += burst
        heapq.heappush(waiting, (*timing.arrive(now, address, size, False), now, number))

    for number in range(cores):
        for _ in range(READ_ENGINES["load"][1] * word // burst):
            request(0, number)
    request(0, cores)
    while waiting[0][0] <= cycles:
        cycle, burst_number, start, number = heapq.heappop(waiting)
        answer = timing.confirm(burst_number, cycle)
        if answer > cycle:
            heapq.heappush(waiting, (answer, burst_number, start, number))
            continue
        latencies[number < cores].append(cycle - start)
        request(cycle + PORT_CYCLES * (number == cores), number)
    single, bursts = map(np.mean, latencies)
    return float(single), float(bursts), sum(read) / cycles * core.clock_mhz * 1e6


def main(cycles: int = 200_000) -> None:
    rows = []
    for name in ("vrex8", "vrex48"):
        system = load_system(name)
        core = system.core
        assert core
        word, burst, rate = measure(system, cycles)
        in_flight = core.config.cores * READ_ENGINES["load"][1] * word_bytes(core)
        every = in_flight / load_bytes_per_s(system) * core.clock_mhz * 1e6
        rows.append((name, f"{word:.0f}", f"{burst:.0f}", f"{rate / 1e9:.0f}", f"{every:.0f}", f"{word / every:.2f}"))
    print(text.table(("system", "word", "burst (cycles)", "GB/s", "all in flight (cycles)", "word / all"), rows))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
