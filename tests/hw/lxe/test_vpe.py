"""The vector engine's Verilog against the golden one, bit for bit, and against its cycle formula."""

import itertools
from functools import cache

import numpy as np
import pytest

from compiler import vector_programs as programs
from golden.vpe import VectorEngine
from hw.config import Config
from hw.emit import to_rtlil
from hw.lxe.microcode import REDUCTIONS, Function, Instruction, Post, Pre, Source, Times
from hw.lxe.vpe import VPE
from hw.lxe.vpe_lane import STAGES
from sim.bench.run import InTurns
from tests.hw.lxe.vpe_cases import beats, close_pairs, edge_beats, numbers, run, tied_factors

COUNT = 3  # beats of an instruction in `operations`


@cache  # a unit is elaborated once
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


def stream_beats(program):
    return sum(op.rows * op.beats for op in program if op.a is Source.STREAM)


def test_every_operation(rng, seed):
    unit = preset("tiny")
    program = operations(unit.lanes, unit.rows)
    check(unit, program, edge_beats(rng, stream_beats(program), unit.lanes), stall=InTurns(0.3), seed=seed)


def ways():
    """Every choice of every step on one beat, on several, in one row and in several; and on parts of beats."""
    steps = [{name: choice, "b": Source.SCALAR} for name, kind in (("pre", Pre), ("times", Times)) for choice in kind]
    steps += [{"function": function, "c_immediate": True, "immediate": 0x3FC00000} for function in Function]
    steps += [{"post": post} for post in Post if post is not Post.ROTATE]
    steps += [{"post": post, "to_scalar": n} for n, post in enumerate((Post.SUM, Post.MAX, Post.LAST, Post.SUM), 4)]
    shapes = ((1, 1), (3, 1), (1, 3), (2, 2))
    program = [Instruction(**step, beats=n, rows=rows, to_stream=True) for step in steps for n, rows in shapes]
    program += [Instruction(post=post, tail=1, to_stream=True) for post in REDUCTIONS]
    for rounding in (False, True):
        program += [
            Instruction(a=Source.IMMEDIATE, immediate=0x3F818001, round=rounding, to_memory=True),
            Instruction(a=Source.MEMORY, to_stream=True, wait=True),
        ]
    rotate = {"times": Times.B, "b": Source.SCALAR, "post": Post.ROTATE, "to_stream": True}
    return program + [Instruction(**rotate, beats=2, rows=rows) for rows in (1, 3)]


PAUSES = {
    "none": {},
    "source": {"code": 0.3, "i": 0.3},
    "sink": {"o": 0.9},  # long enough to fill the later stages
    "both": {"code": 0.3, "i": 0.3, "o": 0.3},
}


@pytest.mark.parametrize("pauses", PAUSES)
def test_every_choice_in_every_way(pauses, rng, seed):
    unit = preset("tiny")
    program = ways()
    stream = edge_beats(rng, stream_beats(program), unit.lanes)
    check(unit, program, stream, stall=PAUSES[pauses], seed=seed)


def joined(cases):
    """The programs one after the other, and their streams."""
    return [op for program, _ in cases for op in program], np.concatenate([stream for _, stream in cases])


def every_program(unit, rng, longest):
    """Each program with lengths from one element to `longest` beats: (program, its stream)."""
    lanes = unit.lanes
    cases = []
    for n in (1, lanes - 1, lanes, lanes + 1, longest * lanes - 1, longest * lanes):
        scores, norm = beats(numbers(rng, n, 40), lanes), min(n, longest // 2 * lanes)
        factor_and_vector = [beats(numbers(rng, (1, size)), lanes) for size in (1, norm) * 2]
        cases += [
            (programs.softmax(n, lanes, 64), scores),
            (programs.exponentials(n, lanes, 128), scores),
            (programs.long_exponentials(n, lanes, 128), np.concatenate([scores, scores])),
            (programs.divide_by_sum(n, lanes), beats(numbers(rng, (2, n)), lanes)),
            (programs.rms_factor(n, lanes), beats(numbers(rng, (1, n)), lanes)),
            (
                programs.rms_scale(norm, lanes, 2),
                np.concatenate([beats(numbers(rng, (1, norm)), lanes), *factor_and_vector]),
            ),
            (programs.key_norms(n, lanes, 3), beats(numbers(rng, (3, n)), lanes)),
            (programs.running_mean(n, lanes, 37, 3), beats(numbers(rng, (4, n)), lanes)),
            (programs.gated(n, lanes), beats(numbers(rng, (2, n)), lanes)),
        ]
    for bits in sorted({1, 31, 32, min(lanes, 32)}):
        cases.append((programs.hash_bits(bits, lanes, 5), beats(numbers(rng, (5, bits)), lanes)))
    for d in (2 * lanes, 4 * lanes):
        cases.append((programs.rope(d, lanes, 3), beats(numbers(rng, (4, d)), lanes)))
    return cases


def in_every_lane(rng, codes, lanes):
    """Beats in which every lane meets all `codes`, BF16, each in an order of its own."""
    return np.stack([rng.permutation(codes) for _ in range(lanes)], axis=1).astype(np.uint32) << 16


def spread(low, high, signs=(0, 1)):
    """All BF16 numbers with exponent fields `low` .. `high` - 1."""
    return np.concatenate([np.arange(low << 7, high << 7) | sign << 15 for sign in signs])


def test_functions_in_every_lane(rng):
    """Every entry of every table, the ends of the exponents, and divisions, in every lane."""
    unit = preset("tiny")
    ends = np.array(
        [sign << 15 | e << 7 | f for sign in (0, 1) for e in (0, 1, 2, 252, 253, 254, 255) for f in (0, 1, 127)]
    )
    steps = np.exp2(rng.uniform(-1, 15.2, (1500, unit.lanes))).astype(np.float32).view(np.uint32)
    cases = [
        (Function.EXP, steps),
        (Function.RECIPROCAL, in_every_lane(rng, np.r_[spread(124, 127), ends], unit.lanes)),
        (Function.RSQRT, in_every_lane(rng, np.r_[spread(126, 129, [0]), ends], unit.lanes)),
        (Function.SILU, in_every_lane(rng, np.r_[spread(118, 131, [0]), spread(118, 135, [1])], unit.lanes)),
    ]
    program = [Instruction(function=function, beats=len(part), to_stream=True) for function, part in cases]
    for divisor in rng.integers(0x3F800000, 0x40800000, 6):
        cases.append((Function.DIVIDE, rng.integers(0x3F800000, 0x40800000, (15, unit.lanes))))
        step = {"c_immediate": True, "immediate": int(divisor)}
        program.append(Instruction(function=Function.DIVIDE, **step, beats=15, to_stream=True))
    check(unit, program, np.concatenate([part for _, part in cases]).astype(np.uint32))


def test_hard_sums_products_and_comparisons(rng):
    """Numbers that cancel, that are far apart, that are ties to round, in each adder, multiplier and comparison."""
    unit = preset("tiny")
    lanes, half = unit.lanes, unit.rows // 2
    program, stream = [], []
    for _ in range(16):  # first adder, multiplier: pairs from memory
        pairs = close_pairs(rng, half, lanes)
        few = pairs & np.where(rng.random(pairs.shape) < 0.5, 0xFFFFF000, 0xFFFFFFFF).astype(np.uint32)
        stream += [pairs[:, 0], few[:, 1]]
        program.append(Instruction(to_memory=True, beats=2 * half))
        step = {"a": Source.MEMORY, "b": Source.MEMORY, "b_row": half, "beats": half, "to_stream": True}
        program += [Instruction(pre=pre, wait=pre is Pre.A, **step) for pre in Pre]
        program += [Instruction(times=Times.B, round=rounding, **step) for rounding in (False, True)]
    # exact ties of products, up and down, below 2 and above
    for _ in range(8):
        stream += list(tied_factors(rng, half, lanes))
        program.append(Instruction(to_memory=True, beats=2 * half))
        step = {"a": Source.MEMORY, "b": Source.MEMORY, "b_row": half, "beats": half, "to_stream": True}
        program.append(Instruction(times=Times.B, wait=True, **step))
    # second adder: x - y and y + x
    pairs = close_pairs(rng, 400, lanes)
    stream += [np.full((2, lanes), 0x3F800000), pairs.reshape(-1, lanes)]
    program.append(Instruction(to_memory=True, beats=2))
    turn = {"b": Source.MEMORY, "times": Times.B, "post": Post.ROTATE, "beats": 2}
    program.append(Instruction(**turn, rows=400, wait=True, to_stream=True))
    # largest of a pair in one lane, far above those of the others
    alone = np.where(
        np.arange(200)[:, None, None] % lanes == np.arange(lanes), close_pairs(rng, 200, lanes), 0xFF7FFFFF
    )
    stream.append(alone.reshape(-1, lanes))
    program.append(Instruction(post=Post.MAX, beats=2, rows=200, to_stream=True))
    # lanes outside a sum or a maximum do not change even -0 or the smallest value
    for post, least in ((Post.SUM, 0x80000000), (Post.MAX, 0xFF800000)):
        stream.append(np.where(np.arange(lanes) < np.arange(1, lanes)[:, None], least, 0x40000000))
        program += [Instruction(post=post, tail=tail, to_stream=True) for tail in range(1, lanes)]
    # a tail of all lanes or more is all lanes
    for post in (Post.SUM, Post.MAX, Post.PACK):
        tails = [1 << k for k in range(16) if 1 << k >= lanes]
        stream.append(rng.integers(0x3F800000, 0x40000000, (len(tails), lanes)))
        program += [Instruction(post=post, tail=tail, to_stream=True) for tail in tails]
    # ties of the rounding to BF16, but for one bit, with carries into the exponent
    ties = rng.integers(0x3F00, 0x4100, (128, lanes)) | rng.choice([0, 0x7F], (128, lanes))
    ties = ties << 16 | 0x8000 | rng.choice([0, *(1 << np.arange(15))], (128, lanes))
    ties[::4] -= 0x8000
    for function in (Function.NONE, Function.RECIPROCAL):
        stream.append(ties)
        program.append(Instruction(function=function, beats=128, round=True, to_stream=True))
    check(unit, program, np.concatenate(stream).astype(np.uint32))


def test_memory_as_soon_as_it_may_be_read(rng):
    """A row is read in the cycle in which it is written, by both operands."""
    unit = preset("tiny")
    program = []
    for row in range(40):
        where = {"a_row": row % unit.rows, "b_row": row % unit.rows, "beats": STAGES}
        program += [
            Instruction(to_memory=True, to_row=row % unit.rows, beats=STAGES),
            Instruction(a=Source.MEMORY, to_stream=True, **where),
            Instruction(to_memory=True, to_row=row % unit.rows, beats=STAGES),
            Instruction(a=Source.IMMEDIATE, pre=Pre.ADD, b=Source.MEMORY, to_stream=True, **where),
        ]
    stream = rng.integers(0x3F800000, 0xBF800000, (stream_beats(program), unit.lanes), np.uint32)
    check(unit, program, stream)


def test_every_cycle_is_accounted_for(rng, seed):
    unit = preset("tiny")
    # the last instructions fill the output queue: they are issued five times faster than results leave
    row = [Instruction(pre=Pre.ADD, immediate=0x3F800000, to_stream=True)] * 200, edge_beats(rng, 200, unit.lanes)
    program, stream = joined([*every_program(unit, rng, 2), row])
    stall = {"code": 0.3, "i": 0.3, "o": 0.9}
    record = check(unit, program, stream, stall=stall, seed=seed, record_ports=True)
    cycles = [record.status[f"stat_{name}"] for name in ("issued", "starved", "blocked", "waiting", "idle")]
    assert all(cycles)
    # the last two cycles come too late to be read
    assert sum(cycles) == (record.ports["rst"] == 0).sum() - 2


def test_every_program_takes_the_cycles_of_the_formula(rng):
    """Cycles from the first input beat to the last output beat without stalls."""
    unit = preset("tiny")
    program, stream = joined(every_program(unit, rng, unit.rows))
    record = check(unit, program, stream)
    assert program[0].a is Source.STREAM and program[-1].post is Post.ROTATE
    assert record.cycles["o"][-1] - record.cycles["i"][0] + 1 == unit.cycles(program) + unit.latency
    assert record.status["stat_starved"] == record.status["stat_blocked"] == 0


def test_every_program_under_back_pressure(rng, seed):
    unit = preset("tiny")
    program, stream = joined(every_program(unit, rng, unit.rows))
    record = check(unit, program, stream, stall=InTurns(0.5), seed=seed)
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
    check(unit, program, beats(numbers(rng, (3, 30)), unit.lanes), stall=0.2, reset_after=[20, 80, 35])


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["small", "paper"])
def test_every_program_at_larger_sizes(rng, seed, name):
    unit = preset(name)
    program, stream = joined(every_program(unit, rng, unit.rows))
    program += operations(unit.lanes, unit.rows)
    stream = np.concatenate([stream, edge_beats(rng, stream_beats(program) - len(stream), unit.lanes)])
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
        ({"lanes": 1, "rows": 8}, "lanes must be a power of two, at least 2, got 1"),
        ({"lanes": 6, "rows": 8}, "lanes must be a power of two, at least 2, got 6"),
        ({"lanes": 4, "rows": 4}, "rows must be a power of two, at least 8, got 4"),
    ],
)
def test_bad_parameters(arguments, message):
    with pytest.raises(ValueError, match=message):
        VPE(**arguments)
