"""Compare the cycles of the model with those of the RTL over sizes, selection ratios and memory speeds.

python -m tests.sw_model.bench_cycles [--record] [case ...] prints the table and the errors; `CASES` has the names.
With --record it also writes the cycles of the RTL to `rtl_cycles.json`.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cli.rtl import measure, predict
from compiler.layer import LayerSizes
from golden import bf16
from sim.bench.axi import FixedTiming
from sim.bench.layer_run import CASES as SIZES
from sim.bench.layer_run import LayerRun, frames
from sw_model.cycles.step_data import record_steps
from sw_model.memory.live import DramTiming, PcieTiming
from sw_model.memory.live_drive import DriveTiming, PcieDriveTiming
from sw_model.memory.pcie import PcieLink
from sw_model.memory.spec import load_memory
from sw_model.memory.ssd import load_ssd
from util.timing import MemoryTiming

RECORD, SEED = Path(__file__).parent / "rtl_cycles.json", 1


@dataclass(frozen=True)
class Case:
    """Layers and their steps: `count` frames of `tokens` tokens, then `text` tokens one by one; streams take turns."""

    preset: str
    sizes: LayerSizes
    threshold: int
    capacity: int
    ratio: float
    count: int
    tokens: int
    text: int
    device: Callable[[], MemoryTiming]
    host: Callable[[int], MemoryTiming]  # argument: the first address of the drive
    storage: bool = False
    policy: str = "ratio"  # "ratio": `ratio` is a share; else it is a number of tokens or clusters
    layers: int = 1
    streams: int = 1
    window: int = 0
    staging: int = 32  # head pages of a staging bank
    prefetch: str = "same_layer"
    kv_bits: int = 16


def dram(name: str, **changes: Any) -> Callable[[], MemoryTiming]:
    return lambda: DramTiming(replace(load_memory(name), **changes))


def link(*about: int) -> Callable[[int], MemoryTiming]:
    return lambda drive_at: PcieTiming(PcieLink(*about))


def drive(drive_at: int) -> MemoryTiming:
    return PcieDriveTiming(PcieTiming(PcieLink(3, 4)), DriveTiming(load_ssd("bg6-like")), drive_at)


CASES = {
    "lpddr5": Case("tiny", SIZES["tiny"], 4, 8, 0.3, 7, 2, 1, dram("lpddr5-6400-256b"), link(3, 4)),
    "ddr4, 0.1": Case("tiny", SIZES["tiny"], 4, 64, 0.1, 7, 2, 1, dram("ddr4-3200-8ch"), link(4, 4)),
    "hbm2e, 0.5": Case(
        "tiny", LayerSizes(32, 64, 4, 64, q_heads=4), 4, 8, 0.5, 5, 4, 1, dram("hbm2e-3024-5120b"), link(4, 16)
    ),
    "fast": Case(
        "tiny",
        LayerSizes(32, 48, 3, 64, q_heads=4),
        3,
        16,
        0.3,
        5,
        3,
        1,
        lambda: FixedTiming(12),
        lambda _: FixedTiming(200),
    ),
    "slow": Case("tiny", SIZES["tiny"], 4, 8, 0.3, 4, 2, 0, lambda: FixedTiming(60), lambda _: FixedTiming(500)),
    "drive": Case("tiny", SIZES["tiny"], 4, 8, 0.8, 7, 2, 1, dram("lpddr5-6400-256b"), drive, storage=True),
    "budget": Case("tiny", SIZES["tiny"], 4, 8, 6, 6, 2, 1, dram("lpddr5-6400-256b"), link(3, 4), policy="budget"),
    "top-k": Case("tiny", SIZES["tiny"], 3, 64, 2, 6, 2, 1, dram("ddr4-3200-8ch"), link(4, 8), policy="count"),
    "small": Case("small", SIZES["small"], 7, 8, 0.3, 4, 4, 1, dram("lpddr5-6400-256b"), link(3, 4)),
}


def tiny(**options: Any) -> Case:
    """A case at `tiny` with LPDDR5 and a PCIe link."""
    defaults = {
        "preset": "tiny", "sizes": SIZES["tiny"], "threshold": 4, "capacity": 8, "ratio": 0.3, "count": 5, "tokens": 2,
        "text": 1, "device": dram("lpddr5-6400-256b"), "host": link(3, 4),
    }  # fmt: skip
    return Case(**{**defaults, **options})


def small(**options: Any) -> Case:
    """A case at `small` with LPDDR5 and a PCIe link."""
    return tiny(preset="small", sizes=SIZES["small"], threshold=7, count=2, tokens=4, **options)


LONG = {
    "sizes": LayerSizes(16, 24, 8, 128, q_heads=4),
    "threshold": 1,
    "window": 8,
    "tokens": 8,
    "capacity": 8,
    "staging": 128,
}
DDR4, HBM2E = dram("ddr4-3200-8ch"), dram("hbm2e-3024-5120b")
NO_REFRESH = dram("lpddr5-6400-256b", refresh="none")
CASES |= {
    "2 layers": tiny(layers=2),
    "2 layers, ddr4": tiny(layers=2, device=DDR4, host=link(4, 4)),
    "2 layers, hbm2e": tiny(layers=2, device=HBM2E, host=link(4, 16)),
    "2 layers, all resident": tiny(layers=2, capacity=64),
    "4 layers, 0.8": tiny(layers=4, ratio=0.8, count=3),
    "2 streams": tiny(streams=2, count=8),
    "3 streams, 0.8": tiny(streams=3, ratio=0.8, count=9),
    "3 streams, slow": tiny(streams=3, device=lambda: FixedTiming(60), host=lambda _: FixedTiming(500), count=6),
    "4 layers, 3 streams": tiny(layers=4, streams=3, count=6, ratio=0.7),
    "4 layers, 3 streams, drive": tiny(layers=4, streams=3, count=6, ratio=0.7, host=drive, storage=True),
    "2 layers, 2 streams": tiny(layers=2, streams=2, device=lambda: FixedTiming(12)),
    "evictions": tiny(capacity=2, ratio=0.6, count=7),
    "evictions, 3 streams": tiny(capacity=4, ratio=0.9, count=8, streams=3),
    "evictions, drive": tiny(capacity=2, ratio=0.6, host=drive, storage=True),
    "all resident": tiny(capacity=64, count=7),
    "all selected": tiny(capacity=64, ratio=1.0, count=7),
    "single tokens": tiny(count=0, text=10, capacity=4),
    "window": tiny(window=4, threshold=3, count=8, capacity=64),
    "long rows": tiny(**LONG, count=6, ratio=0.5),
    "long rows, 2 layers": tiny(**LONG, count=5, layers=2, ratio=0.2),
    "long rows, slow": tiny(**LONG, count=5, ratio=0.5, device=lambda: FixedTiming(60)),
    "pieces": tiny(sizes=LayerSizes(16, 24, 12, 64, q_heads=4), tokens=12, count=2, capacity=8, threshold=6),
    "wide layer": tiny(sizes=LayerSizes(64, 96, 4, 64, q_heads=8), tokens=4, count=4),
    "budget, 2 streams": tiny(policy="budget", ratio=6, streams=2, count=6),
    "3 layers, next layer": tiny(layers=3, prefetch="next_layer", capacity=4, ratio=0.8),
    "3 layers, next layer, drive": tiny(
        layers=3, prefetch="next_layer", capacity=4, ratio=0.8, host=drive, storage=True
    ),
    "2 layers, 2 streams, next layer": tiny(layers=2, streams=2, prefetch="next_layer", device=lambda: FixedTiming(12)),
    "small, 2 layers": small(layers=2),
    "small, 2 streams": small(streams=2, capacity=16, ratio=0.8),
    "small, drive": small(capacity=8, ratio=0.8, host=drive, storage=True),
    "small, ddr4": small(device=DDR4, host=link(4, 8), capacity=64),
    "4 bits": tiny(kv_bits=4, ratio=0.8, count=7),
    "4 bits, fast": tiny(kv_bits=4, capacity=64, ratio=1.0, count=7, device=lambda: FixedTiming(12)),
    "4 bits, 2 layers, next layer": tiny(kv_bits=4, layers=2, prefetch="next_layer", capacity=4, ratio=0.8),
    "4 bits, long rows": tiny(**LONG, count=5, ratio=0.5, kv_bits=4),
    "small, 4 bits": small(kv_bits=4, layers=2),
    "8 bits": tiny(kv_bits=8, ratio=0.8, count=7),
    "budget, no refresh": tiny(policy="budget", ratio=6, count=6, device=NO_REFRESH),
    "2 streams, no refresh": tiny(streams=2, count=8, device=NO_REFRESH),
    "3 streams, no refresh": tiny(streams=3, ratio=0.8, count=9, device=NO_REFRESH),
    "evictions, 3 streams, no refresh": tiny(capacity=4, ratio=0.9, count=8, streams=3, device=NO_REFRESH),
    "pieces, no refresh": tiny(
        sizes=LayerSizes(16, 24, 12, 64, q_heads=4), tokens=12, count=2, capacity=8, threshold=6, device=NO_REFRESH
    ),
    "4 bits, no refresh": tiny(kv_bits=4, ratio=0.8, count=7, device=NO_REFRESH),
    "8 bits, no refresh": tiny(kv_bits=8, ratio=0.8, count=7, device=NO_REFRESH),
}  # fmt: skip


def bench(case: Case, seed: int) -> tuple[LayerRun, list[np.ndarray], list[int]]:
    """The layers of a case, the input of every step, and its stream."""
    layer = LayerRun(
        case.preset, np.random.default_rng(seed), sizes=case.sizes, hamming_threshold=case.threshold,
        max_resident_tokens=case.capacity,
        selection_target=round(65536 * case.ratio) if case.policy == "ratio" else int(case.ratio), policy=case.policy,
        storage=case.storage, layers=case.layers, streams=case.streams, window_tokens=case.window,
        staging_head_pages=case.staging, limit=400_000, device_bytes=16 << 20, prefetch=case.prefetch,
        changes={"kv_bits": case.kv_bits},
    )  # fmt: skip
    sources = [frames(layer, case.count, case.tokens) for _ in range(case.streams)]
    inputs = [next(sources[n % case.streams]) for n in range(case.count)]
    inputs += [bf16.encode(layer.rng.standard_normal((1, case.sizes.hidden))) for _ in range(case.text)]
    return layer, inputs, [n % case.streams for n in range(len(inputs))]


def compare(case: Case, seed: int) -> list[dict[str, float]]:
    """Figures of every step, measured and predicted."""
    layer, inputs, streams = bench(case, seed)
    return measure(layer, inputs, timings(case, layer), streams=streams, seed=seed)[0]


def predictions(case: Case, seed: int, starts: Sequence[int]) -> list[int]:
    """Predicted cycles of every step, without a simulation of the RTL; `starts`: first cycles of the steps in one."""
    layer, inputs, streams = bench(case, seed)
    data = {}
    for x, stream in zip(inputs, streams, strict=True):
        data_of_step = record_steps(layer.golden.table, partial(layer.step, x, stream))
        data[layer.steps[-1]] = data_of_step
    cycles = predict(layer, data, timings(case, layer)(), dict(zip(layer.steps, starts, strict=True)))
    return [cycles[number] for number in layer.steps]


def timings(case: Case, layer: LayerRun) -> Callable[[], dict[str, MemoryTiming]]:
    """Function that makes the memories of a case."""
    return lambda: {"device": case.device(), "host": case.host(layer.storage_at)}


def recorded() -> dict[str, list[list[int]]]:
    """First cycle and number of cycles of every step of every case in the RTL, with the seed `SEED`."""
    return json.loads(RECORD.read_text())


def store(cycles: dict[str, list[list[float]]]) -> None:
    """Add cases to the record."""
    known = recorded() if RECORD.exists() else {}
    merged = {name: cycles.get(name, known.get(name)) for name in CASES}
    lines = [f" {json.dumps(name)}: {json.dumps(values)}" for name, values in merged.items() if values]
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main(*names: str) -> None:
    errors = []
    record = "--record" in names
    print(
        f"{'case':26} {'step':>4} {'tokens':>6} {'clusters':>8} {'attended':>8} {'fetched':>7} {'RTL':>7} {'model':>7}"
    )
    for name in [name for name in names if name != "--record"] or CASES:
        steps = compare(CASES[name], SEED)
        if record:
            store({name: [[step["start"], step["cycles"]] for step in steps]})
        for n, step in enumerate(steps):
            errors.append((step["predicted"] / step["cycles"] - 1, name, n))
            print(
                f"{name:26} {n:4} {step['tokens']:6} {step['clusters']:8} {step['attended']:8.1f} {step['fetched']:7} "
                f"{step['cycles']:7} {step['predicted']:7} {errors[-1][0]:+6.1%}",
                flush=True,
            )
    worst = max(errors, key=lambda error: abs(error[0]))
    mean = float(np.mean([abs(error) for error, _, _ in errors]))
    print(f"{len(errors)} steps: mean error {mean:.2%}, worst {worst[0]:+.2%} ({worst[1]}, step {worst[2]})")


if __name__ == "__main__":
    main(*sys.argv[1:])
