"""The Verilog of the decoder of pages against the golden layout, bit for bit."""

import numpy as np
import pytest

from hw.kv_codec.page_decoder import PageDecoder
from sim.bench.run import InTurns, simulate
from tests.hw.kv_codec.page_cases import keys, layouts, numbers

COUNT_BITS = 8
HEAVY = pytest.mark.heavy
CASES = [  # preset, bits; with 8 bits a record of `tiny` is a whole word
    ("tiny", 4),
    ("small", 8),
    *(pytest.param(name, bits, marks=HEAVY) for name, bits in (("small", 4), ("paper", 4), ("tiny", 8), ("paper", 8))),
]


def traffic(rng, layout, golden, count):
    """Runs of tokens from random slots on, and jobs of plain words: runs, words with `last`, results."""
    nbytes, per_key = 2 * golden.lanes, layout.records
    runs, words, lasts, results = [], [], [], []
    for _ in range(count):
        if rng.random() < 0.3:
            jobs = int(rng.integers(1, 4))
            runs.append((0, jobs, 0, 0, 0))
            for _ in range(jobs):
                plain = rng.integers(0, 1 << 16, (int(rng.integers(1, 4)), golden.lanes), dtype=np.uint16)
                words += numbers(plain, nbytes)
                lasts += [0] * (len(plain) - 1) + [1]
                results += numbers(plain, nbytes)
            continue
        codes = keys(rng, golden, golden.block_tokens)
        block = numbers(golden.encode(codes), nbytes)
        start = int(rng.integers(golden.block_tokens))
        end = int(rng.integers(start + 1, golden.block_tokens + 1))
        first_byte, end_byte = start * golden.key_bytes, end * golden.key_bytes
        used = block[first_byte // nbytes : -(-end_byte // nbytes)]
        word = int(rng.integers(per_key))
        beats = int(rng.integers(1, per_key - word + 1))
        runs.append((1, end - start, first_byte % nbytes * 8 // layout.unit, word, beats))
        words += used
        lasts += [0] * (len(used) - 1) + [1]
        decoded = golden.decode(golden.encode(codes))[start:end].reshape(-1, per_key, golden.lanes)
        results += numbers(decoded[:, word : word + beats], nbytes)
    names = ("encoded", "count", "first", "word", "beats")
    return dict(zip(names, np.array(runs).T, strict=True)), words, lasts, results


@pytest.mark.parametrize(
    "stall", [pytest.param(0.0, marks=HEAVY, id="streaming"), pytest.param(InTurns(0.4), id="stalled")]
)
@pytest.mark.parametrize("preset, kv_bits", CASES)
def test_runs_equal_golden(preset, kv_bits, stall, rng, seed):
    """Tokens of parts of blocks, some words of each key, and plain words between them."""
    layout, golden = layouts(preset, kv_bits)
    runs, words, lasts, results = traffic(rng, layout, golden, 60)
    stimulus = {"runs": runs, "words": {"data": np.array(words, object), "last": lasts}}
    unit = PageDecoder(layout, count_bits=COUNT_BITS)
    record = simulate(unit, "page_decoder", stimulus, {"o": len(results)}, stall=stall, seed=seed)
    assert [int(word) for word in record.outputs["o"]["data"]] == results
    assert not record.outputs["o"]["last"].any()


@pytest.mark.heavy
@pytest.mark.parametrize("kv_bits", [4, 8])
def test_a_word_per_cycle(kv_bits, rng):
    """A run of whole words: one record in every cycle."""
    layout, golden = layouts("paper", kv_bits)
    codes = keys(rng, golden, golden.block_tokens)
    block = numbers(golden.encode(codes), 2 * golden.lanes)
    runs = {"encoded": [1], "count": [len(codes)], "first": [0], "word": [0], "beats": [layout.records]}
    stimulus = {"runs": runs, "words": {"data": np.array(block, object), "last": [0] * (len(block) - 1) + [1]}}
    count = len(codes) * layout.records
    record = simulate(PageDecoder(layout, count_bits=COUNT_BITS), "page_decoder", stimulus, {"o": count})
    cycles = record.cycles["o"]
    assert cycles[-1] - cycles[0] == count - 1
