"""The Verilog of the decoder of weights against the golden formats, bit for bit."""

import numpy as np
import pytest

from golden.weight_formats import BY_NUMBER, FORMATS
from hw.config import PRESETS, Config
from hw.emit import to_rtlil
from hw.weight_codec.tile_layout import Encoding, TileLayout
from hw.weight_codec.weight_decoder import WeightDecoder
from sim.bench.run import InTurns, simulate
from tests.hw.weight_codec.decoder_cases import bf16_rows, encoded, runs, stimulus, ties

HEAVY = pytest.mark.heavy
LANES = [4, *(pytest.param(lanes, marks=HEAVY) for lanes in (16, 64))]


def check(lanes, columns, words, rows, **options):
    """Compares the decoded rows with the golden ones; returns the record of the simulation."""
    unit = WeightDecoder(lanes=lanes)
    record = simulate(unit, "weight_decoder", stimulus(columns, words), {"o": len(rows)}, **options)
    np.testing.assert_array_equal(bf16_rows(record, lanes), rows)
    assert not record.outputs["o"]["last"].any()
    return record


@pytest.mark.parametrize("stall", [0.0, InTurns(0.4)], ids=["streaming", "stalled"])
@pytest.mark.parametrize("lanes", LANES)
def test_runs_equal_golden(rng, seed, lanes, stall):
    """Runs of all formats in mixed order, with all codes and boundary scales."""
    check(lanes, *runs(rng, lanes, 240 // lanes), stall=stall, seed=seed)


@pytest.mark.parametrize("lanes", LANES)
def test_products_that_round_by_one_bit(rng, lanes):
    check(lanes, *ties(rng, lanes))


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("name", FORMATS)
def test_cycles(rng, name, lanes):
    """One row per cycle; FP8 has a pause of one cycle between tiles; the first row has the exact latency."""
    form, tiles = FORMATS[name], 4
    words, rows = encoded(rng, form, lanes, 1, tiles)
    columns = {"encoding": [form.number], "rows": [1], "tiles": [tiles]}
    record = check(lanes, columns, words, rows)
    cycles, arrivals = record.cycles["o"], record.cycles["words"]
    header = form.header_words(lanes)
    assert cycles[0] - arrivals[header] == WeightDecoder.latency
    assert np.all(np.diff(arrivals[: header + 1]) == 1)
    pauses = (tiles - 1) * (name == "fp8")
    assert cycles[-1] - cycles[0] == tiles * lanes - 1 + pauses
    assert WeightDecoder(lanes=lanes).timing == {"latency": 2, "words_per_cycle": 1}


@HEAVY
def test_a_stalled_output_loses_nothing(rng, seed):
    columns, words, rows = runs(rng, 4, 30)
    record = check(4, columns, words, rows, stall={"runs": 0.0, "words": 0.0, "o": 0.9}, seed=seed)
    assert record.cycles["words"][-1] > 3 * len(rows)  # the input was held back


def test_reset_in_mid_flight(rng, seed):
    check(4, *runs(rng, 4, 20), stall=0.3, seed=seed, reset_after=25)


@pytest.mark.parametrize("lanes", [4, 16, 64, 128])
def test_layout_equals_the_golden_one(lanes):
    layout = TileLayout(lanes)
    for number, form in BY_NUMBER.items():
        encoding = Encoding(number)
        assert encoding.name.lower() == form.name
        assert layout.tile_words(encoding) == form.tile_words(lanes)
        assert layout.header_words(encoding) == form.header_words(lanes)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_elaborates(preset):
    config = Config.preset(preset)
    unit = WeightDecoder.from_config(config)
    assert unit.lanes == config.dpe_inputs
    assert "module \\weight_decoder" in to_rtlil(unit, "weight_decoder")


@pytest.mark.parametrize("lanes", [2, 6])
def test_bad_parameters(lanes):
    with pytest.raises(ValueError, match=f"lanes must be a power of two, at least 4, got {lanes}"):
        WeightDecoder(lanes=lanes)
