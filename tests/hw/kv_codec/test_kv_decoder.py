"""The Verilog of the decoder of the KV cache against the golden format, bit for bit."""

import numpy as np
import pytest

from golden.kv_formats import FIXED_BITS, Packed
from hw.config import PRESETS, Config
from hw.emit import to_rtlil
from hw.kv_codec.kv_decoder import KvDecoder
from sim.bench.run import InTurns, simulate
from tests.hw.kv_codec.codec_cases import columns, golden, words

SIZES = {"tiny": (4, 4), "2 bits": (16, 2), "3 bits": (8, 3), "two lanes": (2, 4)}  # lanes, bits
LATER = ("2 bits", "3 bits", "two lanes")  # with --heavy: each size is a build


def sized(name):
    lanes, bits = SIZES[name]
    return KvDecoder(lanes=lanes, bits=bits)


def cancelling(rng, unit):
    """Words with a level near 0 or near a power of two in fixed point, for every level and power, of both signs."""
    steps, most = (1 << unit.bits) - 1, (1 << FIXED_BITS - 1) - 1
    level, power, sign = (
        x.ravel() for x in np.meshgrid(np.arange(1, steps), np.arange(-1, FIXED_BITS - 1), (-1, 1), indexing="ij")
    )
    value = np.where(power < 0, 0, sign << np.maximum(power, 0))
    room = np.minimum(most - value, (most + value) * (steps - level) / level) - 1  # of the maximum above the level
    high = value + 1 + (rng.random(len(level)) * room).astype(int)
    low = np.rint((value * steps - high * level) / (steps - level)).astype(int)
    mask = (1 << FIXED_BITS) - 1
    headers = rng.integers(20, 200, len(level)) | (low & mask) << 8 | (high & mask) << 8 + FIXED_BITS
    codes = np.where(
        rng.random((len(level), unit.lanes)) < 0.5, level[:, None], rng.integers(0, steps + 1, (len(level), 1))
    )
    assert ((low >= -most) & (high <= most) & (low <= high)).all()
    return Packed(codes.astype(np.uint8), headers.astype(np.uint32))


def packed_words(rng, unit, count):
    """Encoded words, the same headers with random codes, so that every level occurs, and levels near 0."""
    packed = golden(unit).encode(words(rng, unit.lanes, count))
    codes = rng.integers(0, 1 << unit.bits, packed.codes.shape).astype(np.uint8)
    near = cancelling(rng, unit)
    both = Packed(
        np.concatenate([packed.codes, codes, near.codes]), np.concatenate([np.tile(packed.headers, 2), near.headers])
    )
    order = rng.permutation(len(both.headers))
    return Packed(both.codes[order], both.headers[order])


def check(unit, packed, **options):
    """Compares the decoded words with the golden ones; returns the record of the simulation."""
    record = simulate(unit, "kv_decoder", {"i": columns(packed)}, {"o": len(packed.headers)}, **options)
    np.testing.assert_array_equal(record.outputs["o"], golden(unit).decode(packed))
    return record


@pytest.mark.parametrize("stall", [0.0, InTurns(0.4)], ids=["streaming", "stalled"])
@pytest.mark.parametrize("size", [pytest.param(name, marks=[pytest.mark.heavy] * (name in LATER)) for name in SIZES])
def test_equals_golden(rng, seed, size, stall):
    """Under stalls too; without them every word has the exact latency, one every cycle."""
    unit = sized(size)
    record = check(unit, packed_words(rng, unit, 20), stall=stall, seed=seed)
    assert unit.timing == {"latency": 4, "words_per_cycle": 1}
    if not stall:
        assert np.all(np.diff(record.cycles["i"]) == 1)
        assert np.all(record.cycles["o"] - record.cycles["i"] == unit.latency)


@pytest.mark.heavy
def test_a_stalled_output_loses_nothing(rng, seed):
    unit = sized("tiny")
    packed = packed_words(rng, unit, 5)
    record = check(unit, packed, stall={"i": 0.0, "o": 0.9}, seed=seed)
    assert record.cycles["i"][-1] > len(packed.headers)  # the input was held back


def test_reset_in_mid_flight(rng, seed):
    unit = sized("tiny")
    check(unit, packed_words(rng, unit, 3), stall=0.3, seed=seed, reset_after=20)


@pytest.mark.heavy
@pytest.mark.parametrize("preset", ["small", "paper"])
def test_presets_equal_golden(rng, seed, preset):
    unit = KvDecoder.from_config(Config.preset(preset))
    check(unit, packed_words(rng, unit, 1000), stall=0.2, seed=seed)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_elaborates(preset):
    config = Config.preset(preset)
    unit = KvDecoder.from_config(config)
    assert (unit.lanes, unit.bits) == (config.dpe_inputs, 4)
    assert "module \\kv_decoder" in to_rtlil(unit, "kv_decoder")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lanes": 6}, "lanes must be a power of two, at least 2, got 6"),
        ({"lanes": 4, "bits": 1}, "bits must be 2 to 4, got 1"),
    ],
)
def test_bad_parameters(arguments, message):
    with pytest.raises(ValueError, match=message):
        KvDecoder(**arguments)
