"""Core interpreter compared with the products and kernels that its commands perform."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from compiler.memory import tiles
from compiler.vector_programs import residual
from golden import bf16, vector_kernels
from golden.core_interpreter import CoreInterpreter
from golden.dot import matmul, to_bf16
from golden.weight_formats import FORMATS
from tests.golden.weight_cases import exact_tile, matrix

N = 4  # inputs
WORD = 2 * N
SLOTS, ROWS = 8, 100


@dataclass
class Command:
    name: str
    fields: dict = field(default_factory=dict)


def codes(rng, *shape):
    return bf16.encode(rng.standard_normal(shape))


@pytest.fixture
def machine():
    memories = [bytearray(1 << 16), bytearray(1 << 12)]
    interpreter = CoreInterpreter(memories, inputs=N, weight_rows=ROWS, activation_rows=40,
                   slots=SLOTS, vector_rows=16, head_words=2, programs={})  # fmt: skip
    interpreter.pages = [[], []]
    return interpreter


def put(machine, address, data, side=0):
    machine.memories[side][address * WORD : address * WORD + data.nbytes] = data.tobytes()


def get(machine, address, like, side=0):
    data = machine.memories[side][address * WORD : address * WORD + like.nbytes]
    return np.frombuffer(bytes(data), like.dtype).reshape(like.shape)


@pytest.mark.parametrize("weight_bits", [4, 16])
@pytest.mark.parametrize("name", FORMATS)
def test_load_of_encoded_weights(rng, name, weight_bits):
    """Two rows of two tiles, one gap; the third word of `beats` is not a tile. Without a decoder they are words."""
    form, memory = FORMATS[name], bytearray(1 << 12)
    machine = CoreInterpreter([memory, bytearray(4)], inputs=N, weight_rows=8 * N, activation_rows=4, slots=SLOTS,
                              vector_rows=16, head_words=2, weight_bits=weight_bits, programs={})  # fmt: skip
    image = form.tiles(matrix(rng, form, 2 * N, 2 * N, 32 if name == "mxfp4" else N), N)
    words, stride = 2 * form.tile_words(N), 2 * form.tile_words(N) + 3
    for row, part in enumerate(image):
        put(machine, 5 + row * stride, part)
    fields = {"source": 5, "stride": stride, "rows": 2, "beats": 2 * N + N - 1, "target": 1, "step": 2 * N + 1,
              "limit": 3, "block": form.number | 4}  # fmt: skip
    if weight_bits == 4:
        machine.execute(Command("LOAD", fields))
        assert machine.reads["load"] == [(0, 5, words), (0, 5 + stride, words)]
        for row, part in enumerate(image):
            want = np.concatenate([exact_tile(form, tile, N) for tile in part])
            np.testing.assert_array_equal(machine.weights[1 + row * (2 * N + 1) :][: 2 * N], want)
        before = machine.weights.copy()
        machine.execute(Command("LOAD", {**fields, "beats": N - 1, "source": 900}))  # no tile, no access
        np.testing.assert_array_equal(machine.weights, before)
        assert len(machine.reads["load"]) == 2
    else:
        machine.execute(Command("LOAD", {**fields, "beats": words, "step": words}))
        stored = np.concatenate([np.frombuffer(part.tobytes(), "<u2") for part in image]).reshape(-1, N)
        np.testing.assert_array_equal(machine.weights[1 : 1 + len(stored)], stored)


@pytest.mark.parametrize("tiled", [0, 1])
@pytest.mark.parametrize("wide", [0, 1])
@pytest.mark.parametrize("split", [0, 1, 2])
def test_products(machine, rng, tiled, wide, split):
    """Weights (M, K) as tiles, built by the test or by the LOAD command; sums in one command or in two."""
    m, k, t = 3, 2, 5
    weights, x = codes(rng, m * N, k * N), codes(rng, t, k * N)
    put(machine, 0, weights if tiled else np.frombuffer(tiles(weights, N), np.uint16))
    put(machine, 1000, x)
    rows, beats = (m * N, k) if tiled else (m * k * N, 1)
    load = {"stride": beats, "rows": rows, "beats": beats, "target": N, "step": 1, "tiled": tiled}
    machine.execute(Command("LOAD", load))
    load = {"source": 1000, "stride": k, "rows": t, "beats": k, "target": 3, "step": k, "activations": 1}
    machine.execute(Command("LOAD", load))
    fields = {"weights": 1, "m_stride": k, "k_stride": 1, "m_blocks": m, "k_blocks": k, "activations": 3, "x_stride": k,
              "vectors": t, "out": 2000, "stride": 2 * m, "wide": wide, "first": 1, "last": 1}  # fmt: skip
    if split:  # all vectors for one block of results, then the next block
        for block in range(m):
            part = {**fields, "weights": 1 + k * block, "m_blocks": 1, "out": 2000 + block * (1 + wide), "k_blocks": 1}
            part["vectors"] = t
            then = {**part, "weights": part["weights"] + 1, "activations": 4}
            if split == 1:
                parts = {**part, "last": 0}, {**then, "first": 0}
            else:  # the length field of the command sets the end
                vary = {"limit": 2, "extra": k * N - 1}
                parts = {**part, **vary, "first": 0}, {**then, **vary, "first": 0, "last": 0, "block": 1}
            for command in parts:
                machine.execute(Command("MULTIPLY", command))
    else:
        machine.execute(Command("MULTIPLY", fields))
    y = matmul(x, weights, N)
    y = y if wide else to_bf16(y)
    for row, expected in enumerate(y):
        np.testing.assert_array_equal(get(machine, 2000 + 2 * m * row, expected), expected)


def test_vector_rows_of_cluster_length(machine, rng):
    """Two inputs and an output with strides, the output with zeros behind it."""
    machine.clusters, rows, size = 7, 3, 10
    x = codes(rng, rows, size)
    y = rng.standard_normal((rows, size)).astype(np.float32).view(np.uint32)
    for row in range(rows):
        put(machine, 20 * row, x[row])
        put(machine, 500 + 30 * row, y[row])
    put(machine, 1000, np.full(400, 0xFFFF, np.uint16))
    machine.programs[77] = lambda beats, tail: residual(beats * N, N)
    fields = {"code": 77, "repeat": rows, "a_stride": 20, "b": 500, "b_stride": 30, "b_wide": 1, "b_used": 1,
              "out": 1000, "out_stride": 7, "length": 1, "extra": size - 7, "pad": 12}  # fmt: skip
    machine.execute(Command("VECTOR", fields))
    expected = np.zeros((rows, 28), np.uint16)
    expected[:, :size] = vector_kernels.residual(x, y)
    expected[:, 24:] = 0xFFFF
    np.testing.assert_array_equal(get(machine, 1000, expected), expected)


@pytest.mark.parametrize("values", [0, 1])
def test_gather_writes_tokens_as_weights(machine, rng, values):
    """Scores of keys, and weighted values, of tokens on two pages and of the step, block by block."""
    past, own, query = codes(rng, 5, 2, 8), codes(rng, 2, 8), codes(rng, 1, 8)
    for address, tokens in ((100, past[:3]), (300, past[3:])):
        put(machine, address, tokens)
    machine.pages = [[], [(100, 3), (300, 2)]]
    put(machine, 600, own[0])
    put(machine, 610, own[1])
    vectors = np.concatenate([past[:, values], own])
    for restart, to in ((1, 0), (0, 20)):
        machine.execute(Command("GATHER", {"head": 1, "values": values, "restart": restart, "blocks": 1, "target": to,
                                           "step_word": 600, "stride": 10, "tokens": 2}))  # fmt: skip
    if values:  # (d, T), a block of tokens after the other, the last one filled with a zero
        x = np.concatenate([codes(rng, 1, 7), np.zeros((1, 1), np.uint16)], axis=1)
        expected = matmul(x, np.concatenate([vectors, np.zeros((1, 8), np.uint16)]).T.copy(), N)
        fields = {"m_blocks": 2, "k_blocks": 2, "m_stride": 1, "k_stride": 5}
    else:
        x, fields = query, {"m_blocks": 2, "k_blocks": 2, "m_stride": 5, "k_stride": 1}
        expected = matmul(x, vectors, N)
    put(machine, 1500, x)
    machine.execute(Command("LOAD", {"source": 1500, "rows": 1, "beats": 2, "activations": 1}))
    fields |= {"vectors": 1, "first": 1, "last": 1, "out": 2000, "wide": 1}
    machine.execute(Command("MULTIPLY", fields))
    np.testing.assert_array_equal(get(machine, 2000, expected), expected)


@pytest.mark.parametrize("values", [0, 1])
def test_gather_of_a_part(machine, rng, values):
    """GATHERs of one word of every second block of tokens: as those of all words and blocks."""
    past, own = codes(rng, 9, 2, 8), codes(rng, 2, 8)
    for address, tokens in ((100, past[:7]), (300, past[7:])):
        put(machine, address, tokens)
    machine.pages = [[(100, 7), (300, 2)]]
    put(machine, 600, own[0])
    put(machine, 610, own[1])
    vectors = np.concatenate([past[:, values], own, np.zeros((1, 8), np.uint16)]).reshape(3, N, 2, N)
    fields = {"values": values, "blocks": 1, "step_word": 600, "stride": 10, "tokens": 2, "word": 1, "words": 1}
    machine.weights[:] = 1
    for skip, to, restart in ((1, 0, 1), (1, 10, 0)):
        machine.execute(Command("GATHER", {**fields, "skip": skip, "target": to, "restart": restart}))
    np.testing.assert_array_equal(machine.weights[:N], vectors[1, :, 1].T if values else vectors[1, :, 1])
    assert (machine.weights[N:] == 1).all()  # the third block was skipped, which leaves no token
    machine.execute(Command("GATHER", {**fields, "skip": 2, "target": 0, "restart": 1}))
    last = vectors[2, :, 1].T if values else vectors[2, :3, 1]
    np.testing.assert_array_equal(machine.weights[: len(last)], last)


def test_copies(machine, rng):
    data = codes(rng, 5, N)
    put(machine, 9, data)
    machine.execute(Command("COPY", {"source": 9, "target": 70, "words": 5, "to_host": 1}))
    machine.execute(Command("COPY", {"source": 71, "target": 200, "words": 4, "from_host": 1}))
    np.testing.assert_array_equal(get(machine, 200, data[1:]), data[1:])
    assert machine.reads == {"copy": [(0, 9, 5), (1, 71, 4)]}
    assert machine.writes == {"copy": [(1, 70, 5), (0, 200, 4)]}


ONE = {"m_blocks": 1, "k_blocks": 1, "vectors": 1, "first": 1, "last": 1}


@pytest.mark.parametrize(
    "command, message",
    [
        (Command("LOAD", {"rows": 2, "beats": 1, "target": 99, "step": 1}), "row must be below 100, got 100"),
        (Command("MULTIPLY", {**ONE, "weights": 25}), "tile must be below 25, got 25"),
        (Command("MULTIPLY", {**ONE, "activations": 40}), "row must be below 40, got 40"),
        (Command("MULTIPLY", {**ONE, "first": 0}), "sum 0 must be started"),
    ],
)
def test_invalid_commands_raise(machine, command, message):
    with pytest.raises(ValueError, match=message):
        machine.execute(command)


@pytest.mark.parametrize("name", ["STORE", "MEANS", "CLUSTER", "END"])
def test_commands_of_other_units_have_no_effect(machine, name):
    before = [bytes(memory) for memory in machine.memories]
    machine.execute(Command(name, {"keys": 3, "values": 4}))
    assert before == [bytes(memory) for memory in machine.memories] and not machine.reads and not machine.writes


def test_load_limits_rows_to_run_time_length(machine, rng):
    """The length field limits the rows from the block on; a command without inputs computes no product."""
    data = codes(rng, 30, N)
    put(machine, 0, data)
    load = {"stride": 1, "rows": 30, "beats": 1, "step": 1, "limit": 1, "block": 2, "extra": 2 * N + 5}
    machine.execute(Command("LOAD", load))
    np.testing.assert_array_equal(machine.weights[:5], data[:5])
    assert not machine.weights[5:].any()
    fields = dict.fromkeys(("m_blocks", "vectors", "first", "last"), 1)
    machine.execute(Command("MULTIPLY", {**fields, "out": 100}))
    assert not machine.writes and not machine.products
