"""How long runs and sweeps take: `python -m tests.sw_model.bench_model`. Processor seconds, best of three."""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from sw_model.rates import dram_share
from sw_model.request import Request
from sw_model.sweep import parse_sweep, sweep
from util.text import table


def seconds(work: Callable[[], object], times: int = 3) -> float:
    best = float("inf")
    for _ in range(times):
        started = time.process_time()
        work()
        best = min(best, time.process_time() - started)
    return best


def forgetful(request: Request) -> Callable[[], object]:
    def work() -> object:
        dram_share.cache_clear()
        return request.run()

    return work


def main() -> None:
    frame = Request(tokens=40000)
    detail = frame.replace(memory_detail=True)
    detail.run()  # compiled now
    rows = [
        ("V-Rex8 frame at 40K", f"{seconds(frame.run):.3f}"),
        ("the same, every read of one layer's KV replayed", f"{seconds(forgetful(detail)):.3f}"),
        ("the same again, remembered", f"{seconds(detail.run):.3f}"),
    ]
    streams = [Request(workload="stream", tokens=tokens) for tokens in (1000, 10_000, 100_000, 1_000_000)]
    rows += [(f"stream of {one.tokens:,} tokens", f"{seconds(one.run):.3f}") for one in streams]
    grid = {"tokens": list(range(1000, 41000, 1000)), "link.nominal_gbps": [2, 4, 8, 16, 32]}
    plan = parse_sweep({"name": "thousand", "grid": grid | {"policy": ["resv", "mosaic", "hybrid", "full", "rekv"]}})
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        sweep(plan, Path(folder) / "t.csv")
        rows.append(
            (f"sweep of {len(plan.requests)} runs, one process per core (wall)", f"{time.monotonic() - started:.0f}")
        )
    print(table(("work", "s"), rows))


if __name__ == "__main__":
    main()
