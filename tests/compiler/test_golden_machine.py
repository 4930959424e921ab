"""The golden machine executes whole programs, retrieval included, with the results of the golden layers."""

import numpy as np
import pytest

from compiler.golden_machine import MachineFault
from compiler.layer import LayerSizes
from golden import bf16
from hw.core.isa import Command
from sim.bench.layer_run import LayerRun, frames
from tests.compiler.machines import check_outputs, golden_machine

CASES = {
    "tiny": {},
    "one context": {"layers": 1, "streams": 1},
    "storage": {"storage": True, "max_resident_tokens": 4},
    "biases": {"sizes": LayerSizes(16, 24, 2, 64, q_heads=4, qkv_bias=True)},
}


@pytest.mark.parametrize("case", CASES)
def test_layers_and_streams_equal_the_golden_layers(case, rng):
    options = {"hamming_threshold": 3, "max_resident_tokens": 8, "layers": 2, "streams": 2} | CASES[case]
    bench = LayerRun("tiny", rng, **options)
    for n, x in enumerate(frames(bench, 12, 2)):
        bench.step(x, stream=n % len(bench.positions))
    executed = golden_machine(bench)
    retrieved = [executed.run(program) for program in bench.commands()]
    assert sum(sum(each.fetched) for each in retrieved) > 0
    check_outputs(bench)
    attended = [sum(tokens for _, tokens in head) for head in bench.traces[-1].pages]
    assert retrieved[bench.steps[-1]].attended[-1] == attended
    np.testing.assert_array_equal(executed.table.context.mean_keys, bench.goldens[-1][-1].table.context.mean_keys)


def test_steps_without_queries(rng):
    """Attention alone, and steps that only store: the next step attends to all of them."""
    bench = LayerRun("tiny", rng, hamming_threshold=3, max_resident_tokens=4)
    shape = (2, bench.config.kv_heads, bench.config.head_dim)
    keys = [bf16.encode(rng.standard_normal(shape)) for _ in range(8)]
    for k in keys[:-1]:
        bench.attend(k, bf16.encode(rng.standard_normal(shape)))
    q = bf16.encode(rng.standard_normal((2, bench.sizes.q_heads, bench.config.head_dim)))
    bench.attend(keys[-1], bf16.encode(rng.standard_normal(shape)), q)
    executed = golden_machine(bench)
    for program in bench.commands():
        executed.run(program)
    check_outputs(bench)


def test_refused_command(rng):
    bench = LayerRun("tiny", rng, hamming_threshold=3, max_resident_tokens=4)
    with pytest.raises(MachineFault, match=r"^OPEN was refused: CONTEXT$"):
        golden_machine(bench).run([Command("OPEN", {"context": 9})])
    with pytest.raises(ValueError, match=r"^image must end at byte"):
        golden_machine(bench).put({bench.words: b"12"})
