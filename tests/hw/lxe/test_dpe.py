"""The matrix engine's Verilog against the golden product, bit for bit, and against its own cycle formula."""

from functools import cache

import numpy as np
import pytest

from golden.dot import matmul
from hw.config import Config
from hw.emit import to_rtlil
from hw.lxe.dpe import DPE
from sim.bench.build import has_simulator
from sim.bench.run import InTurns, simulate
from tests.golden.dot_cases import adversarial, codes
from tests.hw.lxe.dpe_cases import operands, run, stream

GOOD = {"trees": 4, "inputs": 4, "load_rows": 2, "accumulators": 8}
SHAPES = {  # trees, inputs, rows of a load, accumulators, alignment width, pipeline depth
    "one of each": (1, 1, 1, 1, 16, 1),
    "whole tile in a beat": (3, 8, 3, 5, 30, 5),
    "row by row": (5, 2, 1, 4, 20, 2),
}


@cache
def tiny():
    """The unit of most tests, elaborated once."""
    return DPE.from_config(Config.preset("tiny"))


def check(unit, rng, rows, depth, tokens, **options):
    x, w = operands(rng, rows, depth, tokens)
    y, record = run(unit, x, w, **options)
    np.testing.assert_array_equal(y, matmul(x.T, w, unit.inputs, unit.align_bits))
    return record


@pytest.mark.parametrize("stall", [InTurns(0.5, 16), {"o": 0.9}, {"i_weights": 0.9}], ids=str)
def test_equals_golden(rng, seed, stall):
    unit = tiny()
    record = check(unit, rng, 11, 30, unit.accumulators, stall=stall, seed=seed)
    assert record.status["stat_busy"] == len(record.cycles["i"])
    assert record.status["stat_tiles"] == 3 * 8
    assert record.status["stat_results"] == 3 * unit.accumulators


def hard_products(rng, unit, count):
    """Products (x, w) whose trees and whose sums over tiles meet every kind of number.

    Three tiles each: any of a kind, the same with the other sign but for one bit, and small ones, the first or any.
    """
    shape = unit.trees, unit.inputs
    for a, b in adversarial(rng, unit.inputs, max(unit.trees, unit.accumulators) * count).values():
        for n in range(count):
            w, x = a[n * unit.trees :][: unit.trees], b[n * unit.accumulators :][: unit.accumulators]
            back = w ^ 0x8000
            back[:, n % unit.inputs] ^= np.uint16(1 << n % 7)
            last = (codes(rng, shape, 85, 127), w, codes(rng, shape, 1, 254))[n % 3]
            yield np.tile(x, (1, 3)).T, np.concatenate([w, back, last], axis=1)


def carries(rng, unit):
    """Products whose sum is all ones and a half, so that rounding carries into the exponent: of one tile, or of two."""
    factors = {i * k: (i, k) for i in range(128, 256) for k in range(128, 256)}
    for key in (124, 125, 150, 250, 377, 378, 379):  # sum of the operands' exponent fields, from underflow to overflow
        third = None
        while third not in factors:
            first, second = (factors[p] for p in rng.choice(list(factors), 2).tolist())
            third = (1 << 17) - first[0] * first[1] - second[0] * second[1]
        for distance, tiles in ((22, 1), (21, 2)):
            w, x = np.zeros((2, tiles * unit.inputs), np.int64)
            for at, (i, k), field, sign in (
                (0, first, key, 0),
                (1, second, key, 0),
                (2, factors[third], key, 0),
                (3, (128, 128), key - distance, 1),
                (4, (128, 128), key - 22, 0),
            )[: 3 + tiles]:
                w[at] = sign << 15 | field // 2 << 7 | i & 127
                x[at] = field - field // 2 << 7 | k & 127
            sign = int(rng.integers(2)) << 15
            yield x.astype(np.uint16)[:, None], np.tile(w ^ sign, (unit.trees, 1)).astype(np.uint16)


def test_hard_numbers(rng):
    unit = tiny()
    products = [*hard_products(rng, unit, 12), *carries(rng, unit)]
    streams = [stream(unit, x, w) for x, w in products]
    beats = {name: np.concatenate([one["i"][name] for one in streams]) for name in streams[0]["i"]}
    weights = np.concatenate([one["i_weights"] for one in streams])
    expected = np.concatenate([matmul(x.T, w, unit.inputs, unit.align_bits) for x, w in products])
    assert {code for code in expected[-14:, 0].tolist() if code & 0x7FFFFF} == set()  # powers of two, 0, infinity
    record = simulate(unit, "dpe", {"i": beats, "i_weights": weights}, {"o": len(expected)})
    np.testing.assert_array_equal(record.outputs["o"]["y"], expected)


def tiles_of_every_kind(unit, rng):
    """Streams and their results: sums of one tile and of three tiles; one vector, several and all accumulators; all
    beats in one accumulator; then infinities, NaN and zeros."""
    for depth in (unit.inputs, 3 * unit.inputs):
        for tokens in (1, 3, unit.accumulators):
            x, w = operands(rng, unit.trees, depth, tokens)
            yield stream(unit, x, w), matmul(x.T, w, unit.inputs, unit.align_bits)
    for length in (1, 4):  # beats of a sum
        x, w = operands(rng, unit.trees, unit.inputs, 12)
        beats = stream(unit, x, w)
        beats["i"]["accumulator"][:] = 3
        beats["i"]["first"], beats["i"]["last"] = ((np.arange(12) % length == at).astype(int) for at in (0, length - 1))
        yield beats, matmul(x.T.reshape(12 // length, -1), np.tile(w, (1, length)), unit.inputs, unit.align_bits)
    x, w = np.zeros((unit.inputs, 4), np.uint16), np.full((unit.trees, unit.inputs), 0x3F80, np.uint16)
    x[0] = 0, 0x7F80, 0xFF80, 0x7F80
    x[1, 3] = 0xFF80
    yield stream(unit, x, w), matmul(x.T, w, unit.inputs, unit.align_bits)


@pytest.mark.parametrize("paused", [(), ("i", "i_weights"), ("o",), ("i", "i_weights", "o")], ids=str)
def test_tiles_of_every_kind(paused, rng, seed):
    unit = tiny()
    streams = list(tiles_of_every_kind(unit, rng))
    beats = {name: np.concatenate([one["i"][name] for one, _ in streams]) for name in streams[0][0]["i"]}
    inputs = {"i": beats, "i_weights": np.concatenate([one["i_weights"] for one, _ in streams])}
    expected = np.concatenate([results for _, results in streams])
    record = simulate(unit, "dpe", inputs, {"o": len(expected)}, stall=dict.fromkeys(paused, 0.4), seed=seed)
    np.testing.assert_array_equal(record.outputs["o"]["y"], expected)


def test_every_cycle_is_accounted_for(rng, seed):
    unit = tiny()
    stall = {"i": 0.3, "i_weights": 0.6, "o": 0.85}
    record = check(unit, rng, 24, 4, 6, stall=stall, seed=seed, record_ports=True)
    valid, ready = (record.ports[f"i__{name}"][:, 0].astype(bool) for name in ("valid", "ready"))
    status = record.status
    assert status["stat_unloaded"] > 0 and status["stat_blocked"] > 0
    assert status["stat_busy"] == (valid & ready).sum()
    assert status["stat_unloaded"] + status["stat_blocked"] == (valid & ~ready).sum()
    # the last two cycles come too late to be read
    assert status["stat_starved"] == (~valid & ready)[:-2].sum()


@pytest.mark.heavy
@pytest.mark.parametrize("name", SHAPES)
def test_any_shape(rng, seed, name):
    trees, inputs, load_rows, accumulators, width, depth = SHAPES[name]
    unit = DPE(
        trees=trees, inputs=inputs, load_rows=load_rows, accumulators=accumulators, align_bits=width, depth=depth
    )
    check(unit, rng, 3 * trees - 1, 4 * inputs - 1, accumulators, stall=0.3, seed=seed)
    check(unit, rng, trees, 2 * inputs, accumulators)


@pytest.mark.parametrize("tokens", [1, 2, 3, 8])
def test_latency_and_throughput(rng, tokens):
    """Tiles follow each other without a gap once their use takes longer than loading the next."""
    unit = tiny()
    tiles = 6
    record = check(unit, rng, unit.trees, tiles * unit.inputs, tokens)
    period = max(tokens, unit.loads + 1)
    expected = (np.arange(tiles)[:, None] * period + np.arange(tokens)).ravel()
    accepted, loaded, out = (record.cycles[name] for name in ("i", "i_weights", "o"))
    np.testing.assert_array_equal(accepted - accepted[0], expected)
    np.testing.assert_array_equal(out, accepted[-tokens:] + unit.latency)
    assert out[-1] - loaded[0] == unit.cycles(tiles, tokens)
    assert record.status["stat_blocked"] == 0
    assert unit.timing["latency"] == unit.latency == 6


def test_one_slot_every_cycle(rng):
    """Sums follow each other in one slot without a gap: each beat needs the sum of the beat before."""
    unit = tiny()
    beats = stream(unit, *operands(rng, unit.trees, unit.inputs, 40))
    beats["i"]["accumulator"][:] = 3
    beats["i"]["first"] = (np.arange(40) % 8 == 0).astype(int)
    beats["i"]["last"] = (np.arange(40) % 8 == 7).astype(int)
    record = simulate(unit, "dpe", beats, {"o": 5})
    assert np.all(np.diff(record.cycles["i"]) == 1)
    w = beats["i_weights"].reshape(unit.trees, unit.inputs)
    long = np.tile(w, (1, 8))
    expected = matmul(beats["i"]["x"].reshape(5, 8 * unit.inputs), long, unit.inputs)
    np.testing.assert_array_equal(record.outputs["o"]["y"], expected)


@pytest.mark.parametrize("cycles", [3, 29])
def test_reset_in_mid_flight(rng, seed, cycles):
    unit = tiny()
    record = check(unit, rng, 4, 24, 5, stall=0.3, seed=seed, reset_after=cycles)
    assert record.status["stat_busy"] == 6 * 5


@pytest.mark.skipif(not has_simulator("icarus"), reason="Icarus Verilog is not installed")
def test_icarus_agrees(rng, seed):
    check(tiny(), rng, 8, 12, 3, stall=0.3, seed=seed, simulator="icarus")


@pytest.mark.heavy
def test_small_preset(rng, seed):
    check(DPE.from_config(Config.preset("small")), rng, 30, 200, 12, stall=0.2, seed=seed)


@pytest.mark.heavy
def test_paper_preset_takes_a_whole_product(rng):
    """A 4096 x 4096 by 4096 x 10 product: every cycle of the inner loop is used, every result has the exact latency."""
    unit = DPE.from_config(Config.preset("paper"))
    tokens, tiles = 10, (4096 // unit.trees) * (4096 // unit.inputs)
    record = check(unit, rng, 4096, 4096, tokens)
    accepted, out = record.cycles["i"], record.cycles["o"]
    assert len(accepted) == tiles * tokens
    assert np.all(np.diff(accepted) == 1)
    ends = accepted.reshape(4096 // unit.trees, -1)[:, -tokens:]
    np.testing.assert_array_equal(out, ends.ravel() + unit.latency)
    assert out[-1] - record.cycles["i_weights"][0] == unit.cycles(tiles, tokens)
    assert record.status["stat_busy"] == tiles * tokens
    assert record.status["stat_blocked"] == record.status["stat_starved"] == 0


@pytest.mark.parametrize("preset", ["tiny", "small", pytest.param("paper", marks=pytest.mark.heavy)])
def test_every_preset_elaborates(preset):
    config = Config.preset(preset)
    text = to_rtlil(DPE.from_config(config), "dpe")
    assert text.count("cell \\dpe_row \\") == config.dpe_trees
    assert text.count("\nmodule \\dpe_row\n") == 1


@pytest.mark.parametrize(
    "change",
    [{"trees": 0}, {"inputs": 3}, {"load_rows": 3}, {"accumulators": 0}, {"align_bits": 31}, {"depth": 6}],
    ids=str,
)
def test_rejects_bad_parameters(change):
    name, value = next(iter(change.items()))
    with pytest.raises(ValueError, match=f"^{name} must be .*, got {value}$"):
        DPE(**{**GOOD, **change})
