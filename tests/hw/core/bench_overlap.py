"""Cycles of a step whose layers select for themselves or for the next layer, with host memories of several speeds.

python -m tests.hw.core.bench_overlap
"""

from dataclasses import replace

import numpy as np

from cli.rtl import measure as simulate
from compiler.layer import LayerSizes
from golden.resv import PREFETCH
from hw.core.isa import ExecUnit
from sim.bench.axi import FixedTiming
from sim.bench.layer_run import LayerRun, frames
from sim.bench.timeline import spans

SIZES = LayerSizes(hidden=32, ffn=64, tokens=2, keys=32, q_heads=4)
LAYERS, STEPS = 3, 6
HOSTS = {  # read latency and cycles per byte
    "fast": FixedTiming(latency=12),
    "link": FixedTiming(latency=300, gap=0.25),
    "drive": FixedTiming(latency=2000, gap=0.5),
}


def timings(host: FixedTiming) -> dict[str, FixedTiming]:
    """New timing models of the two ports."""
    return {"device": FixedTiming(latency=12), "host": replace(host)}


def measure(prefetch: str, host: FixedTiming, seed: int = 0) -> dict[str, int]:
    """The last of some steps of three layers at `tiny`: fetched head pages, and cycles.

    FETCH : cycles in which a FETCH is in progress ; alone : those of them in which LOAD, MATRIX and VECTOR are idle

    All clusters are selected, so that both modes fetch the same pages.
    """
    bench = LayerRun(
        "tiny", np.random.default_rng(seed), sizes=SIZES, layers=LAYERS, hamming_threshold=4, max_resident_tokens=4,
        selection_target=1 << 16, limit=1_000_000, prefetch=prefetch,
    )  # fmt: skip
    inputs = list(frames(bench, STEPS, SIZES.tokens))
    steps, record = simulate(bench, inputs, lambda: timings(host), ports=["stat_trace"], seed=seed)
    timeline = [span for span in spans(record.ports["stat_trace"], bench.programs) if span.program == bench.steps[-1]]
    start, end = min(span.start for span in timeline), max(span.end for span in timeline)
    busy = {name: np.zeros(end - start, bool) for name in ("FETCH", "engines")}
    for span in timeline:
        if span.name == "FETCH":
            busy["FETCH"][span.start - start : span.end - start] = True
        if span.unit in (ExecUnit.LOAD, ExecUnit.MATRIX, ExecUnit.VECTOR):
            busy["engines"][span.start - start : span.end - start] = True
    return {
        "head pages": int(steps[-1]["fetched"]),
        "cycles": int(steps[-1]["cycles"]),
        "predicted": int(steps[-1]["predicted"]),
        "FETCH": int(busy["FETCH"].sum()),
        "alone": int((busy["FETCH"] & ~busy["engines"]).sum()),
    }


def main() -> None:
    rows = [
        [host, prefetch, *measure(prefetch, timing).values()]
        for host, timing in HOSTS.items()
        for prefetch in reversed(PREFETCH)
    ]
    names = ["host", "prefetch", "head pages", "cycles", "predicted", "FETCH", "alone"]
    for row in (names, *rows):
        print(" ".join(f"{value:>12}" for value in row))


if __name__ == "__main__":
    main()
