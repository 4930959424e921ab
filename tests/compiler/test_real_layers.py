"""Layers of real sizes at `paper`: compiled programs on the golden machine equal the golden layer bit for bit."""

import pytest

from compiler.layer import LayerSizes
from golden import bf16
from sim.bench.layer_run import LayerRun, frames
from tests.compiler.machines import check_outputs, golden_machine

SIZES = {  # Llama-3-8B, Llama-3-70B without most of its feed-forward width, heads of 80 and 96 elements, Qwen2
    "llama 8b": (LayerSizes(hidden=4096, ffn=14336, tokens=2, keys=1088, q_heads=32), pytest.mark.heavy),
    "hidden 8192": (LayerSizes(hidden=8192, ffn=1024, tokens=2, keys=64, q_heads=64), pytest.mark.heavy),
    "ffn 28672": (LayerSizes(hidden=64, ffn=28672, tokens=12, keys=64, q_heads=8), pytest.mark.heavy),
    "head 80": (LayerSizes(hidden=64, ffn=64, tokens=2, keys=64, q_heads=8, head=80), ()),
    "biases": (
        LayerSizes(hidden=64, ffn=64, tokens=2, keys=64, q_heads=8, head=64, qkv_bias=True, norm_epsilon=1e-3),
        (),
    ),
    "head 96": (LayerSizes(hidden=128, ffn=64, tokens=3, keys=64, q_heads=16, head=96), ()),
    "128 query heads": (LayerSizes(hidden=64, ffn=64, tokens=5, keys=64, q_heads=128), pytest.mark.heavy),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks) for name, (_, marks) in SIZES.items()])
def test_step_after_past_tokens(name, rng):
    """A step of the largest number of tokens after 40 past tokens, and a step of one token."""
    sizes = SIZES[name][0]
    bench = LayerRun(
        "paper", rng, sizes=sizes, hamming_threshold=7, max_resident_tokens=20, staging_head_pages=512, host_pages=64,
        device_bytes=1 << 30,
    )  # fmt: skip
    shape = 40, bench.config.kv_heads, bench.config.head_dim
    bench.preload(*(bf16.encode(rng.standard_normal(shape)) for _ in range(2)))
    traces = [bench.step(next(frames(bench, 1, tokens))) for tokens in (sizes.tokens, 1)]
    machine = golden_machine(bench)
    retrieved = [machine.run(program) for program in bench.commands()]
    check_outputs(bench)
    assert all(any(len(past) > 0 for past in trace.attended) for trace in traces)  # some KV head of each step
    assert all(sum(retrieved[step].fetched) for step in bench.steps)
    print(f"{name}: {len(bench.programs[bench.steps[0]])} commands, {machine.leader.products} products of tiles")
