"""When every command of some programs begins and ends, to the cycle, as it was when a change last meant to move it.

What a program computes does not show that a queue or a burst has become slower; here it does. After such a change run

    python -m tests.hw.core.test_cycles

and look at the difference of cycles.json: which commands have become faster, which slower.
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
    """Small ones whose sums stay where they are: each ends when its operands have been read."""
    sizes = rng.integers(1, 4, (count, 3)).tolist()
    fields = [dict(zip(("m_blocks", "k_blocks", "vectors"), size, strict=True)) for size in sizes]
    return [Command("MULTIPLY", {**given, "first": 1}) for given in fields]


def measured(case: str) -> list[list]:
    """Of each command in the order of the beginnings its program, its number in it, its name, first cycle and cycle of
    its end; cycles count from the first beginning."""
    steps, count, share, stall, timing = CASES[case]
    rng = np.random.default_rng(list(CASES).index(case))
    bench = LayerRun("tiny", rng, hamming_threshold=4, max_resident_tokens=4, scattered=True)
    for x in frames(bench, steps, 2):
        bench.step(x)
    if case == "products":
        bench.run([*products(rng, count), Command("END")])
    elif count:
        author = Author(bench)
        _ = author.see(bench.traces[-1]) if steps else None
        program = []
        for command in author.write(count):
            waits = {event: int(rng.integers(1, 8)) for event in SyncEvent if rng.random() < share}
            program.append(Command(command.name, command.fields, waits))
        bench.run([*program, Command("END")])
    outcomes, record = bench.run_on.simulate(stall=stall, seed=0, timing=timing, ports=["stat_trace"])
    assert all(outcome.done and not outcome.failed for outcome in outcomes), outcomes
    found = spans(record.ports["stat_trace"], bench.commands())
    begin = found[0].start
    return [[span.program, span.number, span.name, span.start - begin, span.end - begin] for span in found]


@pytest.mark.parametrize("case", CASES)
def test_cycles_are_those_recorded(case):
    found, wanted = measured(case), json.loads(RECORD.read_text())[case]
    for span, recorded in zip(found, wanted, strict=True):
        assert span == recorded, "program, number, name, first cycle, end: see the head of this file"


def write() -> None:
    """Record anew, a line a command."""
    warnings.simplefilter("ignore", UnusedElaboratable)
    cases = []
    for case in CASES:
        lines = ",\n".join(f"  {json.dumps(span)}" for span in measured(case))
        cases.append(f"{json.dumps(case)}: [\n{lines}\n ]")
    RECORD.write_text("{\n " + ",\n ".join(cases) + "\n}\n")


if __name__ == "__main__":
    write()
