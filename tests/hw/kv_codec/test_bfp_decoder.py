"""The Verilog of the decoder of the KV cache with 8 bits against the golden format, bit for bit."""

import numpy as np
import pytest

from hw.config import Config
from hw.kv_codec.bfp_decoder import BfpDecoder
from sim.bench.run import InTurns, simulate
from tests.hw.kv_codec.bfp_cases import decode, encode, quarters

HEAVY = pytest.mark.heavy
SIZES = [4, pytest.param(8, marks=HEAVY), pytest.param(16, marks=HEAVY)]  # lanes; each is a build


def packed_words(rng, lanes, count):
    """Encoded words, and random codes with random exponents, of which many are near the limits."""
    columns = encode(quarters(rng, lanes, count))
    rows = len(columns["codes"])
    codes = rng.integers(-127, 128, (rows, lanes)) & 255
    header = rng.choice([0, 1, 2, 5, 6, 7, 8, 254, 255, *range(100, 110)], (rows, 4))
    both = {
        "codes": np.concatenate([columns["codes"], codes]),
        "header": np.concatenate([columns["header"], header]),
    }
    order = rng.permutation(2 * rows)
    return {name: column[order] for name, column in both.items()}


def check(unit, columns, **options):
    """Compares the decoded words with the golden ones; returns the record of the simulation."""
    record = simulate(unit, "bfp_decoder", {"i": columns}, {"o": len(columns["codes"])}, **options)
    np.testing.assert_array_equal(record.outputs["o"], decode(columns))
    return record


@pytest.mark.parametrize("stall", [0.0, InTurns(0.4)], ids=["streaming", "stalled"])
@pytest.mark.parametrize("lanes", SIZES)
def test_equals_golden(rng, seed, lanes, stall):
    """Under stalls too; without them every word has the exact latency, one every cycle."""
    unit = BfpDecoder(lanes=lanes)
    record = check(unit, packed_words(rng, lanes, 30), stall=stall, seed=seed)
    assert unit.timing == {"latency": 3, "words_per_cycle": 1}
    if not stall:
        assert np.all(np.diff(record.cycles["i"]) == 1)
        assert np.all(record.cycles["o"] - record.cycles["i"] == unit.latency)


@pytest.mark.heavy
def test_all_codes_under_all_exponents(seed):
    """Every code of an encoder with every exponent."""
    codes, header = np.meshgrid(np.delete(np.arange(256), 128), np.arange(256), indexing="ij")
    columns = {"codes": codes.reshape(-1, 4), "header": header.reshape(-1, 4)}
    check(BfpDecoder(lanes=4), columns, stall=0.1, seed=seed)


@pytest.mark.heavy
def test_a_stalled_output_loses_nothing(rng, seed):
    columns = packed_words(rng, 4, 5)
    record = check(BfpDecoder(lanes=4), columns, stall={"i": 0.0, "o": 0.9}, seed=seed)
    assert record.cycles["i"][-1] > len(columns["codes"])  # the input was held back


def test_reset_in_mid_flight(rng, seed):
    check(BfpDecoder(lanes=4), packed_words(rng, 4, 3), stall=0.3, seed=seed, reset_after=20)


@pytest.mark.heavy
def test_paper_equals_golden(rng, seed):
    unit = BfpDecoder.from_config(Config.preset("paper"))
    check(unit, packed_words(rng, unit.lanes, 500), stall=0.2, seed=seed)
