"""MULTIPLY, LOAD and GATHER on the fast interpreter compared with the golden one."""

import numpy as np
import pytest

from compiler.machine import interpreter
from compiler.vector_programs import residual
from golden import bf16
from golden.bf16 import FP32
from golden.core_interpreter import NewToken
from golden.page_layout import PageLayout
from sim.bench.axi import Sparse
from tests.compiler.machine.machines import Command, Pair, bf16_codes, fp32_codes

WORDS = 2048
NAN = 0x7FC00000


def pair(rng, n, *, rows=40, tiles=9, slots=6, **options):
    memory = fp32_codes(rng, WORDS * n // 2).tobytes()
    machines = Pair(memory, inputs=n, weight_rows=tiles * n + n // 2, activation_rows=rows, slots=slots, vector_rows=4,
                    head_words=2, programs={}, **options)  # fmt: skip
    machines.set("pages", [[], [(100, 3), (300, n), (500, 2)]])
    return machines


def fill(machines, rng):
    """Adversarial operands: weights and activations of the same case in many pairs of rows."""
    golden, fast = machines.golden, machines.fast
    pairs = bf16_codes(rng, max(len(golden.weights), len(golden.activations)), machines.n)
    for machine in (golden, fast):
        for memory, codes in zip((machine.weights, machine.activations), pairs, strict=True):
            memory[:] = codes[: len(memory)]


def random_multiply(rng, tiles, rows, slots):
    """Fields of a MULTIPLY that is often valid: any stride, several blocks, partial sums, run-time lengths."""

    def number(high, low=0):
        return int(rng.integers(low, high))

    fields = {"weights": number(tiles), "m_stride": number(3), "k_stride": number(3), "m_blocks": number(4),
              "k_blocks": number(4), "activations": number(rows), "x_stride": number(4), "vectors": number(slots + 3),
              "first": int(rng.random() < 0.7), "last": int(rng.random() < 0.7), "spread": number(2),
              "out": number(WORDS - 200), "stride": number(9), "wide": number(2), "limit": number(3),
              "block": number(3), "extra": number(30)}  # fmt: skip
    if rng.random() < 0.2:
        fields["m_stride"] = (1 << 16) - 1
    return fields


@pytest.mark.parametrize("n, align_bits", [(2, 24), (4, 16), (4, 30), (16, 24), (64, 24), (64, 25), (64, 30)])
def test_random_multiplies(rng, n, align_bits, monkeypatch):
    """Any sequence of commands has the same results, sums, counters and errors. All commands use two threads."""
    monkeypatch.setattr(interpreter, "THREAD_WORK", 1)
    machines, messages, specials = pair(rng, n, align_bits=align_bits, threads=2), set(), 0
    valid = {"k_stride": 1, "k_blocks": 4, "m_blocks": 1, "vectors": 4, "x_stride": 4, "first": 1, "wide": 1}
    errors = [valid | {"first": 0}, valid | {"weights": 8}, valid | {"activations": 39}]  # sum, tile, row
    for number in range(150):
        if number % 10 == 0:
            fill(machines, rng)
        fields = errors[number] if number < len(errors) else random_multiply(rng, 9, 40, 6)
        messages.add(machines.execute(Command("MULTIPLY", fields)).split(" ")[0])
        machines.check(fields)
        specials += sum(bool((codes == NAN).any()) for codes in machines.fast.sums if codes is not None)
    assert messages == {"", "row", "tile", "sum"} and specials


def test_sums_of_all_special_values(rng):
    """Sums that continue sums: overflow, infinities of both signs, subnormal and zero results."""
    n = 16
    machines = pair(rng, n, slots=4, rows=60, tiles=4)
    values = np.array([0x0000, 0x8000, 0x0001, 0x0080, 0x8080, 0x0081, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x7FC0, 0x3F80,
                       0xBF80, 0x2000, 0xA000, 0x1FC0], np.uint16)  # fmt: skip
    seen = set()
    for _ in range(60):
        weights, activations = np.zeros_like(machines.golden.weights), np.zeros_like(machines.golden.activations)
        for codes in (weights, activations):
            codes[:, : rng.integers(1, 3)] = rng.choice(values, (len(codes), 1))
        for machine in (machines.golden, machines.fast):
            machine.weights[:], machine.activations[:] = weights, activations
        fields = {"k_stride": 1, "k_blocks": 4, "m_blocks": 1, "vectors": 4, "x_stride": 4, "first": 1, "wide": 1}
        assert not machines.execute(Command("MULTIPLY", {**fields, "activations": int(rng.integers(0, 40))}))
        machines.check()
        seen |= {int(code) for codes in machines.fast.sums if codes is not None for code in codes}
        assert not machines.execute(Command("MULTIPLY", {**fields, "first": 0, "last": 1, "stride": 2}))
        machines.check()
    assert {0, NAN, 0x7F800000, 0xFF800000} <= seen


def test_sums_around_the_smallest_normal_number(rng):
    """Sums 2**-126 - k 2**-153 are rounded to 24 bits first: k = 4, a tie, gives 2**-126 and k = 5 gives 0."""
    n, tiny = 4, 2.0**-126
    machines = pair(rng, n, align_bits=30)
    for machine in (machines.golden, machines.fast):
        machine.weights[:], machine.activations[:] = 0, 0
        machine.weights[:n] = bf16.encode(np.array([1.0, 2.0**-25, 2.0**-26, 2.0**-27]) * 2.0**-63)
        for k in range(8):
            terms = np.array([1, -(k >> 2 & 1), -(k >> 1 & 1), -(k & 1)])
            machine.activations[k] = bf16.encode(terms * 2.0**-63)
    fields = {"m_blocks": 1, "k_blocks": 1, "vectors": 6, "x_stride": 1, "first": 1, "wide": 1}
    assert not machines.execute(Command("MULTIPLY", fields))
    machines.check()
    sums = [bf16.decode(codes, FP32)[0] for codes in machines.fast.sums if codes is not None]
    assert sums == [tiny] * 5 + [0.0]


@pytest.mark.parametrize("n", [4, 16])
def test_stores_and_gathers_of_encoded_pages(rng, n):
    """Keys and values of random exponents to random slots; then tokens of several pages and of the step."""
    layout = PageLayout(2 * n, 8, n, 4)
    machines, words = pair(rng, n, layout=layout), layout.head_page_bytes // (2 * n)
    machines.set("pages", [[], [(100, 3), (300, 8), (300 + words, 6)]])
    for number in range(60):
        command = Command("GATHER", {
            "head": int(rng.integers(0, 2)), "values": int(rng.integers(0, 2)), "blocks": int(rng.integers(0, 3)),
            "restart": int(rng.random() < 0.4), "target": int(rng.choice([0, 2, 5])),
            "step_word": int(rng.integers(0, 500)), "stride": int(rng.integers(0, 9)),
            "tokens": int(rng.integers(0, 9)), "skip": int(rng.choice([0, 0, 1, 5])),
            "word": int(rng.integers(0, 2)), "words": int(number % 3 == 0),
        })  # fmt: skip
        if command.fields["word"]:
            command.fields["words"] = 1
        if number % 4 == 0:
            slots = [int(slot) for slot in rng.permutation(8)[:2]]
            blocks = [300 + layout.block_offset(slot) // (2 * n) for slot in slots]
            tokens = [NewToken(0, False, 1, [at, at + words], slot) for at, slot in zip(blocks, slots, strict=True)]
            machines.set("piece", tokens)
            fields = {"keys": int(rng.integers(600, 900)), "values": int(rng.integers(600, 900)), "key_stride": 4,
                      "value_stride": 5}  # fmt: skip
            assert not machines.execute(Command("STORE", fields))
        machines.execute(command)
        machines.check(command)
    assert machines.execute(Command("GATHER", {"head": 1, "restart": 1, "blocks": 9, "target": 65535})).startswith(
        "row"
    )


@pytest.mark.parametrize("n", [2, 4, 16])
def test_random_loads_and_gathers(rng, n):
    machines, messages = pair(rng, n), set()
    machines.set("clusters", 3)
    for number in range(200):
        fields = {"source": int(rng.integers(0, 500)), "stride": int(rng.integers(0, 9)),
                  "rows": int(rng.integers(0, 12)), "beats": int(rng.integers(0, 5)),
                  "target": int(rng.choice([0, 3, 30, 65530])),
                  "step": int(rng.choice([0, 1, 2, 65535])), "activations": int(rng.integers(0, 2)),
                  "tiled": int(rng.integers(0, 2)), "limit": int(rng.integers(0, 3)), "block": int(rng.integers(0, 3)),
                  "length": int(rng.integers(0, 3)), "head": 1, "extra": int(rng.integers(0, 20))}  # fmt: skip
        gather = {"head": int(rng.integers(0, 2)), "values": int(rng.integers(0, 2)), "blocks": int(rng.integers(0, 3)),
                  "restart": int(rng.random() < 0.4), "target": int(rng.choice([0, 2, 5, 5 * n, 65535])),
                  "step_word": int(rng.integers(0, 500)), "stride": int(rng.integers(0, 9)),
                  "tokens": int(rng.integers(0, 9)), "skip": int(rng.choice([0, 0, 1, 5])),
                  "word": int(rng.integers(0, 3)), "words": int(rng.integers(0, 4))}  # fmt: skip
        command = Command("GATHER", gather) if number % 2 else Command("LOAD", fields)
        messages.add(machines.execute(command).split(" ")[0])
        machines.check(command)
    assert messages == {"", "row"}


@pytest.mark.parametrize("n", [4, 16, 64])
def test_loads_of_encoded_weights(rng, n):
    """Any bits as tiles of all formats; rows of tiles and of fewer words than a tile, also outside the memory."""
    machines, messages = pair(rng, n, weight_bits=4), set()
    for _ in range(100):
        tiled, rows = int(rng.integers(2)), int(rng.integers(5))
        fields = {"source": int(rng.integers(WORDS)), "stride": int(rng.integers(300)), "rows": rows, "tiled": tiled,
                  "beats": int(rng.integers(3 * n)), "target": int(rng.integers(3 * n)),
                  "step": int(rng.integers(3 * n)), "activations": int(rng.integers(2)), "limit": 3,
                  "block": int(rng.integers(8))}  # fmt: skip
        if fields["source"] + rows * 300 + 3 * n > WORDS and rng.random() < 0.9:
            fields["source"] %= max(1, WORDS - rows * 300 - 3 * n)
        messages.add(machines.execute(Command("LOAD", fields))[:12])
        machines.check(fields)
    assert "" in messages and len(messages) > 1


def test_addresses_outside_memory(rng):
    """LOAD and GATHER fail as on the golden interpreter; results beyond the end of a bytearray extend it."""
    n = 4
    machines = pair(rng, n)
    fill(machines, rng)
    load = {"source": WORDS - 2, "stride": 1, "rows": 4, "beats": 1, "step": 1}
    assert machines.execute(Command("LOAD", load))
    machines.check()
    machines.set("pages", [[], [(WORDS - 3, 2)]])
    assert machines.execute(Command("GATHER", {"head": 1, "restart": 1, "blocks": 1}))
    machines.check()
    fields = {"m_blocks": 1, "k_blocks": 1, "vectors": 3, "x_stride": 1, "first": 1, "last": 1, "stride": 1}
    assert not machines.execute(Command("MULTIPLY", {**fields, "out": WORDS - 1}))
    assert len(machines.fast.memories[0]) == 2 * n * (WORDS + 2)
    machines.check()


def test_memory_without_the_buffer_protocol(rng):
    """Commands on a `Sparse` memory, which has slices only."""
    n = 4
    machines = pair(rng, n)
    content = bytes(machines.fast.memories[0])
    machines.fast.memories[0] = sparse = Sparse(len(content))
    sparse[:] = content
    load = {"stride": 1, "rows": 8, "beats": 1, "step": 1}
    product = {"m_blocks": 2, "m_stride": 1, "k_blocks": 1, "vectors": 3, "x_stride": 1, "first": 1, "last": 1,
               "out": 700, "stride": 4}  # fmt: skip
    gather = {"head": 1, "restart": 1, "blocks": 2, "target": 4}
    vector = {"repeat": 3, "a": 50, "a_stride": 2, "extra": 2 * n, "b": 80, "b_stride": 2, "b_used": 1, "out": 900,
              "out_stride": 2}  # fmt: skip
    machines.golden.programs[0] = lambda beats, tail: residual(beats * n, n)
    for command in (
        Command("LOAD", {**load, "source": 90}),
        Command("LOAD", {**load, "source": 120, "activations": 1}),
        Command("GATHER", gather),
        Command("VECTOR", vector),
        *(Command("MULTIPLY", {**product, "wide": wide, "out": 700 + 40 * wide}) for wide in (0, 1)),
    ):
        assert not machines.execute(command)
    machines.fast.memories[0] = bytearray(sparse[:])
    machines.check()
    assert machines.fast.memories[0] != content


def test_access_records_stay_empty(rng):
    machines = pair(rng, 4)
    assert not machines.execute(Command("COPY", {"source": 1, "target": 9, "words": 3, "to_host": 1}))
    machines.check()
    assert machines.golden.reads and not machines.fast.reads and not machines.fast.writes


@pytest.mark.parametrize("name, value", [("threads", 0), ("align_bits", 31), ("align_bits", 15), ("inputs", 1)])
def test_invalid_parameters_raise(name, value):
    sizes = {"inputs": 4, "weight_rows": 4, "activation_rows": 4, "slots": 1, "vector_rows": 4, "head_words": 1}
    with pytest.raises(ValueError, match=f"{name} must be .*got {value}"):
        interpreter.FastInterpreter([bytearray(8)], programs={}, **{**sizes, name: value})
