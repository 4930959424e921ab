"""Speed of the fast interpreter and of the golden one: `python -m tests.compiler.machine.bench_machine [PRESET]`.

MULTIPLY commands are as the compiler makes them for a wide matrix: their tiles fill half of the weight memory. The rate
counts every product of a tile with an activation row as `inputs`**2 multiply-accumulates. A VECTOR command has 64 rows
of 4096 elements, or what fits the vector memory of the preset. Times are the best of some repetitions; the golden
interpreter runs a part of the work, and its rate is scaled.
"""

import os
import sys
import time

import numpy as np

from compiler import vector_programs as programs
from compiler.machine.interpreter import FastInterpreter
from golden import bf16
from golden.bf16 import FP32
from golden.core_interpreter import CoreInterpreter
from hw.config import Config
from hw.lxe.operand_memory import OperandMemory
from tests.compiler.machine.machines import Command

ROWS = 64
HEAD_DIM = 128


def seconds(machine, command, repetitions):
    """Shortest time of a command, without its first execution."""
    machine.execute(command)
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        machine.execute(command)
        times.append(time.perf_counter() - start)
    return min(times)


def machine(kind, config, size, **options):
    memory = OperandMemory.from_config(config)
    return kind(
        [bytearray(size), bytearray(64)], inputs=config.dpe_inputs, weight_rows=memory.weight_rows,
        activation_rows=memory.activation_rows, slots=config.dpe_accumulators, vector_rows=config.vpe_rows,
        head_words=config.head_dim // config.dpe_inputs, align_bits=config.align_bits, programs={}, **options,
    )  # fmt: skip


def multiply(config, rng):
    """MAC/s of the golden interpreter and of the fast one with 1 and 2 threads, for few and many vectors."""
    n, memory = config.dpe_inputs, OperandMemory.from_config(config)
    tiles = memory.weight_rows // n // 2
    weights = bf16.encode(rng.standard_normal((memory.weight_rows, n)))
    activations = bf16.encode(rng.standard_normal((memory.activation_rows, n)))
    for vectors in (1, 8, min(config.dpe_accumulators, memory.activation_rows // tiles)):
        fields = {"k_stride": 1, "m_blocks": 1, "k_blocks": tiles, "x_stride": tiles, "vectors": vectors, "first": 1,
                  "last": 1, "stride": 2, "wide": 1}  # fmt: skip
        rates = []
        for kind, options, part in ((CoreInterpreter, {}, 4), *((FastInterpreter, {"threads": t}, 1) for t in (1, 2))):
            unit = machine(kind, config, 1 << 20, **options)
            unit.weights[:], unit.activations[:] = weights, activations
            command = Command("MULTIPLY", {**fields, "k_blocks": max(tiles // part, 1)})
            macs = command.fields["k_blocks"] * vectors * n * n
            rates.append(macs / seconds(unit, command, 1 if part > 1 else 30))
        print(
            f"MULTIPLY of {tiles} tiles of {n} inputs with {vectors} vectors: golden {rates[0] / 1e6:,.2f}, "
            f"1 thread {rates[1] / 1e6:,.0f}, 2 threads {rates[2] / 1e6:,.0f} million MAC/s; "
            f"{rates[1] / rates[0]:,.0f} and {rates[2] / rates[0]:,.0f} times the golden rate"
        )


def vector(config, rng):
    """Time of VECTOR commands on `ROWS` rows."""
    n = config.dpe_inputs
    beats = min(4096 // n, config.vpe_rows)
    size, half, head = beats * n, beats // 2, min(HEAD_DIM, beats * n)
    kinds = {
        "softmax": (programs.softmax(size, n, head), {"a_beats": beats}),
        "exponentials": (programs.exponentials(size, n, head), {"a_beats": beats}),
        "RMSNorm factors": (programs.rms_factor(size, n), {"a_beats": beats, "out_beats": 1, "out_wide": 1}),
        "RMSNorm scale": (programs.rms_scale(half * n, n)[1:], {"a_beats": 1, "b_beats": half, "b_used": 1}),
        "RoPE": (programs.rope(head, n, size // head), {"a_beats": head // n, "b_beats": beats, "b_used": 1}),
        "SwiGLU": (programs.gated(size, n), {"a_beats": beats, "b_beats": beats, "b_used": 1}),
        "residual": (programs.residual(size, n), {"a_beats": beats, "b_beats": beats, "b_used": 1}),
    }
    data = bf16.encode(rng.standard_normal(4 * ROWS * size), FP32).tobytes()
    for name, (program, fields) in kinds.items():
        times = []
        for kind, rows in ((CoreInterpreter, 1), (FastInterpreter, ROWS)):
            unit = machine(kind, config, 2 * len(data))
            unit.memories[0][: len(data)] = data
            unit.programs = {0: lambda *_, program=program: program}
            command = Command("VECTOR", {
                "repeat": rows, "extra": 1, "a_stride": 2 * beats, "a_wide": 1, "b": 2 * ROWS * beats,
                "b_stride": 2 * beats, "b_wide": 1, "out": len(data) // 2 // n, "out_stride": 2 * beats, "out_beats": 1,
                **fields,
            })  # fmt: skip
            times.append(seconds(unit, command, 1 if rows == 1 else 10) / rows)
        golden, fast = (1e3 * ROWS * value for value in times)
        print(
            f"VECTOR {name}, {ROWS} rows of {size}: golden {golden:,.1f} ms, fast {fast:.2f} ms; "
            f"{golden / fast:,.0f} times the golden rate"
        )


def main(preset="paper"):
    print(f"{preset}; load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    rng = np.random.default_rng(1)
    multiply(Config.preset(preset), rng)
    vector(Config.preset(preset), rng)


if __name__ == "__main__":
    main(*sys.argv[1:2])
