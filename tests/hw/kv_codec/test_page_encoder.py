"""The Verilog of the encoder of pages against the golden layout, bit for bit."""

import numpy as np
import pytest

from hw.kv_codec.page_encoder import PageEncoder
from sim.bench.run import InTurns, simulate
from tests.hw.kv_codec.page_cases import keys, layouts, numbers

HEAVY = pytest.mark.heavy
CASES = [  # preset, bits; with 8 bits a record of `tiny` is a whole word
    ("tiny", 4),
    ("small", 8),
    *(pytest.param(name, bits, marks=HEAVY) for name, bits in (("small", 4), ("paper", 4), ("tiny", 8), ("paper", 8))),
]


def written(first, stored, nbytes):
    """Words and strobes that write bytes from byte `first` of a word on."""
    size = -(-(first + len(stored)) // nbytes) * nbytes
    data, strobes = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
    data[first : first + len(stored)], strobes[first : first + len(stored)] = stored, 1
    lines = strobes.reshape(-1, nbytes)
    return list(zip(numbers(data, nbytes), (int("".join(map(str, line[::-1])), 2) for line in lines), strict=True))


@pytest.mark.parametrize(
    "stall", [pytest.param(0.0, marks=HEAVY, id="streaming"), pytest.param(InTurns(0.4), id="stalled")]
)
@pytest.mark.parametrize("preset, kv_bits", CASES)
def test_copies_equal_golden(preset, kv_bits, stall, rng, seed):
    """Keys for all slots of a block, and copies of plain words between them; a strobed byte has the golden value."""
    layout, golden = layouts(preset, kv_bits)
    nbytes, codes = 2 * golden.lanes, keys(rng, golden, 40)
    copies, want = [], []
    for number, key in enumerate(codes):
        if rng.random() < 0.3:
            plain = rng.integers(0, 1 << 16, (int(rng.integers(1, 4)), golden.lanes), dtype=np.uint16)
            rows = numbers(plain, nbytes)
            copies += [(word, n == len(rows) - 1, 0, 0) for n, word in enumerate(rows)]
            want += [(word, (1 << nbytes) - 1) for word in rows]
        first = number % golden.block_tokens * golden.key_bytes % nbytes
        rows = numbers(key, nbytes)
        copies += [(word, n == len(rows) - 1, 1, first * 8 // layout.unit) for n, word in enumerate(rows)]
        want += written(first, golden.encode(key[None])[0], nbytes)
    columns = dict(zip(("data", "last", "encode", "first"), zip(*copies, strict=True), strict=True))
    stimulus = {name: np.array(values, object if name == "data" else None) for name, values in columns.items()}
    record = simulate(PageEncoder(layout), "page_encoder", {"i": stimulus}, {"o": len(want)}, stall=stall, seed=seed)
    out, strobes = record.outputs["o"]["data"], record.outputs["o"]["strobe"]
    for n, (data, strobe) in enumerate(want):
        assert int(strobes[n]) == strobe, n
        mask = sum(255 << 8 * byte for byte in range(nbytes) if strobe >> byte & 1)
        assert int(out[n]) & mask == data & mask, n
