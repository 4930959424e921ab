"""Speed of the DRAM model in replayed bursts per processor second: `python -m tests.sw_model.memory.bench_dram`.

The first prototype replayed 2.94, 2.23 and 3.19 million on 4 KiB streams and 1.98, 1.42 and 1.47 on
scattered 256 B (LPDDR5 of 16 channels, HBM2e of 40, DDR4 of 8), Ramulator 2.1 0.29, 0.21 and 0.24 on the streams.
"""

import time

from sw_model.memory.dram import pattern, replay
from sw_model.memory.spec import load_memory, memory_names
from util.text import table

CASES = {
    "4 KiB stream": ("seq", 4096, 64),
    "scattered 256 B": ("rand", 256, 256),
    "scattered 16 KiB": ("rand", 16384, 64),
}


def main() -> None:
    rows = []
    for name in memory_names():
        memory = load_memory(name)
        for what, (kind, size, outstanding) in CASES.items():
            trace = pattern(memory, kind, size, (1 << 24) // size, outstanding=outstanding)
            replay(memory, pattern(memory, kind, size, 4, outstanding=1))
            best = float("inf")
            for _ in range(3):
                started = time.process_time()
                run = replay(memory, trace)
                best = min(best, time.process_time() - started)
            bursts = run.bytes_moved / memory.burst_bytes
            rows.append((name, what, f"{100 * run.share:.1f}", f"{bursts / best / 1e6:.2f}"))
    print(table(("memory", "pattern", "% of peak", "M bursts/s"), rows))


if __name__ == "__main__":
    main()
