"""Layers of real sizes at `paper`: compiled programs on the golden interpreter equal the golden layer bit for bit."""

from dataclasses import replace

import numpy as np
import pytest

from compiler.layer import LayerSizes
from golden.core_interpreter import CoreInterpreter
from hw.lxe.microcode import Source
from sim.bench.layer_run import LayerRun, frames

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


def interpreter(bench: LayerRun) -> CoreInterpreter:
    """Golden interpreter on the memories of a run, without past tokens."""
    c, layer = bench.config, bench.layer
    memory = bench.core.processor.matrix_unit.memory

    def build(address):
        def program(beats, tail):
            size = {"beats": beats, "tail": tail} if address in layer.vectors.varying else {}
            inputs = (Source.STREAM, Source.MEMORY)
            return [replace(op, **size) if op.a in inputs else op for op in layer.vectors.instructions[address]]

        return program

    machine = CoreInterpreter(
        [bench.run_on.device, bench.run_on.host], inputs=c.dpe_inputs, weight_rows=memory.weight_rows,
        activation_rows=memory.activation_rows, slots=c.dpe_accumulators, vector_rows=c.vpe_rows,
        head_words=c.head_dim // c.dpe_inputs, align_bits=c.align_bits,
        programs={address: build(address) for address in layer.vectors.instructions},
    )  # fmt: skip
    machine.pages = [[] for _ in range(c.kv_heads)]
    return machine


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks) for name, (_, marks) in SIZES.items()])
def test_first_step(name, rng):
    """A step without past tokens. The clusters of its own tokens are scored, and all its keys are attended."""
    sizes = SIZES[name][0]
    bench = LayerRun(
        "paper", rng, sizes=sizes, hamming_threshold=7, max_resident_tokens=960, host_pages=64, device_bytes=1 << 30
    )
    trace = bench.step(next(frames(bench, 1, sizes.tokens)))
    machine = interpreter(bench)
    machine.clusters = len(bench.golden.table.clusters.counts)
    for program in bench.commands():
        for command in program:
            machine.execute(command)
    address, output = bench.outputs[-1]
    result = np.frombuffer(bench.run_on.device[address : address + output.nbytes], "<u2").reshape(output.shape)
    np.testing.assert_array_equal(result, trace.output)
    print(f"{name}: {len(bench.programs[bench.steps[0]])} commands, {machine.products} products of tiles")
