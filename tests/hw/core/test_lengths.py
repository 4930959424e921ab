"""Complete MATRIX and VECTOR commands with lengths of all bits, and special cases of lengths and operand values."""

from dataclasses import replace
from itertools import product

import numpy as np

from compiler.layer import LayerSizes
from golden import bf16
from hw.config import Config
from hw.core.core import Core
from hw.core.isa import Command, Destination
from hw.lxe.microcode import Instruction
from sim.bench.axi import FixedTiming
from sim.bench.core_run import CoreRun
from sim.bench.layer_run import LayerRun
from tests.hw.core.random_commands import AFTER, Author

QUICK = {"device": FixedTiming(latency=4)}


def author(rng):
    return Author(LayerRun("tiny", rng, hamming_threshold=4, max_resident_tokens=64, scattered=True, limit=90_000))


def ran(by, program, seed):
    """Runs a program, and compares."""
    for first in range(0, len(program), 100):
        by.bench.run([*program[first : first + 100], Command("END")])
    record = by.bench.check(seed=seed, timing=QUICK)
    for command in program:
        by.machine.execute(command)
    by.compare(record)


def multiply(by, **fields):
    """A MULTIPLY of one tile and one row, unless `fields` set other sizes, after all earlier commands."""
    values = dict.fromkeys(("m_blocks", "k_blocks", "vectors", "first", "last"), 1) | fields
    width, vectors = values["m_blocks"] * (1 + values.get("wide", 0)), values["vectors"]
    stride = by.stride(vectors, width)
    return Command("MULTIPLY", {"out": by.allocate(vectors, stride, width), "stride": stride, **values}, AFTER)


def vector(by, build, instructions, repeat=1, words=0, **fields):
    """A VECTOR command with the program `build(beats, tail)` of `instructions` instructions."""
    code = by.code(build, words or 1, not words)
    longest = fields.get("extra", 1) + fields.get("pad", 0)
    width = words or -(-longest // by.n)
    (a, a_stride), out_stride = by.rows(repeat, width), by.stride(repeat, width)
    beats = {"a_beats": words, "out_beats": words} if words else {}
    return Command(
        "VECTOR",
        {"code": code, "instructions": instructions, "repeat": repeat, "a": a, "a_stride": a_stride, "extra": 1,
         "out": by.allocate(repeat, out_stride, width), "out_stride": out_stride, **beats, **fields},
        AFTER,
    )  # fmt: skip


def test_every_length_to_its_end(rng, seed):
    """Powers of two, and one more element of rows that end with zeros; very many repetitions without output."""
    by = author(rng)

    def row(beats, tail):
        return [Instruction(to_stream=True, round=True, beats=beats, tail=tail)]

    program = by.operands()
    for k in range(10):
        long = 1 << k
        program.append(multiply(by, m_blocks=long, m_stride=0))
        half = long // 2 if long <= 256 else 0  # rows after which the length grows
        program.append(vector(by, row, 1, repeat=long, group=half, extra=by.number(1, 8), pad=2))
        parts = {"a_beats": long, "b": by.rows(1, long)[0], "b_beats": long, "b_used": 1}
        program.append(vector(by, lambda *_, n=long: 2 * row(n, 0), 2, words=2 * long, **parts))
    program += [vector(by, row, 1, extra=(1 << k) + 1, pad=by.number(0, 255)) for k in range(14)]
    for k in range(8):
        program.append(multiply(by, vectors=1 << k))
        program.append(vector(by, lambda *_, n=1 << k: n * row(1, 0), 1 << k, words=1 << k))
    program += [multiply(by, k_blocks=1 << k) for k in range(7)]
    silent = vector(by, lambda *length: [replace(row(*length)[0], to_stream=False)], 1, destination=Destination.NONE)
    many = replace(silent, fields={**silent.fields, "repeat": (1 << 14) + 2, "a_stride": 0})
    program += [many, vector(by, row, 1)]  # a command without output has begun, not ended, when it is complete
    ran(by, program, seed)


def while_others_are_written(by, operands):
    """Long products of one tile and one row, while LOADs repeatedly write the same data to these rows and to all rows
    whose numbers differ by one bit. The product does not depend on the order. The second product has inverted bits."""
    program = []
    codes = by.rng.integers(0, 1 << 16, (by.n + 1, by.n)) & 0x807F | 0b01010101 << 7  # of one size, that all count
    for flip, tile, row in ((0, 0, 7), (0xFFFF, 3, 38)):
        program.append(multiply(by, weights=tile, activations=row, m_blocks=512, m_stride=0, wide=1))
        own = range(by.n * tile, by.n * tile + by.n), [row]
        for load, rows, bits in zip(operands, own, (9, 7), strict=True):
            f = load.fields
            for number, line in zip(rows, codes[-len(rows) :] ^ flip, strict=True):
                at = 2 * by.n * (f["source"] + number * f["stride"])
                by.machine.memories[0][at : at + 2 * by.n] = line.astype("<u2").tobytes()
            for number in sorted({*rows, *(number ^ 1 << k for number in rows for k in range(bits))}):
                again = {"source": f["source"] + number * f["stride"], "rows": 20, "beats": 1, "target": number}
                program.append(Command("LOAD", {**again, "activations": f["activations"]}))
    return program


def sums_that_go_on(by):
    """Sums that three commands begin, continue and send, for all numbers of blocks and vectors that fit the
    accumulators. Each block has its own sum, or all blocks share one."""
    program = []
    for blocks, vectors, spread in product(range(1, 9), range(1, 9), (0, 1)):
        if blocks * vectors <= len(by.machine.sums):
            ends = {"m_blocks": blocks if spread else 1, "vectors": vectors, "spread": spread, "m_stride": 1}
            program += [
                multiply(by, **ends, weights=8, activations=8, x_stride=1, last=0),
                multiply(by, **{**ends, "m_blocks": blocks}, weights=20, activations=16, x_stride=2, first=0, last=0),
                multiply(by, **ends, weights=40, activations=50, k_blocks=2, x_stride=1, first=0),
            ]
    return program


def of_every_exponent(by):
    """Products of single numbers, many of them halfway between two BF16 numbers; also zeros, infinities and NaN."""
    n, tiles, rng = by.n, 16, by.rng
    exponents = np.append(np.arange(0, 256, 4), [255, 255])[:, None]
    rows = len(exponents)
    x = rng.integers(0, 2, (rows, n)) << 15 | exponents << 7 | rng.integers(0, 128, (rows, n))
    x[-1, :-1], x[-1, -1] = 0x3F80, 0xFF80  # an infinity
    weights = np.zeros((tiles, n, n), int)
    for tile, lane in product(range(tiles), range(n)):
        weights[tile, lane, lane] = (116 + tile) << 7 | int(rng.integers(1, 8)) << 5 - (tile & 1)
    program = []
    for activations, data in enumerate((weights, x)):
        count = data.size // n
        address = by.allocate(1, 0, count)
        by.machine.memories[0][2 * n * address : 2 * n * (address + count)] = data.astype("<u2").tobytes()
        fields = {"source": address, "rows": 1, "beats": count, "activations": activations}
        program.append(Command("LOAD", fields, AFTER))
    products = [multiply(by, m_blocks=tiles, m_stride=1, vectors=rows, x_stride=1, wide=wide) for wide in (0, 1)]
    return [*program, *products]


def test_products(rng, seed):
    """Products while other operands are written, with sums over several commands, and with every exponent."""
    by = author(rng)
    operands = by.operands()
    program = [*while_others_are_written(by, operands), *sums_that_go_on(by), *of_every_exponent(by)]
    ran(by, [*operands, *program], seed)


def test_means_of_keys_anywhere(rng, seed):
    """MEANS reads keys at random strides; the first step runs it twice, and the second run sets the means."""
    sizes = LayerSizes(hidden=16, ffn=24, tokens=2, keys=64, fill=8, q_heads=4)
    bench = LayerRun("tiny", rng, sizes=sizes, hamming_threshold=5, max_resident_tokens=64, scattered=True)
    bench.begin()
    some = int(rng.integers(1 << 24))
    for stride in (some, some ^ (1 << 24) - 1):
        k, v = (bf16.encode(rng.standard_normal((8, bench.config.kv_heads, bench.config.head_dim))) for _ in range(2))
        bench.fill({bench.layer.rotated["k"]: k.tobytes(), bench.layer.rotated["v"]: v.tobytes()})
        start = bench.region.allocate(8 * stride + k[0].nbytes // bench.run_on.word_bytes)
        for token, key in enumerate(k):
            bench.run_on.put(start + token * stride, key.tobytes())
        program = bench.layer.attention(8, query=False)
        (at,) = [n for n, command in enumerate(program) if command.name == "MEANS"]
        means = replace(program[at], fields={"keys": start, "stride": stride})
        values = replace(program[at], fields={**program[at].fields, "keys": bench.layer.rotated["v"]})
        bench.run([*program[:at], *[values] * (stride == some), means, *program[at + 1 :]])
        bench.golden.fill(k, v)
    bench.check(seed=seed)
    assert len(bench.golden.table.clusters) > 2


def test_products_of_more_than_the_operands_there_are(seed):
    """Products beyond the operand memory have undefined results. They take one beat for each tile; short ones end,
    and long ones are still running when the test reads the counters."""
    run, expected = CoreRun(Core.from_config(Config.preset("tiny")), bytearray(1 << 16), bytearray(8)), []
    ending = [*(("weights", 1 << k) for k in range(7, 16)), *(("k_blocks", k) for k in (128, 256, 512, 4097))]
    cases = ending + [(field, (1 << k) + 1) for field in ("m_blocks", "k_blocks") for k in range(10, 16)]
    for number, (field, value) in enumerate(cases):
        fields = {"m_blocks": 3, "k_blocks": 1, "vectors": 1, "first": 1, "last": 1, "out": 1 << 12, field: value}
        beats, start, long = fields["m_blocks"] * fields["k_blocks"], 16 * number, number >= len(ending)
        run.put(start, [Command("MULTIPLY", fields), Command("END")])
        run.script += [*run.driver.start(start, 2), ["wait", 400 if long else 100 + 3 * beats]]
        expected.append((len(run.script), beats, long))
        run.script += [*run.driver.read("matrix_beats"), *run.driver.read("done_matrix"), ["reset"]]
        run.set_up()
    _, record = run.simulate(seed=seed, timing=QUICK)
    for at, beats, long in expected:
        (accepted, _), (done, _) = record.answers[at : at + 2]
        assert (100 < accepted < beats and not done) if long else (accepted, done) == (beats, 1)


def test_many_rows_of_scores(rng, seed, monkeypatch):
    """More than 255 equal rows select the same clusters as one of them."""
    sizes = LayerSizes(hidden=16, ffn=24, tokens=1, keys=64, fill=8, q_heads=4)
    bench = LayerRun("tiny", rng, sizes=sizes, hamming_threshold=5, max_resident_tokens=64)
    attention = bench.layer.attention

    def longer(command):
        many = (
            {"rows": 257, "stride": 0}
            if command.name == "SELECT" and command.fields["head"] == bench.config.kv_heads - 1
            else {}
        )
        return replace(command, fields={**command.fields, **many})

    monkeypatch.setattr(bench.layer, "attention", lambda *a, **k: [longer(c) for c in attention(*a, **k)])
    for count in (8, 1):
        q, k, v = (
            bf16.encode(rng.standard_normal((count, bench.config.kv_heads, bench.config.head_dim))) for _ in range(3)
        )
        bench.attend(k, v, q.repeat(bench.layer.group, axis=1) if count == 1 else None)
    bench.check(seed=seed, timing=QUICK)


def test_a_mean_of_more_tokens_than_a_byte_counts(rng, seed):
    """All ones, but for the last, which brings the mean into the middle between two numbers."""
    sizes = LayerSizes(hidden=16, ffn=24, tokens=2, keys=64, fill=8, q_heads=4)
    bench = LayerRun("tiny", rng, sizes=sizes, hamming_threshold=17, max_resident_tokens=16)
    bench.begin()
    step = [replace(command, waits=AFTER) for command in bench.layer.attention(8, query=False)[:-1]]
    keys = np.ones((8, bench.config.kv_heads, bench.config.head_dim))
    for last, steps in ((1, 31), (4, 1)):
        keys[-1] = last
        k = bf16.encode(keys)
        bench.fill({bench.layer.rotated["k"]: k.tobytes(), bench.layer.rotated["v"]: k.tobytes()})
        bench.run([*steps * step, Command("END")])
        for _ in range(steps):
            bench.golden.fill(k, k)
    bench.check(seed=seed, timing=QUICK)
    assert bench.golden.table.clusters.counts.tolist() == [256]
    (mean,) = bench.golden.table.context.mean_keys[:1]
    assert (bf16.decode(mean) == 1 + 4 / 256).all()  # 259 / 256, to even
