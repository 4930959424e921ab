"""Single commands with strides and places that no layer has, against golden products and sums."""

from itertools import groupby

import numpy as np

from golden import bf16, kernels
from golden.dot import matmul, to_bf16
from hw.core.isa import Command, Event, all_but
from hw.core.layer import tiles
from hw.core.machine import READERS
from sim.layer_run import LayerRun

WIDEST = 1 << 24  # of strides
AFTER = {event: all_but() for event in Event if event is not Event.OPERANDS}


class Rows:
    """Rows of so many words at a random place and stride of the device memory."""

    def __init__(self, bench, rows, words):
        self.bench, self.words = bench, words
        self.stride = int(bench.rng.integers(words, WIDEST))
        self.place = bench.region.take((rows - 1) * self.stride + words)

    def put(self, rows):
        for n, row in enumerate(rows):
            self.bench.run_on.put(self.place + n * self.stride, row.tobytes())
        return self

    def get(self, image, row, dtype):
        size = self.bench.run_on.word_bytes
        first = (self.place + row * self.stride) * size
        return np.frombuffer(image[first : first + self.words * size], dtype)


def codes(rng, *shape):
    return bf16.encode(rng.standard_normal(shape))


def check(bench, program, expected, seed):
    """Run it; of each of `expected`, rows in memory and what they should be."""
    bench.run([*program, Command("END")])
    record = bench.check(seed=seed, stall=0.2)
    for out, y in expected:
        for row, values in enumerate(y):
            np.testing.assert_array_equal(out.get(record.images["device"], row, values.dtype), values)


def test_products_of_strided_rows(rng, seed):
    """Weights tile by tile, vectors row by row, results row by row, BF16 or FP32, all far from each other."""
    bench = LayerRun("tiny", rng, threshold=4, capacity=4, scattered=True)
    n, program, expected = bench.config.dpe_inputs, [], []
    for wide in (0, 1, 0, 1):
        m, k, t = (int(v) for v in rng.integers(1, 4, 3))
        first, row = (int(v) for v in rng.integers(0, 3, 2))  # tile, and row of activations
        weights, x = codes(rng, m * n, k * n), codes(rng, t, k * n)
        stored = Rows(bench, m * k, n).put(np.split(np.frombuffer(tiles(weights, n), np.uint16), m * k))
        given = Rows(bench, t, k).put(x)
        out = Rows(bench, t, m * (1 + wide))
        program += [
            Command("LOAD", {"source": stored.place, "stride": stored.stride, "rows": m * k, "beats": n,
                             "to": first * n, "step": n}, AFTER),
            Command("LOAD", {"source": given.place, "stride": given.stride, "rows": t, "beats": k, "to": row,
                             "step": k, "activations": 1}),
            Command("MULTIPLY", {"weights": first, "m_stride": k, "k_stride": 1, "m_blocks": m, "k_blocks": k,
                                 "activations": row, "x_stride": k, "vectors": t, "first": 1, "last": 1,
                                 "out": out.place, "stride": out.stride, "wide": wide}, AFTER),
        ]  # fmt: skip
        y = matmul(x, weights, n, bench.golden.shape.align_bits)
        expected.append((out, y if wide else to_bf16(y)))
    check(bench, program, expected, seed)


def test_sums_of_strided_rows(rng, seed):
    """The vector engine's two inputs and its output, each with a stride of its own."""
    bench = LayerRun("tiny", rng, threshold=4, capacity=4, scattered=True)
    (code, instructions), words = bench.layer.code["residual"], bench.layer.x_piece
    size, program, expected = words * bench.config.dpe_inputs, [], []
    for rows in (1, 3, 5):
        x, y = codes(rng, rows, size), rng.standard_normal((rows, size)).astype(np.float32).view(np.uint32)
        a, b = Rows(bench, rows, words).put(x), Rows(bench, rows, 2 * words).put(y)
        out = Rows(bench, rows, words)
        fields = {
            "code": code, "instructions": instructions, "repeat": rows, "a": a.place, "a_stride": a.stride,
            "a_beats": words, "b": b.place, "b_stride": b.stride, "b_beats": words, "b_wide": 1, "b_used": 1,
            "out": out.place, "out_stride": out.stride, "out_beats": words, "extra": 1,
        }  # fmt: skip
        program.append(Command("VECTOR", fields))
        expected.append((out, kernels.residual(x, y)))
    check(bench, program, expected, seed)


def test_lengths_of_all_bits(rng, seed):
    """Powers of two as every length of what is read: the core asks for these words, as far as it comes in some time."""
    bench = LayerRun("tiny", rng, threshold=4, capacity=4, scattered=True)
    code, instructions = bench.layer.code["residual"]
    readers, size = list(READERS), bench.run_on.word_bytes
    expected = []
    for k in range(16):
        source, a, b, out = (2 * int(place) for place in rng.integers(0, 1 << 29, 4))
        strides = [int(stride) for stride in rng.integers(1, 1 << 12, 3)]
        long, short = 1 << k, 1 << 15 - k
        load = {"source": source, "stride": strides[0], "rows": long, "beats": short}
        vector = {
            "code": code, "instructions": instructions, "repeat": long, "a": a, "a_stride": strides[1],
            "a_beats": short, "b": b, "b_stride": strides[2], "b_beats": long, "b_used": 1, "out": out,
            "out_beats": long, "extra": 1,
        }  # fmt: skip
        program = [Command("LOAD", load), Command("VECTOR", vector), Command("END")]
        place = bench.region.take(len(program) * 64 // size)
        bench.run_on.put(place, program)
        bench.run_on.reset_after(place, len(program), 250)
        rows = range(min(long, 512))
        both = (((a + row * strides[1], short), (b + row * strides[2], long)) for row in rows)
        jobs = {
            "load": [(source + row * strides[0], short) for row in rows],
            "code": [(code, -(-instructions * 16 // size)) for _ in rows],
            "vector": [part for parts in both for part in parts],
        }
        expected.append(
            {name: [at + n for at, words in found for n in range(min(words, 512))] for name, found in jobs.items()}
        )
    bench.begin()
    _, record = bench.run_on.simulate(seed=seed)
    requests = record.traffic["device"]["requests"]
    runs = [list(run) for reset, run in groupby(requests, lambda request: request is None) if not reset]
    for k, (run, parts) in enumerate(zip(runs[:-1], expected, strict=True)):
        for name, words in parts.items():
            asked = [
                (address - bench.run_on.bases["device"]) // size + n
                for write, identity, address, count in run
                if not write and identity == readers.index(name)
                for n in range(count)
            ]
            assert len(asked) >= min(8, len(words)) and asked == words[: len(asked)], (k, name)
