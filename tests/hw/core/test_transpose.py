"""The transposer's Verilog against transposed arrays."""

import numpy as np
import pytest

from hw.core.transpose import Transposer
from sim.bench.payload import pack
from sim.bench.run import simulate


def blocks(rng, width, count, words):
    """Groups of rows, each group with one random length, and the transposed results."""
    rows, lasts, out, ends = [], [], [], []
    for _ in range(count):
        length = int(rng.integers(1, 3 * width))
        group = rng.integers(0, 1 << 16, (length, words * width))
        rows += list(group.reshape(length * words, width))
        lasts += [0] * (length * words - 1) + [1]
        padded = np.pad(group, ((0, -length % width), (0, 0)))
        for start in range(0, len(padded), width):
            columns = padded[start : start + width].T  # (words * width, width)
            out += list(columns)
            ends += [0] * len(columns)
        ends[-1] = 1
    return np.array(rows), np.array(lasts), np.array(out), np.array(ends)


def joined(words):
    """Rows of 16-bit elements as one number each."""
    return np.array([int.from_bytes(row.astype("<u2").tobytes(), "little") for row in words], object)


@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize("width, words, longest", [(4, 2, 2), (4, 2, 3), (8, 1, 1), (8, 1, 2)])
def test_transposes(width, words, longest, stall, rng, seed):
    """Rows of as many words as the memories hold, and shorter ones."""
    unit = Transposer(width=width, row_words=longest)
    rows, lasts, out, ends = blocks(rng, width, 12, words)
    stimulus = {"data": joined(rows), "last": lasts}
    assert pack(unit.i.payload.shape(), stimulus).shape[0] == len(rows)
    record = simulate(
        unit, "transposer", {"i": stimulus}, {"o": len(out)}, config={"cfg_row_words": words}, stall=stall, seed=seed
    )
    assert [int(v) for v in record.outputs["o"]["data"]] == joined(out).tolist()
    assert record.outputs["o"]["last"].tolist() == ends.tolist()


def test_a_word_per_cycle(rng):
    """Whole blocks without pauses: words come every cycle, and as many leave."""
    unit = Transposer(width=4, row_words=2)
    rows = rng.integers(0, 1 << 16, (10 * 8, 4))
    stimulus = {"i": {"data": joined(rows)}}
    record = simulate(unit, "transposer", stimulus, {"o": len(rows)}, config={"cfg_row_words": 2})
    cycles = record.cycles
    assert cycles["i"][-1] - cycles["i"][0] == len(rows) - 1
    assert cycles["o"][-1] - cycles["o"][0] == len(rows) - 1
    assert cycles["o"][0] - cycles["i"][7] == 2


def test_rejects_bad_parameters():
    with pytest.raises(ValueError, match="width must be a power of two, at least 2, got 3"):
        Transposer(width=3, row_words=1)
    with pytest.raises(ValueError, match="row_words must be at least 1, got 0"):
        Transposer(width=4, row_words=0)
