"""First and last cycle of every command of some programs, compared with recorded cycles.

The results of a program do not show that a queue or a burst has become slower; its cycles do. After such a change run

    python -m tests.hw.core.test_cycles

and review the difference of cycles.json, which shows the commands that became faster or slower.
"""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from amaranth.hdl import UnusedElaboratable

from hw.core.isa import Command, SyncEvent
from sim.bench.axi import FixedTiming
from sim.bench.layer_run import LayerRun, frames
from sim.bench.timeline import spans
from tests.hw.core.random_commands import Author

RECORD = Path(__file__).parent / "cycles.json"
SLOW = {"device": FixedTiming(latency=40, gap=1.5, beat_bytes=8), "host": FixedTiming(latency=150)}
CASES = {  # layer steps, single commands, how often they wait, pauses, memories
    "layer": (6, 0, 0.0, 0.0, None),
    "layer, slow memories": (6, 0, 0.0, 0.2, SLOW),
    "commands": (0, 100, 0.0, 0.0, None),
    "commands that wait": (3, 100, 0.3, 0.0, None),
    "commands that wait, slow memories": (3, 100, 0.3, 0.2, SLOW),
    "products": (0, 60, 0.0, 0.0, None),
}


def products(rng: np.random.Generator, count: int) -> list[Command]:
    """Small products whose sums stay in the accumulators: each ends when its operands have been read."""
    sizes = rng.integers(1, 4, (count, 3)).tolist()
    fields = [dict(zip(("m_blocks", "k_blocks", "vectors"), size, strict=True)) for size in sizes]
    return [Command("MULTIPLY", {**size_fields, "first": 1}) for size_fields in fields]


def measured(case: str) -> list[list]:
    """Program, number, name, first cycle and end cycle of each command, ordered by first cycle. Cycles count from the
    start of the first command."""
    steps, count, share, stall, timing = CASES[case]
    rng = np.random.default_rng(list(CASES).index(case))
    bench = LayerRun("tiny", rng, hamming_threshold=4, max_resident_tokens=4, scattered=True)
    for x in frames(bench, steps, 2):
        bench.step(x)
    if case == "products":
        bench.run([*products(rng, count), Command("END")])
    elif count:
        author = Author(bench, counts=False)
        _ = author.see(bench.traces[-1]) if steps else None
        program = []
        for command in author.write(count):
            waits = {event: int(rng.integers(1, 8)) for event in SyncEvent if rng.random() < share}
            program.append(Command(command.name, command.fields, waits))
        bench.run([*program, Command("END")])
    outcomes, record = bench.run_on.simulate(stall=stall, seed=0, timing=timing, ports=["stat_trace"])
    assert all(outcome.done and not outcome.failed for outcome in outcomes), outcomes
    timeline = spans(record.ports["stat_trace"], bench.commands())
    begin = timeline[0].start
    return [[span.program, span.number, span.name, span.start - begin, span.end - begin] for span in timeline]


@pytest.mark.parametrize("case", CASES)
def test_cycles_are_those_recorded(case):
    result, expected = measured(case), json.loads(RECORD.read_text())[case]
    for span, recorded in zip(result, expected, strict=True):
        assert span == recorded, "program, number, name, first cycle, end: see the head of this file"


def write() -> None:
    """Write new recorded cycles, one line for each command."""
    warnings.simplefilter("ignore", UnusedElaboratable)
    cases = []
    for case in CASES:
        lines = ",\n".join(f"  {json.dumps(span)}" for span in measured(case))
        cases.append(f"{json.dumps(case)}: [\n{lines}\n ]")
    RECORD.write_text("{\n " + ",\n ".join(cases) + "\n}\n")


if __name__ == "__main__":
    write()
