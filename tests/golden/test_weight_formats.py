"""Formats of stored weights against exact fractions and ml_dtypes: tiles in memory, quantisation, checkpoint scales."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from golden import bf16
from golden.weight_formats import FORMATS, INT4_SCALE, PackedWeights
from tests.golden.exact_numbers import real
from tests.golden.kv_blocks import blocks, boundaries
from tests.golden.weight_cases import E2M1, E4M3, exact_tile, matrix

FINITE_E4M3 = [Fraction(x) for x in E4M3 if np.isfinite(x)]


@pytest.mark.parametrize("lanes", [4, 16, 64])
@pytest.mark.parametrize("name", FORMATS)
def test_tiles_equal_exact_products(name, lanes, rng):
    """All codes and boundary scales, read from the bits of the tiles; the last row block is not complete."""
    form = FORMATS[name]
    group = 32 if name == "mxfp4" else 2 * lanes
    packed = matrix(rng, form, lanes + 3, 4 * lanes, group)
    tiles = form.tiles(packed, lanes)
    assert tiles.shape == (2, 4, form.tile_words(lanes) * 2 * lanes)
    want = np.array([[exact_tile(form, tile, lanes) for tile in row] for row in tiles])
    words = np.ascontiguousarray(tiles).reshape(-1).view("<u2").reshape(-1, lanes)
    np.testing.assert_array_equal(form.decode_tiles(words), want.reshape(-1, lanes))
    whole = want.swapaxes(1, 2).reshape(2 * lanes, 4 * lanes)
    np.testing.assert_array_equal(form.decode(packed), whole[: lanes + 3])
    assert not whole[lanes + 3 :].any()


def test_tile_sizes():
    """At 64 lanes a tile of 64 words takes 17 (MXFP4), 18 (INT4) or 34 (FP8)."""
    sizes = {lanes: [form.tile_words(lanes) for form in FORMATS.values()] for lanes in (4, 16, 64, 128)}
    assert sizes == {4: [2, 3, 4], 16: [5, 6, 10], 64: [17, 18, 34], 128: [34, 34, 66]}


@pytest.mark.parametrize("lanes", [4, 16, 64])
@pytest.mark.parametrize("name", FORMATS)
def test_columns_keep_their_numbers(name, lanes, rng):
    """Columns in another order, with gaps: those of the matrix have their numbers, the others are zeros."""
    form = FORMATS[name]
    group = 32 if name == "mxfp4" else 2 * lanes
    packed = matrix(rng, form, lanes, 4 * group, group)
    own = min(32, lanes) if name == "mxfp4" else lanes
    columns = np.arange(packed.codes.shape[1]).reshape(-1, own)[rng.permutation(4 * group // own)]
    columns[::2, own // 2 :] = -1
    columns[1] = -1
    chosen = form.columns(packed, columns.ravel(), lanes)
    want = np.where(columns.ravel() >= 0, form.decode(packed)[:, columns.ravel()], 0)
    got, gap = form.decode(chosen), columns.ravel() < 0
    np.testing.assert_array_equal(got[:, ~gap], want[:, ~gap])
    is_number = (np.repeat(chosen.entries, chosen.group, axis=1)[:, gap] >> 23 & 255) != 255  # zero times infinity
    if name == "mxfp4":
        is_number = np.repeat(chosen.entries, chosen.group, axis=1)[:, gap] != 255
    assert is_number.any() and not (got[:, gap] & 0x7FFF)[is_number].any()
    np.testing.assert_array_equal(form.decode(packed[np.array([2, 0])]), form.decode(packed)[[2, 0]])
    assert form.fits(chosen, lanes)


def weights(rng, rows, inputs):
    """Random rows, rows near 1, zeros, equal numbers and boundaries, uint16 (6 rows, inputs)."""
    edges = boundaries()
    special = np.tile(edges[rng.permutation(len(edges))], (rows, inputs // 8))[:rows]
    random = [blocks(rng, rows, inputs), blocks(rng, rows, inputs, 118, 130)]
    constant = [np.zeros((rows, inputs), np.uint16), blocks(rng, rows, 1).repeat(inputs, axis=1)]
    one_sided = blocks(rng, rows, inputs, 100, 150) & 0x7FFF  # the range from zero, not from the minimum
    return np.concatenate([*random, *constant, special, one_sided])


def element_values(name, entry):
    """Values of all codes of a format in units of its scale."""
    zero = int(entry) & 15
    return {"mxfp4": E2M1, "fp8": FINITE_E4M3, "int4": [Fraction(code - zero) for code in range(16)]}[name]


def scale_of(name, entry):
    """The scale of an entry as a fraction."""
    if name == "mxfp4":
        return Fraction(2) ** (int(entry) - 127)
    bits = np.uint32(int(entry) & ~255 if name == "int4" else entry)
    return Fraction(float(bits.view(np.float32))) if bits >> 23 & 255 else Fraction(0)


@pytest.mark.parametrize("name", FORMATS)
def test_quantised_weights_are_the_nearest(name, rng):
    """Every code has the smallest distance to its weight that the scale allows, also where elements saturate."""
    form = FORMATS[name]
    x = weights(rng, 4, 40)
    packed = form.quantise(x, 32)
    assert packed.entries.shape == (len(x), 2)
    for row, column in np.ndindex(x.shape):
        entry, weight = packed.entries[row, column // 32], real(x[row, column])
        scale, code = scale_of(name, entry), int(packed.codes[row, column])
        values = element_values(name, entry)
        chosen = {"mxfp4": E2M1, "fp8": E4M3, "int4": values}[name][code]
        assert abs(Fraction(chosen) * scale - weight) == min(abs(value * scale - weight) for value in values)


def test_weight_near_a_tie_of_fp8_is_rounded_once():
    """In float32, the quotient would be the tie of 80 and 88, of which 80 has the even code."""
    x = bf16.encode(np.array([[720896.0, 135168.0], [720896.0, -135168.0]]))
    packed = FORMATS["fp8"].quantise(x)
    scale = scale_of("fp8", packed.entries[0, 0])
    assert 135168 / scale > 84 and np.float32(float(135168 / scale)) == 84
    assert [[E4M3[int(code)] for code in row] for row in packed.codes] == [[448, 88], [448, -88]]


@pytest.mark.parametrize("name", FORMATS)
def test_scales_follow_their_definition(name, rng):
    """The scale of each group from its largest magnitude, or from its range, rounded by another method."""
    form = FORMATS[name]
    x = weights(rng, 4, 64)
    packed = form.quantise(x, 32)
    for row, group in np.ndindex(packed.entries.shape):
        block = [real(code) for code in x[row, 32 * group : 32 * group + 32]]
        entry, top = packed.entries[row, group], max(map(abs, block))
        if name == "mxfp4":
            limit = Fraction(2) ** -127  # the smallest scale
            scale = scale_of(name, entry)
            assert scale == limit or 4 * scale <= top < 8 * scale
        elif name == "fp8":
            quotient = np.float32(float(top)) / np.float32(448)
            assert entry == (quotient.view(np.uint32) if quotient >= np.float32(2.0**-126) else 0)
        else:
            step = (max(0, *block) - min(0, *block)) / 15
            scale = scale_of(name, entry)
            assert abs(scale - step) <= step / 2**16 or (scale == 0 and step < Fraction(2) ** -126)
            assert scale == 0 or abs((entry & 15) * scale + min(0, *block)) <= scale / 2 + step / 2**10


def test_codes_equal_ml_dtypes(rng):
    """FP8 and MXFP4 codes are casts of weights divided by their scales."""
    x = blocks(rng, 50, 64, 60, 200)
    fp8, mx = FORMATS["fp8"].quantise(x), FORMATS["mxfp4"].quantise(x)
    quotient = bf16.decode(x) / fp8.entries.view(np.float32).astype(float)
    # ml_dtypes rounds the quotient to float32 first: its neighbours show where that can change the code
    single = quotient.clip(-448, 448).astype(np.float32)
    near = [np.nextafter(single, np.float32(end)) for end in (-np.inf, np.inf)]
    codes = [x.clip(-448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8) for x in (single, *near)]
    is_clear = np.logical_and.reduce([other == codes[0] for other in codes[1:]])
    assert is_clear.mean() > 0.95
    np.testing.assert_array_equal(fp8.codes[is_clear], codes[0][is_clear])
    scale = mx.entries.astype(np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(float).repeat(32, axis=1)
    codes = (bf16.decode(x) / scale).clip(-6, 6).astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    np.testing.assert_array_equal(mx.codes, codes & 15)


def test_default_groups():
    assert [form.group(4096) for form in FORMATS.values()] == [32, 128, 4096]


def test_int4_scales_hold_all_f16_and_bf16_numbers():
    """Every normal number of BF16 and every finite number of F16 is a scale without rounding."""
    patterns = np.arange(1 << 16, dtype=np.uint16)
    f16 = patterns.view(np.float16).astype(float)
    f16 = f16[np.isfinite(f16)]
    normal = bf16.decode(patterns[(patterns >> 7 & 255) % 255 > 0])
    for values in (f16, normal):
        np.testing.assert_array_equal(bf16.decode(bf16.encode(values, INT4_SCALE), INT4_SCALE), values)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f: f["int4"].quantise(np.ones((2, 4))), "weights must hold BF16 bit patterns"),
        (lambda f: f["fp8"].quantise(np.full((1, 4), 0xFF80, np.uint16)),
         "weights must be finite, got 0xff80 at row 0, column 0"),
        (lambda f: f["fp8"].quantise(np.zeros((1, 4), np.uint16), 0), "group must be at least 1, got 0"),
        (lambda f: f["int4"].tiles(f["int4"].quantise(np.zeros((4, 6), np.uint16)), 4),
         "inputs must be a multiple of 4, got 6"),
        (lambda f: f["int4"].tiles(f["int4"].quantise(np.zeros((64, 128), np.uint16), 32), 64),
         "group must be a multiple of 64, got 32"),
        (lambda f: f["mxfp4"].tiles(f["mxfp4"].quantise(np.zeros((64, 128), np.uint16), 16), 64),
         "group must be a multiple of 32, got 16"),
        (lambda f: f["int4"].columns(f["int4"].quantise(np.zeros((4, 64), np.uint16), 8), np.arange(64), 16),
         "group must cover each block of 16 inputs, got 8 inputs"),
        (lambda f: f["int4"].tiles(f["int4"].quantise(np.zeros((4, 4), np.uint16)), 2), "lanes must be at least 4"),
        (lambda f: PackedWeights(np.zeros((2, 8), np.uint8), np.zeros((2, 1), np.uint32), 4),
         r"entries must have shape \(2, 2\), got \(2, 1\)"),
    ],
)  # fmt: skip
def test_rejects_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call(FORMATS)
