"""The vector engine's Verilog against the golden one, bit for bit, and against its cycle formula."""

import itertools

import numpy as np
import pytest

from golden.vpe import VectorEngine
from hw.config import Config
from hw.emit import to_rtlil
from hw.lxe import programs
from hw.lxe.microcode import Function, Instruction, Post, Pre, Source, Times
from hw.lxe.vpe import VPE
from tests.hw.lxe.vpe_cases import beats, edge_beats, numbers, run

COUNT = 3  # beats of an instruction in `operations`


def preset(name):
    return VPE.from_config(Config.preset(name))


def golden(unit, program, stream):
    return VectorEngine(unit.lanes, unit.rows).run(program, stream)


def check(unit, program, stream, **options):
    record = run(unit, program, stream, **options)
    np.testing.assert_array_equal(record.outputs["o"], golden(unit, program, stream))
    assert record.status["stat_instructions"] == len(program)
    return record


def operations(lanes, rows):
    """Every choice of every step, every source and destination: instructions that each take `COUNT` beats."""
    program = [Instruction(to_memory=True, to_row=4, beats=COUNT)]
    for pre, times in itertools.product(Pre, Times):
        program.append(
            Instruction(pre=pre, times=times, b=Source.MEMORY, b_row=4, c=1, beats=COUNT, to_stream=True, wait=True)
        )
        program.append(
            Instruction(a=Source.MEMORY, a_row=4, post=Post.LAST, to_scalar=1, rows=1, beats=1, to_stream=True)
        )
    for function, rounding in itertools.product(Function, (False, True)):
        step = {"function": function, "round": rounding, "beats": COUNT, "to_stream": True}
        program += [
            Instruction(**step, c_immediate=True, immediate=0x40490FDB),
            Instruction(**step, times=Times.C, c_immediate=True, immediate=0xC2B17218),
        ]
    for post, tail in itertools.product((Post.SUM, Post.MAX, Post.LAST), (0, 1, lanes - 1)):
        step = {"post": post, "tail": tail, "to_scalar": 5, "to_stream": True}
        program += [
            Instruction(**step, beats=COUNT, to_memory=True, to_row=rows - 2),
            Instruction(**step, rows=COUNT, round=True),
            Instruction(pre=Pre.ADD, a=Source.SCALAR, a_row=5, immediate=0x3F800000, to_stream=True, wait=True),
            Instruction(a=Source.MEMORY, a_row=rows - 2, beats=COUNT, to_stream=True),
        ]
    for tail in (0, 1, lanes - 1):
        program.append(Instruction(post=Post.PACK, rows=COUNT, tail=min(tail or 32, 32) % lanes, to_stream=True))
    program += [
        Instruction(a=Source.IMMEDIATE, immediate=0x7FA00001, to_stream=True),
        Instruction(pre=Pre.SUB, b=Source.SCALAR, b_row=5, beats=COUNT, to_stream=True),
        Instruction(times=Times.B, b=Source.MEMORY, b_row=4, post=Post.ROTATE, beats=2, rows=2, to_stream=True),
        Instruction(
            a=Source.MEMORY,
            a_row=4,
            b=Source.MEMORY,
            b_row=4,
            times=Times.B,
            post=Post.ROTATE,
            beats=2,
            to_memory=True,
            to_row=1,
        ),
        Instruction(a=Source.MEMORY, beats=8, to_stream=True, wait=True),
    ]
    return program


def taken(program):
    return sum(op.rows * op.beats for op in program if op.a is Source.STREAM)


def test_every_operation(rng, seed):
    unit = preset("tiny")
    program = operations(unit.lanes, unit.rows)
    check(unit, program, edge_beats(rng, taken(program), unit.lanes), stall=0.3, seed=seed)


def joined(cases):
    """The programs one after the other, and their streams."""
    return [op for program, _ in cases for op in program], np.concatenate([stream for _, stream in cases])


def every_program(unit, rng, longest):
    """Each program with lengths from one element to `longest` beats: (program, its stream)."""
    lanes = unit.lanes
    found = []
    for n in (1, lanes - 1, lanes, lanes + 1, longest * lanes - 1, longest * lanes):
        scores, norm = beats(numbers(rng, n, 40), lanes), min(n, longest // 2 * lanes)
        found += [
            (programs.softmax(n, lanes, 64), scores),
            (programs.exponentials(n, lanes, 128), scores),
            (programs.rms_norm(norm, lanes, 2), beats(numbers(rng, (3, norm)), lanes)),
            (programs.key_norms(n, lanes, 3), beats(numbers(rng, (3, n)), lanes)),
            (programs.running_mean(n, lanes, 37, 3), beats(numbers(rng, (4, n)), lanes)),
            (programs.gated(n, lanes), beats(numbers(rng, (2, n)), lanes)),
        ]
    for bits in sorted({1, 31, 32, min(lanes, 32)}):
        found.append((programs.hash_bits(bits, lanes, 5), beats(numbers(rng, (5, bits)), lanes)))
    for d in (2 * lanes, 4 * lanes):
        found.append((programs.rope(d, lanes, 3), beats(numbers(rng, (4, d)), lanes)))
    return found


def test_every_program_takes_the_cycles_of_the_formula(rng):
    """From the first beat in to the last beat out, nobody stalling."""
    unit = preset("tiny")
    program, stream = joined(every_program(unit, rng, unit.rows))
    record = check(unit, program, stream)
    assert program[0].a is Source.STREAM and program[-1].post is Post.ROTATE
    assert record.cycles["o"][-1] - record.cycles["i"][0] + 1 == unit.cycles(program) + unit.latency
    assert record.status["stat_starved"] == record.status["stat_blocked"] == 0


def test_every_program_under_back_pressure(rng, seed):
    unit = preset("tiny")
    program, stream = joined(every_program(unit, rng, unit.rows))
    record = check(unit, program, stream, stall={"code": 0.1, "i": 0.2, "o": 0.7}, seed=seed)
    assert record.status["stat_starved"] > 0 and record.status["stat_blocked"] > 0


def test_one_beat_per_cycle(rng):
    """Instructions of one beat each follow each other without a gap."""
    unit = preset("tiny")
    program = [Instruction(pre=Pre.ADD, immediate=0x3F800000, to_stream=True)] * 40
    record = check(unit, program, edge_beats(rng, 40, unit.lanes))
    assert np.all(np.diff(record.cycles["i"]) == 1)
    assert np.all(record.cycles["o"] - record.cycles["i"] == unit.latency)
    assert record.status["stat_issued"] == unit.cycles(program) == 40


def test_reset_in_mid_flight(rng):
    unit = preset("tiny")
    program = programs.running_mean(30, unit.lanes, 3, 2)
    check(unit, program, beats(numbers(rng, (3, 30)), unit.lanes), reset_after=35)


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["small", "paper"])
def test_every_program_at_larger_sizes(rng, seed, name):
    unit = preset(name)
    program, stream = joined(every_program(unit, rng, unit.rows))
    program += operations(unit.lanes, unit.rows)
    stream = np.concatenate([stream, edge_beats(rng, taken(program) - len(stream), unit.lanes)])
    check(unit, program, stream, stall=0.2, seed=seed)


@pytest.mark.heavy
@pytest.mark.parametrize("function", [Function.RECIPROCAL, Function.RSQRT, Function.SILU])
def test_functions_of_every_bf16_number(function):
    unit = preset("tiny")
    stream = (np.arange(1 << 16, dtype=np.uint32) << 16).reshape(-1, unit.lanes)
    check(unit, [Instruction(function=function, beats=1 << 13, rows=2, to_stream=True)], stream)


@pytest.mark.parametrize("name", ["tiny", "small", pytest.param("paper", marks=pytest.mark.heavy)])
def test_every_preset_elaborates(name):
    unit = preset(name)
    text = to_rtlil(unit, "vpe")
    assert text.count("cell \\vpe_lane \\") == unit.lanes
    assert text.count("\nmodule \\vpe_lane\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lanes": 1, "rows": 8}, "lanes = 1: must be a power of two, at least 2"),
        ({"lanes": 6, "rows": 8}, "lanes = 6"),
        ({"lanes": 4, "rows": 4}, "rows = 4: must be a power of two, at least 8"),
    ],
)
def test_bad_parameters(arguments, message):
    with pytest.raises(ValueError, match=message):
        VPE(**arguments)
