"""VECTOR commands on the fast interpreter compared with the golden one: random programs, and the real ones."""

import numpy as np
import pytest

from compiler import vector_programs as programs
from golden.bf16 import FP32, encode
from golden.exp import FARTHEST
from golden.vpe import VectorEngine
from hw.lxe.microcode import Function, Instruction, Source, Times
from tests.compiler.machine.machines import Command, Pair, fp32_codes, instruction

WORDS = 4096
VECTOR_ROWS = 16


def pair(rng, n=4):
    memory = fp32_codes(rng, WORDS * n // 2).tobytes()
    return Pair(memory, inputs=n, weight_rows=2 * n, activation_rows=4, slots=4, vector_rows=VECTOR_ROWS, head_words=1,
                programs={})  # fmt: skip


@pytest.mark.parametrize("n", [2, 4, 16])
def test_random_programs(rng, n):
    """Programs of random instructions; the vector memory and the scalars persist from command to command."""
    machines, messages = pair(rng, n), set()
    for number in range(150):
        ops = [instruction(rng, VECTOR_ROWS, 24, stream=bool(rng.integers(2))) for _ in range(rng.integers(1, 6))]
        machines.golden.programs[number] = lambda beats, tail, ops=ops: ops
        beats = sum(op.rows * op.beats for op in ops if op.a is Source.STREAM)
        if rng.random() < 0.05:
            beats = max(beats + int(rng.integers(-1, 2)), 1)
        split = int(rng.integers(0, beats)) if beats > 1 else 0
        fields = {"code": number, "repeat": int(rng.integers(1, 4)), "extra": 1, "a_beats": beats - split,
                  "a": int(rng.integers(0, 1000)), "a_stride": int(rng.integers(0, 40)), "a_wide": number % 2,
                  "b_used": int(split > 0), "b_beats": split, "b": int(rng.integers(0, 1000)),
                  "b_stride": int(rng.integers(0, 40)), "b_wide": number // 2 % 2, "out": int(rng.integers(0, 1500)),
                  "out_stride": int(rng.integers(0, 40)), "out_beats": 1, "out_wide": number // 4 % 2,
                  "destination": int(rng.integers(0, 2) * 2)}  # fmt: skip
        messages.add(machines.execute(Command("VECTOR", fields)).split(" ")[0])
        machines.check((number, ops))
    assert messages == {"", "stream", "elements"} if n == 16 else {"", "stream"} <= messages


def test_all_bf16_arguments_of_functions(rng):
    """Every BF16 number through the functions that take one, and the steps of the exponential."""
    n = 16
    for function in (Function.RECIPROCAL, Function.RSQRT, Function.SILU, Function.EXP):
        codes = np.arange(1 << 16).astype(np.uint32) << 16
        if function is Function.EXP:
            codes = np.concatenate([codes, encode(np.arange(-3, FARTHEST + 300), FP32)])
        codes = np.resize(codes, -(-len(codes) // n) * n)
        machines = Pair(codes.tobytes() + bytes(2 * codes.nbytes), inputs=n, weight_rows=n, activation_rows=1, slots=1,
                        vector_rows=4, head_words=1, programs={})  # fmt: skip
        beats = len(codes) // n
        machines.fast.programs = {0: lambda beats, tail, f=function: [
            Instruction(function=f, to_stream=True, beats=beats)
        ]}  # fmt: skip
        fields = {"repeat": 1, "extra": len(codes), "a_wide": 1, "out": 2 * beats, "out_wide": 1}
        machines.fast.execute(Command("VECTOR", fields))
        result = np.frombuffer(machines.fast.memories[0], np.uint32)[len(codes) : 2 * len(codes)]
        expected = VectorEngine(n, 4).run(machines.fast.programs[0](beats, 0), codes.reshape(-1, n)).reshape(-1)
        np.testing.assert_array_equal(result, expected)
        assert (result != codes).any()


def test_products_around_the_smallest_normal_number(rng):
    """A product is rounded to 24 bits before it is flushed: 2**-126 (1 - 2**-46) is not 0, 2**-126 (1 - 2**-24) is."""
    n, scale = 4, 2.0**-63
    x = encode(np.array([1 + 2.0**-23, 1 - 2.0**-24, 1 + 2.0**-23, -1 + 2.0**-24]) * scale, FP32)
    y = encode(np.array([1 - 2.0**-23, 1.0, 1.0, 1.0]) * scale, FP32)
    machines = pair(rng, n)
    machines.golden.programs[0] = lambda beats, tail: [
        Instruction(to_memory=True),
        Instruction(b=Source.MEMORY, times=Times.B, to_stream=True),
    ]
    for machine in (machines.golden, machines.fast):
        machine.memories[0][: 8 * n] = np.concatenate([x, y]).tobytes()
    fields = {"repeat": 1, "extra": 2 * n, "a_wide": 1, "out": 40, "out_wide": 1, "out_beats": 1}
    assert not machines.execute(Command("VECTOR", fields))
    machines.check()
    result = np.frombuffer(machines.fast.memories[0], np.uint32)[20 * n : 21 * n]
    assert result.tolist() == [0x00800000, 0, 0x00800001, 0x80000000]


@pytest.mark.parametrize("elements", [3, 16, 29, 64])
def test_programs_of_the_compiler(rng, elements):
    """Rows of every kernel: growing lengths, rows read twice, padding, and weights that an earlier command leaves."""
    n = 4
    machines, whole = pair(rng, n), -(-elements // n) * n
    build = {
        1: lambda beats, tail: programs.softmax(beats * n - (-tail % n), n, 8),
        2: lambda beats, tail: programs.exponentials(beats * n - (-tail % n), n, 8),
        3: lambda beats, tail: programs.long_exponentials(beats * n - (-tail % n), n, 8),
        4: lambda beats, tail: programs.divide_by_sum(beats * n - (-tail % n), n),
        5: lambda beats, tail: programs.rms_factor(whole, n),
        6: lambda beats, tail: programs.rms_scale(16, n)[:1],
        7: lambda beats, tail: programs.rms_scale(16, n)[1:],
        8: lambda beats, tail: programs.rope(8, n, 3),
        9: lambda beats, tail: programs.gated(16, n),
        10: lambda beats, tail: programs.residual(16, n),
        11: lambda beats, tail: programs.running_mean(16, n, 3, 2),
        12: lambda beats, tail: programs.hash_bits(min(elements, 32), n),
        13: lambda beats, tail: programs.key_norms(16, n, 2),
    }
    machines.golden.programs.update(build)
    beats = whole // n
    rows = {"repeat": 5, "a": 7, "a_stride": 40, "out": 900, "out_stride": 33}
    by_length = {**rows, "extra": elements, "pad": 6}
    commands = [
        {**by_length, "code": 1, "a_wide": 1, "group": 2},
        {**by_length, "code": 1, "a_wide": 1, "group": 2, "fit": 2},
        {**by_length, "code": 1, "a_wide": 1, "group": 2, "fit": 1},
        {**by_length, "code": 2, "out": 7, "out_stride": 40},
        {**by_length, "code": 2, "out_wide": 1},
        {**by_length, "code": 3, "a_again": 1, "a_wide": 1, "group": 1},
        {**by_length, "code": 4, "a_again": 1},
        {**by_length, "code": 2, "extra": elements - 3, "length": 1},
        {**rows, "code": 5, "extra": 1, "a_beats": beats, "out_beats": 1, "out_wide": 1},
        {"code": 6, "repeat": 1, "a": 300, "a_beats": 4, "extra": 1, "destination": 2},
        {**rows, "code": 7, "extra": 1, "a": 900, "a_stride": 2, "a_beats": 1, "a_wide": 1, "b": 50, "b_stride": 4,
         "b_beats": 4, "b_used": 1, "out_beats": 4},
        {**rows, "code": 8, "extra": 1, "a_beats": 2, "a_wide": 1, "b": 500, "b_stride": 12, "b_beats": 6, "b_wide": 1,
         "b_used": 1, "out_beats": 6},
        *({**rows, "code": code, "extra": 1, "a_beats": 4, "a_wide": 1, "b": 500, "b_stride": 8, "b_beats": 4,
           "b_wide": 1, "b_used": 1, "out_beats": 4} for code in (9, 10)),
        {**rows, "code": 11, "extra": 1, "a_beats": 12, "out_beats": 4},
        {**rows, "code": 12, "extra": 1, "a_beats": -(-min(elements, 32) // n), "destination": 1},
        {**rows, "code": 13, "extra": 1, "a_beats": 8, "out_beats": 2},
    ]  # fmt: skip
    machines.set("clusters", 3)
    machines.set("new_tokens", list(range(8)))
    for fields in commands:
        assert not machines.execute(Command("VECTOR", fields))
        machines.check(fields)
    assert machines.fast.piece == [0, 1, 2, 3, 4]


def test_rows_that_depend_on_each_other(rng):
    """The output of a repetition is input of the next one, and the vector memory carries a sum from row to row."""
    n = 4
    machines = pair(rng, n)
    machines.golden.programs[1] = lambda beats, tail: programs.residual(4 * n, n)
    accumulate = programs.running_mean(2 * n, n, 1, 1)[1]
    output = Instruction(a=Source.MEMORY, beats=2, to_stream=True)
    machines.golden.programs[2] = lambda beats, tail: [accumulate, output]
    for fields in (
        {"code": 1, "repeat": 20, "a": 0, "a_stride": 4, "a_beats": 4, "b": 100, "b_stride": 4, "b_beats": 4,
         "b_used": 1, "out": 2, "out_stride": 4, "out_beats": 4, "extra": 1},
        {"code": 2, "repeat": 20, "a": 0, "a_stride": 2, "a_beats": 2, "out": 500, "out_stride": 2, "out_beats": 2,
         "extra": 1},
    ):  # fmt: skip
        assert not machines.execute(Command("VECTOR", fields))
        machines.check(fields)


def test_rows_outside_memory_and_beyond_the_padding(rng):
    """The same errors as the golden interpreter, after the same rows."""
    machines = pair(rng)
    machines.golden.programs[1] = lambda beats, tail: programs.exponentials(beats * 4 - (-tail % 4), 4, 8)
    outside = {"code": 1, "repeat": 3, "a": WORDS - 5, "a_stride": 4, "extra": 8, "out": 0, "out_stride": 2}
    assert "reshape" in machines.execute(Command("VECTOR", outside))
    machines.check(outside)
    extends = {"code": 1, "repeat": 3, "a_stride": 4, "extra": 8, "out": WORDS - 4, "out_stride": 2}
    assert not machines.execute(Command("VECTOR", extends))
    machines.check(extends)
    assert len(machines.fast.memories[0]) == 8 * (WORDS + 2)
    beyond = {"code": 1, "repeat": 9, "a": 0, "a_stride": 4, "extra": 8, "out": 100, "out_stride": 5, "group": 4}
    assert "negative" in machines.execute(Command("VECTOR", beyond))
    machines.check(beyond)
