"""The Verilog of the encoder of the KV cache with 8 bits against the golden format, bit for bit."""

import numpy as np
import pytest

from hw.config import Config
from hw.kv_codec.bfp_encoder import BfpEncoder
from sim.bench.run import InTurns, simulate
from tests.hw.kv_codec.bfp_cases import encode, quarters

HEAVY = pytest.mark.heavy
SIZES = [16, pytest.param(4, marks=HEAVY), pytest.param(8, marks=HEAVY)]  # lanes; each is a build


def check(unit, x, **options):
    """Compares the encoded words with the golden ones; returns the record of the simulation."""
    record = simulate(unit, "bfp_encoder", {"i": x}, {"o": len(x)}, **options)
    for name, column in encode(x).items():
        np.testing.assert_array_equal(record.outputs["o"][name], column, name)
    return record


@pytest.mark.parametrize("stall", [0.0, InTurns(0.4)], ids=["streaming", "stalled"])
@pytest.mark.parametrize("lanes", SIZES)
def test_equals_golden(rng, seed, lanes, stall):
    """Under stalls too; without them every word has the exact latency, one every cycle."""
    unit = BfpEncoder(lanes=lanes)
    record = check(unit, quarters(rng, lanes, 40), stall=stall, seed=seed)
    assert unit.timing == {"latency": 4, "words_per_cycle": 1}
    if not stall:
        assert np.all(np.diff(record.cycles["i"]) == 1)
        assert np.all(record.cycles["o"] - record.cycles["i"] == unit.latency)


@pytest.mark.heavy
def test_all_numbers_under_all_distances(seed):
    """Every significand of both signs with every distance to the exponent of its quarter."""
    unit = BfpEncoder(lanes=16)
    sign, distance, fraction = np.meshgrid([0, 1], np.arange(18), np.arange(128), indexing="ij")
    x = (sign << 15 | 200 - distance << 7 | fraction).astype(np.uint16).reshape(-1, 2)
    largest = np.full((len(x), 2), 200 << 7, np.uint16)
    record = check(unit, np.concatenate([x, largest], axis=1).reshape(-1, 16), stall=0.2, seed=seed)
    codes = np.asarray(record.outputs["o"]["codes"]).astype(np.uint8)
    assert set(codes.ravel().tolist()) == set(range(256)) - {128}


@pytest.mark.heavy
def test_a_stalled_output_loses_nothing(rng, seed):
    x = quarters(rng, 16, 10)
    record = check(BfpEncoder(lanes=16), x, stall={"i": 0.0, "o": 0.9}, seed=seed)
    assert record.cycles["i"][-1] > len(x)  # the input was held back


def test_reset_in_mid_flight(rng, seed):
    check(BfpEncoder(lanes=16), quarters(rng, 16, 5), stall=0.3, seed=seed, reset_after=20)


@pytest.mark.heavy
def test_paper_equals_golden(rng, seed):
    unit = BfpEncoder.from_config(Config.preset("paper"))
    check(unit, quarters(rng, unit.lanes, 1000), stall=0.2, seed=seed)
