"""Where the cycles of a layer's step go: timeline as SVG and Chrome trace, and shares, from the RTL's own trace.

python -m tests.hw.core.bench_timeline [preset] [frames] writes build/core/timeline-PRESET.svg and .json
"""

import json
import sys
from pathlib import Path

import numpy as np

from golden.kvmu_unit import Op
from sim.layer_run import CASES, LayerRun, frames
from sim.timeline import ACTIVITY, busy, chrome_trace, column, picture, spans, together
from sw_model.memory.live import DramTiming, PcieTiming
from sw_model.memory.pcie import PcieLink
from sw_model.memory.spec import load_memory


def main(preset: str = "tiny", count: int = 10) -> None:
    bench = LayerRun(preset, np.random.default_rng(1), threshold={"tiny": 4, "small": 7}[preset], capacity=8)
    for x in frames(bench, count, CASES[preset].tokens):
        bench.step(x)
    timing = {"device": DramTiming(load_memory("lpddr5-6400-256b")), "host": PcieTiming(PcieLink(3, 4))}
    record = bench.check(ports=["stat_trace"], timing=timing)
    trace = record.ports["stat_trace"]
    found = spans(trace, bench.programs)
    # the last step: its program is the one before the last, which only copies the output
    step = max(range(len(bench.programs)), key=lambda n: len(bench.programs[n]) * 1000 + n)
    before = sum(command.name != "END" for program in bench.programs[:step] for command in program)
    ordered = sorted(found, key=lambda span: span.start)[before:]
    mine = ordered[: sum(command.name != "END" for command in bench.programs[step])]
    first, last = min(span.start for span in mine), max(span.end for span in mine)
    part = trace[:last]
    folder = Path("build/core")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"timeline-{preset}.svg").write_text(picture(mine, part))
    (folder / f"timeline-{preset}.json").write_text(json.dumps(chrome_trace(found, trace)))
    fetched = sum(reply.transit for reply in bench.traces[-1].replies if reply.op == Op.FETCH)
    print(f"{preset}: step of {last - first} cycles, {len(mine)} commands, {fetched} units fetched")
    for unit, cycles in busy(mine).items():
        print(f"  {unit.name:8} {cycles:7} {cycles / (last - first):6.1%}")
    print("  cycles with 0, 1, .. units at work:", together(mine).tolist())
    for name in ACTIVITY:
        print(f"  {name:12} {column(part, name)[first:].mean():6.1%} of cycles with a beat")


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:3]))
