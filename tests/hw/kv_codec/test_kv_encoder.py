"""The Verilog of the encoder of the KV cache against the golden format, bit for bit."""

import numpy as np
import pytest

from hw.config import PRESETS, Config
from hw.emit import to_rtlil
from hw.kv_codec.affine import LARGEST_SPAN, Division
from hw.kv_codec.kv_encoder import POSITIONS, KvEncoder
from sim.bench.run import InTurns, simulate
from tests.hw.kv_codec.codec_cases import columns, golden, words

SIZES = {  # lanes, bits, register positions
    "small": (16, 4, POSITIONS),
    "tiny": (4, 4, POSITIONS),
    "2 bits": (16, 2, ("fixed", "result")),
    "3 bits": (8, 3, ()),
    "two lanes": (2, 4, ("distances", "limits")),
}
LATER = ("tiny", "2 bits", "3 bits", "two lanes")  # with --heavy: each size is a build


def sized(name):
    lanes, bits, registers = SIZES[name]
    return KvEncoder(lanes=lanes, bits=bits, registers=registers)


def check(unit, x, **options):
    """Compares the encoded words with the golden ones; returns the record of the simulation."""
    record = simulate(unit, "kv_encoder", {"i": x}, {"o": len(x)}, **options)
    expected, result = columns(golden(unit).encode(x)), record.outputs["o"]
    for name, column in expected["header"].items():
        np.testing.assert_array_equal(result["header"][name], column, name)
    np.testing.assert_array_equal(result["codes"], expected["codes"])
    return record


@pytest.mark.parametrize("stall", [0.0, InTurns(0.4)], ids=["streaming", "stalled"])
@pytest.mark.parametrize("size", [pytest.param(name, marks=[pytest.mark.heavy] * (name in LATER)) for name in SIZES])
def test_equals_golden(rng, seed, size, stall):
    """Under stalls too; without them every word has the exact latency, one every cycle."""
    unit = sized(size)
    record = check(unit, words(rng, unit.lanes, 40), stall=stall, seed=seed)
    assert unit.timing == {"latency": len(unit.registers.selected) + 2, "words_per_cycle": 1}
    if not stall:
        assert np.all(np.diff(record.cycles["i"]) == 1)
        assert np.all(record.cycles["o"] - record.cycles["i"] == unit.latency)


@pytest.mark.heavy
def test_a_stalled_output_loses_nothing(rng, seed):
    unit = sized("small")
    x = words(rng, unit.lanes, 10)
    record = check(unit, x, stall={"i": 0.0, "o": 0.9}, seed=seed)
    assert record.cycles["i"][-1] > len(x)  # the input was held back


def test_reset_in_mid_flight(rng, seed):
    unit = sized("small")
    check(unit, words(rng, unit.lanes, 5), stall=0.3, seed=seed, reset_after=20)


@pytest.mark.heavy
@pytest.mark.parametrize("preset", ["small", "paper"])
def test_presets_equal_golden(rng, seed, preset):
    unit = KvEncoder.from_config(Config.preset(preset))
    check(unit, words(rng, unit.lanes, 2000), stall=0.2, seed=seed)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_elaborates(preset):
    config = Config.preset(preset)
    unit = KvEncoder.from_config(config)
    assert (unit.lanes, unit.bits) == (config.dpe_inputs, 4)
    assert "module \\kv_encoder" in to_rtlil(unit, "kv_encoder")


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_division_by_multiplication_is_exact(bits):
    division = Division(2 * (2**bits - 1), LARGEST_SPAN)
    factor, shift = division.factor_and_shift
    numbers = np.arange(LARGEST_SPAN + 1)
    np.testing.assert_array_equal(numbers * factor >> shift, numbers // division.divisor)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lanes": 3}, "lanes must be a power of two, at least 2, got 3"),
        ({"lanes": 1}, "lanes must be a power of two, at least 2, got 1"),
        ({"lanes": 4, "bits": 5}, "bits must be 2 to 4, got 5"),
        ({"lanes": 4, "registers": ("codes",)}, "register position must be one of distances, .*, got 'codes'"),
    ],
)
def test_bad_parameters(arguments, message):
    with pytest.raises(ValueError, match=message):
        KvEncoder(**arguments)
