"""Cycles of both WTU points on generator rows compared with other selection methods.

Run `python -m tests.hw.dre.wtu.bench_wtu [--area]`.

A 40K-token stream of the paper's statistics is clustered until it has 1250 clusters; rows of its queries then go
through the RTL of both points, held against the golden model, at 16 lanes. Beside them, on the same rows: the cycle
formula of the plain sweep (V-Rex, section V-B: load, sum, a read per bucket), a full bitonic sort, and a quick-select
engine like SpAtten's (arXiv 2012.09852). With `--area`, the mapped area of both points and of the DRE (minutes).
"""

import argparse
import math

import numpy as np

from golden.resv import ResvConfig, ResvLayer
from golden.scores import codes, dots, query_rows
from golden.wicsum import WtuConfig, exact, fixed_point, select, sweep_cycles
from hw.dre.hcu import HCU
from hw.dre.wtu.wtu import WTU, WtuDesign
from sw_model.media.generator import Generator, coin
from sw_model.systems import load_system
from synth.area import area
from tests.hw.dre.wtu.wtu_rows import Row, Settings, run
from util.text import table

CLUSTERS = 1250
ROWS = 1000
FRAME_MS = 254  # V-Rex8, 40K tokens (V-Rex, section VI-C); HCU and WTU take 0.5 % of it
LAYERS = 32


def stream(stage, seed=901):
    """A layer with CLUSTERS clusters, its newest assignments, and ROWS rows of scores by KV head: (R, C) each."""
    source, layer, newest = Generator(coin(seed=seed)), ResvLayer(ResvConfig(), 8, 128), []
    while len(layer.tables[0]) < CLUSTERS:
        newest = [*newest[-99:], *layer.append(source.frame().k[0])]
    scores = []
    while 40 * len(scores) < ROWS:
        chunk = source.frame() if stage == "frame" else source.text(10)
        for head, rows in enumerate(query_rows(chunk.q[0].astype(np.float64), 8)):
            scores.append(codes(dots(rows, layer._means_of(head)[:CLUSTERS]), 128).astype(np.int64))
    return layer, newest, scores[: ROWS // 40]


def bitonic(clusters, lanes):
    """Cycles of a bitonic sort: of compare-exchanges two lanes each, a network pass for each of its stages."""
    size = 1 << math.ceil(math.log2(clusters))
    stages = int(math.log2(size)) * (int(math.log2(size)) + 1) // 2
    return stages * (size // 2) // (lanes // 2)


def merge_sort(clusters, lanes):
    """The same by a pipelined bitonic sorter of one beat and merger of two: one read for each doubling."""
    beats = -(-clusters // lanes)
    return beats * (1 + math.ceil(math.log2(beats)))


def quick_select(keys, weights, threshold, lanes, rng):
    """Cycles of a quick-select engine that finds the key at which the sum in descending order passes the threshold.

    A read for the sum; then each round compares all remaining keys with a random pivot, `lanes` a cycle, while zero
    eliminators pack both sides into FIFOs; the adder tree weighs the upper side. 3 cycles of pipeline per round,
    as in this unit.
    """
    cycles, total = -(-len(keys) // lanes), 0
    while True:
        cycles += -(-len(keys) // lanes) + 3
        pivot = keys[rng.integers(len(keys))]
        above, equal = keys > pivot, keys == pivot
        upper, middle = int(weights[above].sum()), int(weights[equal].sum())
        if total + upper > threshold:
            keys, weights = keys[above], weights[above]
        elif total + upper + middle > threshold or (above | equal).all():
            return cycles
        else:
            total += upper + middle
            keys, weights = keys[~(above | equal)], weights[~(above | equal)]


def spread(cycles):
    return [f"{np.mean(cycles):.1f}", f"{np.percentile(cycles, 99):.0f}", f"{np.max(cycles)}"]


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--area", action="store_true")
    with_area = options.parse_args().area
    core, rng = load_system("vrex8").core, np.random.default_rng(7)
    config = core.config
    lanes, head_cycles = config.wtu_lanes, {}
    beats = -(-CLUSTERS // lanes)
    for stage in ("frame", "text"):
        layer, newest, groups = stream(stage)
        counts = layer.tables[0].counts[:CLUSTERS]
        keys = np.concatenate(groups)
        weights = fixed_point(keys) * counts
        lines = []
        for design, size in ((WtuDesign.SWEEP, 40), (WtuDesign.HISTOGRAM, 1), (WtuDesign.HISTOGRAM, 40)):
            rows = [Row(words, counts, join=(n + 1) % size != 0) for n, words in enumerate(keys)]
            record, want = run(WTU.from_config(config, design), rows, Settings())
            gaps = np.diff(record.cycles["o_row"])
            lines.append([f"{design}, {'every row' if size == 1 else f'union of {size}'} reported", *spread(gaps)])
            head_cycles[stage, design] = gaps.mean() * 40
        passes = np.concatenate([w.passes for w in want])
        formula = sweep_cycles(CLUSTERS, passes, lanes)
        lines.append(["formula, 2 beats + passes x beats", *spread(formula)])
        thresholds = [int(w.stop_sum[0]) for w in want]
        quick = [quick_select(k, w, t, lanes, rng) for k, w, t in zip(keys, weights, thresholds, strict=True)]
        lines.append(["quick-select", *spread(quick)])
        prefix = exact(fixed_point(keys).astype(float), counts, 0.3)
        scan = beats - (-prefix.sum(axis=1) // lanes)  # the sum, and the sorted prefix
        lines.append(["bitonic sort, sum, prefix", *spread(bitonic(CLUSTERS, lanes) + scan)])
        lines.append(["bitonic merge sort, sum, prefix", *spread(merge_sort(CLUSTERS, lanes) + scan)])
        for line in lines:
            line.append(f"{float(line[1]) / formula.mean():.3f}")
        print(
            f"\n{stage} rows: {len(keys)} of C = {CLUSTERS}, {lanes} lanes, {passes.mean():.1f} passes, cycles per row"
        )
        print(table(("", "mean", "p99", "worst", "of formula"), lines), flush=True)
        selected = np.concatenate([w.selected for w in want])
        examined = select(keys, counts, Settings().target, WtuConfig(refine_levels=0)).selected
        print(
            f"clusters visited: Eq. 3's prefix {prefix.mean():.1%} (paper: 16 % of a frame's row), "
            f"in buckets examined {examined.mean():.1%}, selected {selected.mean():.1%}"
        )

    hcu = HCU.from_config(config)
    compared = np.concatenate([a.compared for a in newest])
    tokens = [hcu.token_cycles(0, -(-int(c) // config.cores)) for c in compared]
    hcu_cycles = np.mean(tokens) * 10
    clock = core.clock_mhz * 1e6
    lines = []
    for design in WtuDesign:
        wtu = head_cycles["frame", design]
        ms = 1e3 * LAYERS * np.array([hcu_cycles, wtu]) / clock
        lines.append([design, *(f"{v:.4f}" for v in (*ms, ms.sum())), f"{100 * ms.sum() / FRAME_MS:.3f} %"])
    print(
        f"\nframe of 10 tokens at 40K on {config.cores} cores: a KV head's 40 rows and 1/8 of the candidates each, ms"
    )
    print(table(("WTU", "HCU", "WTU", "both", f"of {FRAME_MS} ms (paper: 0.5 %)"), lines))

    if with_area:
        areas = {name: area(name, config) for name in ("wtu_sweep", "wtu", "hcu", "kvmu")}
        logic, sweep_area = areas["wtu_sweep"].nand2, areas["wtu_sweep"].area_um2 + areas["wtu_sweep"].macro_um2
        lines = []
        for name, a in areas.items():
            sizes = (f"{a.nand2:.0f}", f"{a.nand2 / logic:.3f}", f"{a.area_um2:.0f}", f"{a.macro_um2:.0f}")
            lines.append([name, *sizes, f"{(a.area_um2 + a.macro_um2) / sweep_area:.3f}"])
        print("\n" + table(("unit", "NAND2", "of sweep", "logic um2", "memory um2", "both, of sweep"), lines))


if __name__ == "__main__":
    main()
