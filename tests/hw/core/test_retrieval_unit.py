"""The RETRIEVAL unit in a core: steps of every size, at any address, pages that leave late, and after a reset."""

import numpy as np
import pytest

from compiler.layer import LayerSizes
from hw.axi.ports import Cause
from hw.core.isa import Command, ExecUnit
from sim.bench.axi import FixedTiming
from sim.bench.layer_run import LayerRun
from tests.compiler.test_layer import tokens

SIZES = LayerSizes(hidden=16, ffn=24, tokens=2, keys=64, fill=8, q_heads=4)


def of_clusters(bench, steps):
    """A step for each list of numbers, with queries for two tokens; tokens of one number share a cluster, since their
    keys are multiples of one."""
    keys = tokens(bench, 8)
    for numbers in steps:
        doublings = bench.rng.integers(0, 4, (len(numbers), 1, 1))
        queries = tokens(bench, 4).reshape(2, 4, -1) if len(numbers) == 2 else None
        bench.attend((keys[numbers] + (doublings << 7)).astype(np.uint16), tokens(bench, len(numbers)), queries)


@pytest.mark.parametrize("mirrored", [False, True])
def test_steps_of_any_size(mirrored, rng, seed):
    """As many clusters as tokens, few tokens after many, the last one alone in its cluster. Of the tables only what is
    written changes; at the end of a step a slow memory behind the host link has all pages that leave the device."""
    places = {"scattered": True, "mirrored": mirrored}
    bench = LayerRun(
        "tiny", rng, sizes=SIZES, hamming_threshold=1, selection_target=1 << 16, max_resident_tokens=4, **places
    )
    of_clusters(bench, [[0, 1, 2, 3, 4, 5, 6, 7], [1], [1], [1, 1, 1, 2, 2, 2, 0], [2, 4], [3, 0, 3]])
    record = bench.check(stall=0.2, seed=seed, timing={"host": FixedTiming(latency=600)})
    assert record.traffic["host"]["beats"]["write"]


@pytest.mark.parametrize("policy, target", [("ratio", 19661), ("budget", 20), ("count", 9)])
def test_rows_longer_than_the_memory_of_the_wtu(policy, target, rng, seed):
    """The row reader repeats rows that the WTU requests again; shorter rows come before them."""
    options = {"policy": policy, "selection_target": target, "window_tokens": 8, "max_resident_tokens": 4}
    bench = LayerRun("tiny", rng, sizes=SIZES, hamming_threshold=1, staging_head_pages=128, **options)
    pairs = bench.config.wtu_pairs
    queried = []
    for count in (8, 2, 8, 8, 8, 2, 2):
        queries = tokens(bench, 4).reshape(2, 4, -1) if count == 2 else None
        bench.attend(tokens(bench, count), tokens(bench, count), queries)
        queried += [len(bench.golden.table.clusters)] if count == 2 else []
    assert queried[0] <= pairs < queried[1] < queried[2]
    bench.check(stall=0.2, seed=seed)


@pytest.mark.parametrize("rows", [0, 3])
def test_select_outside_of_the_region_raises_fault(rows, rng, seed):
    """The first word of the row is reported; a SELECT without rows reads nothing and the program completes."""
    bench = LayerRun("tiny", rng, sizes=SIZES, hamming_threshold=1, max_resident_tokens=16)
    bench.begin()
    program = bench.layer.attention(2)
    bench.run(
        [
            Command(c.name, {**c.fields, "source": bench.words, "rows": rows}, c.waits) if c.name == "SELECT" else c
            for c in program
        ],
        clear=True,
    )
    *_, outcome = bench.run_on.simulate(seed=seed)[0]
    if rows:
        assert (outcome.cause, outcome.source, outcome.address) == (Cause.REGION, ExecUnit.RETRIEVAL, bench.words)
    else:
        assert outcome.done and not outcome.failed


def test_reset_before_tokens_are_waited_for(rng, seed):
    """A step runs correctly after a program that loads codes without CLUSTER, and a reset."""
    bench = LayerRun("tiny", rng, sizes=SIZES, hamming_threshold=1, max_resident_tokens=16)
    program = bench.layer.attention(8, query=False)
    program = [*program[: [command.name for command in program].index("CLUSTER")], Command("END")]
    address = bench.region.allocate(len(program) * 64 // bench.run_on.word_bytes)
    bench.run_on.put(address, program)
    bench.run_on.reset_after(address, len(program), 2000)
    of_clusters(bench, [[0, 1, 2, 3, 4, 5, 6, 7]])
    bench.check(seed=seed)
