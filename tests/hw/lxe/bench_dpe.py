"""Simulated cycles per second of the matrix engine's Verilog: `python -m tests.hw.lxe.bench_dpe [PRESET]`.

A 4096-wide product of 10 columns streams in with nobody stalling, once with some tiles and once with more; the
difference of the two times is without the simulator's start. Reading and writing the streams in cocotb is part of it.
"""

import sys
import time

import numpy as np

from hw.config import Config
from hw.lxe.dpe import DPE
from sim.bench.build import build
from tests.hw.lxe.dpe_cases import operands, run

TOKENS, DEPTH = 10, 4096


def main(preset="paper"):
    unit = DPE.from_config(Config.preset(preset))
    start = time.perf_counter()
    build(unit, "dpe")
    print(f"{preset}: Verilog and build {time.perf_counter() - start:.1f} s (next to nothing when they are cached)")
    points = []
    for blocks in (2, 18):
        x, w = operands(np.random.default_rng(1), blocks * unit.trees, DEPTH, TOKENS)
        start = time.perf_counter()
        _, record = run(unit, x, w)
        points.append((int(record.cycles["o"][-1]), time.perf_counter() - start))
        print(f"{points[-1][0]:,} cycles in {points[-1][1]:.1f} s")
    (few, short), (many, long) = points
    rate = (many - few) / (long - short)
    print(f"{rate:,.0f} cycles/s, {rate * unit.trees * unit.inputs / 1e6:,.1f} million MAC/s")


if __name__ == "__main__":
    main(*sys.argv[1:2])
