"""Programs of decoder layers on the fast interpreter: all of its state equals that of the golden one."""

from dataclasses import replace

import numpy as np
import pytest

from compiler.golden_machine import sized
from golden import bf16
from sim.bench.layer_run import LayerRun, frames
from tests.compiler.machine.machines import Pair, new_tokens

STEPS = {"tiny": 3, "small": 1}


def pair(bench: LayerRun) -> Pair:
    """Both interpreters on copies of the memories of a run."""
    c, vectors, memory = bench.config, bench.layer.vectors, bench.core.processor.matrix_unit.memory

    return Pair(
        bytes(bench.run_on.device), host=bytes(bench.run_on.host), inputs=c.dpe_inputs, weight_rows=memory.weight_rows,
        activation_rows=memory.activation_rows, slots=c.dpe_accumulators, vector_rows=c.vpe_rows,
        head_words=c.head_dim // c.dpe_inputs, align_bits=c.align_bits,
        programs={at: sized(program, at in vectors.varying) for at, program in vectors.instructions.items()},
    )  # fmt: skip


@pytest.mark.parametrize("preset", STEPS)
def test_steps_of_a_layer(rng, preset):
    """Steps with past tokens on pages of random contents, clusters, mean keys, and slots for the new tokens."""
    bench = LayerRun(preset, rng, hamming_threshold=7, max_resident_tokens=64)
    c, n, tokens = bench.config, bench.config.dpe_inputs, bench.sizes.tokens
    words, past = c.head_dim // n, 3 * c.page_tokens - 1
    pages = [bench.region.allocate(2 * words * c.page_tokens) for _ in range(4 * c.kv_heads)]
    mean_keys = bench.region.allocate(c.max_clusters * c.kv_heads * words)
    bench.contexts[:] = [replace(context, mean_keys_word=mean_keys) for context in bench.contexts]
    for x in frames(bench, STEPS[preset], tokens):
        bench.run_step(x)
    machines = pair(bench)
    for address in (*pages, mean_keys):
        content = bf16.encode(rng.standard_normal(2 * words * c.page_tokens * n)).tobytes()
        for machine in (machines.golden, machines.fast):
            machine.memories[0][2 * n * address : 2 * n * address + len(content)] = content
    heads = [pages[h :: c.kv_heads] for h in range(c.kv_heads)]
    machines.set("mean_keys_word", mean_keys)
    machines.set("clusters", 13)
    full = [(c.page_tokens,), (c.page_tokens,), (past % c.page_tokens,)]
    machines.set("pages", [[(page, *count) for page, count in zip(own, full, strict=False)] for own in heads])
    executed = set()
    for step, program in enumerate(bench.commands()):
        slots = [own[3] + 2 * words * t for t in range(tokens) for own in heads]
        machines.set("new_tokens", new_tokens(rng, tokens, c.kv_heads, slots))
        for number, command in enumerate(program):
            assert not machines.execute(command)
            executed.add(command.name)
            if preset == "tiny":
                machines.check((step, number, command))
        machines.check(step)
    assert {"COPY", "STORE", "LOAD", "GATHER", "MULTIPLY", "VECTOR", "MEANS"} <= executed
    address, size = bench.layer.out * 2 * n, tokens * bench.sizes.hidden
    output = np.frombuffer(machines.fast.memories[0][address : address + 2 * size], np.uint16)
    assert len(np.unique(output)) > size // 4  # the layer computed something
