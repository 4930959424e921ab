"""KV number formats against exact fractions and ml_dtypes, with the boundaries of every rule."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from golden import bf16, kv_formats
from golden.kv_formats import (
    AFFINE2,
    AFFINE4,
    BFP8,
    E2M1,
    E4M3,
    FP4,
    INT4,
    INT8,
    MXFP4,
    MXFP8,
    BlockFloat,
    Packed,
    read_back,
)
from tests.golden.exact_numbers import floats, nearest, real, rounded
from tests.golden.kv_blocks import blocks, boundaries

FORMATS = {**kv_formats.PER_TOKEN, "affine2": AFFINE2, "bfp4": BlockFloat(4, 16)}


FLOATS = {E2M1: floats(ml_dtypes.float4_e2m1fn, 8), E4M3: floats(ml_dtypes.float8_e4m3fn, 127)}


def lower(x, points):
    """Index of the nearest point; the lower one of two."""
    return min(range(len(points)), key=lambda k: (abs(points[k] - x), k))


def floor_log2(x):
    exponent = 0
    while x >= 2:
        x, exponent = x / 2, exponent + 1
    while x < 1:
        x, exponent = x * 2, exponent - 1
    return exponent


def expected(form, block):
    """Decoded bit patterns of a finite block, from the definition of its format in fractions."""
    x = [real(code) for code in block]
    negative = [int(code) >> 15 == 1 for code in block]
    top = max(map(abs, x))
    if isinstance(form, kv_formats.Affine):
        field = max(int(code) >> 7 & 255 for code in block)
        unit = Fraction(2) ** (field - 137)
        if not top:
            return [0] * len(block)
        steps = 2**form.bits - 1
        fixed = [(-1 if a < 0 else 1) * int(abs(a) / unit + Fraction(1, 2)) for a in x]
        low, high = min(fixed), max(fixed)
        points = [low + Fraction(k * (high - low), steps) for k in range(steps + 1)]
        return [rounded(round(points[lower(Fraction(f), points)]) * unit) for f in fixed]
    if isinstance(form, BlockFloat):
        unit = Fraction(2) ** (max(int(code) >> 7 & 255 for code in block) - 125 - form.bits)
        limit = 2 ** (form.bits - 1) - 1
        numbers = [min(round(abs(a) / unit), limit) for a in x]  # Python rounds fractions to even
        return [rounded((-k if n else k) * unit) for k, n in zip(numbers, negative, strict=True)]
    if isinstance(form, kv_formats.Symmetric):
        steps = 2 ** (form.bits - 1) - 1
        points = [top * k / steps for k in range(steps + 1)]
        choose = lower
    elif isinstance(form, kv_formats.Microscaling):
        exponent = max(floor_log2(top) - (2 if form.element is E2M1 else 8), -127) if top else -127
        points = [p * Fraction(2) ** exponent for p in FLOATS[form.element]]
        choose = nearest
    else:
        scale = FLOATS[E4M3][nearest(top / 6, FLOATS[E4M3])]
        points = [p * scale for p in FLOATS[E2M1]]
        choose = nearest if scale else lower
    numbers = [points[choose(abs(a), points)] for a in x]
    return [rounded(-y if n else y, n) for y, n in zip(numbers, negative, strict=True)]


def check(form, x):
    result = form.decode(form.encode(x))
    want = np.array([expected(form, block) for block in x], np.uint16)
    np.testing.assert_array_equal(result, want)
    return result


@pytest.mark.parametrize("name", FORMATS)
def test_random_blocks_equal_fractions(name, rng):
    """Blocks of all exponents, and blocks near 1, where scales of 8 bits are in range."""
    form = FORMATS[name].resized(8)
    check(form, blocks(rng, 12, 8))
    check(form, blocks(rng, 25, 8, 118, 138))


@pytest.mark.parametrize("name", FORMATS)
def test_boundaries_equal_fractions(name, rng):
    """Zeros, equal numbers, subnormal inputs and scales, the largest numbers of both signs, ties."""
    form = FORMATS[name].resized(8)
    result = check(form, boundaries())
    assert np.all((result >> 7 & 255) < 255)  # finite numbers remain finite
    ties = rng.integers(1, 29, (20, 8)) / 4  # halves and quarters of steps of E2M1
    ties[:, 0] = rng.choice([6, 7, 14, 24, 48], 20)
    check(form, bf16.encode(ties))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("code", [0x7F80, 0xFF80, 0x7FC0, 0xFF81])
def test_infinity_and_nan_fill_their_block_with_nan(name, code, rng):
    form = FORMATS[name]
    x = blocks(rng, 3, form.block, 100, 150)
    x[1, form.block - 1] = code
    result = form.decode(form.encode(x))
    assert np.all(result[1] == 0x7FC0)
    assert np.all((result[[0, 2]] >> 7 & 255) < 255)


@pytest.mark.parametrize(("form", "dtype"), [(MXFP4, ml_dtypes.float4_e2m1fn), (MXFP8, ml_dtypes.float8_e4m3fn)])
def test_mx_elements_and_scales_equal_ml_dtypes(form, dtype, rng):
    """Codes after division by the scale are those of ml_dtypes, which saturates by itself or is clipped."""
    x = blocks(rng, 200, form.block, 60, 200)
    packed = form.encode(x)
    scale = packed.headers.astype(np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
    limit = float(ml_dtypes.finfo(dtype).max)
    codes = np.clip(bf16.decode(x) / scale[:, None], -limit, limit).astype(dtype).view(np.uint8)
    np.testing.assert_array_equal(packed.codes, codes & (1 << form.bits) - 1)


def test_fp4_scales_and_elements_equal_ml_dtypes(rng):
    """Quotients by a power of two are exact in float64; the scale of each block is chosen to be one."""
    x = bf16.encode(rng.integers(-24, 25, (100, 16)) / 4.0 * 2.0 ** rng.integers(-5, 7, (100, 1)))
    x[:, 0] = bf16.encode(6 * 2.0 ** rng.integers(-5, 7, 100))
    top = np.abs(bf16.decode(x)).max(axis=1)
    packed = FP4.encode(x)
    scale = (top / 6).astype(ml_dtypes.float8_e4m3fn)
    np.testing.assert_array_equal(packed.headers, scale.view(np.uint8))
    exact = np.log2(scale.astype(float)) % 1 == 0
    assert exact.any()
    quotient = bf16.decode(x[exact]) / scale[exact].astype(float)[:, None]
    codes = np.clip(quotient, -6, 6).astype(ml_dtypes.float4_e2m1fn).view(np.uint8) & 15
    np.testing.assert_array_equal(packed.codes[exact], codes)


@pytest.mark.parametrize("form", [AFFINE4, INT4, INT8], ids=str)
def test_error_is_at_most_half_a_step(form, rng):
    """Minimum and maximum of a block, or its largest magnitude, return with the error of one rounding at most."""
    x = bf16.encode(rng.standard_normal((200, form.block)))
    value, result = bf16.decode(x), bf16.decode(form.decode(form.encode(x)))
    affine = isinstance(form, kv_formats.Affine)
    span = np.ptp(value, axis=1) if affine else 2 * np.abs(value).max(axis=1)
    steps = 2**form.bits - 1 if affine else 2**form.bits - 2
    largest = np.abs(value).max(axis=1)
    assert np.all(np.abs(result - value).max(axis=1) <= span / steps / 2 + largest * 2.0**-8)
    if not affine:
        at = np.abs(value).argmax(axis=1)
        np.testing.assert_array_equal(
            np.take_along_axis(result, at[:, None], 1), np.take_along_axis(value, at[:, None], 1)
        )


@pytest.mark.parametrize(
    ("significands", "codes"),
    [
        ((128, 130, 129, 131, 253, 254, 255), (64, 65, 64, 66, 126, 127, 127)),  # ties go to even codes, 255 saturates
        ((64.5, 66.5, 0.5, 1, 1.5, 3, 5), (32, 33, 0, 0, 1, 2, 2)),  # of smaller exponents: 0.5 and 1 round to 0
    ],
)
def test_bfp8_codes(significands, codes):
    """A code counts twice the last place of the significands with the largest exponent."""
    x = np.array([(200, *significands), (-200, *(-k for k in significands))]) * 2.0**-9
    packed = BFP8.resized(8).encode(bf16.encode(x))
    expected = np.array([(100, *codes), (-100, *(-k for k in codes))])
    np.testing.assert_array_equal(packed.codes.view(np.int8), expected)
    assert packed.headers.tolist() == [127 + 7 - 9] * 2


def test_bfp8_decodes_every_code_exactly():
    """All codes of an encoder under all exponents against exact fractions; code 0 is +0."""
    codes = np.tile(np.delete(np.arange(256), 128).astype(np.uint8), (255, 1))
    result = BFP8.resized(255).decode(Packed(codes, np.arange(255, dtype=np.uint32)))
    for field in (0, 1, 2, 6, 7, 8, 127, 254):
        unit = Fraction(2) ** (field - 133)
        assert result[field].tolist() == [rounded(int(k) * unit) for k in codes[field].view(np.int8)]
    numbers = codes.view(np.int8) * 2.0 ** (np.arange(255) - 133)[:, None]
    normal = np.abs(numbers) >= 2.0**-126
    np.testing.assert_array_equal(bf16.decode(result)[normal], numbers[normal])
    np.testing.assert_array_equal(result[~normal], np.where(numbers < 0, 0x8000, 0)[~normal])


def test_bfp8_does_not_enlarge_numbers(rng):
    """The mean magnitude stays: half of the numbers with the largest exponent are ties."""
    x = bf16.encode(rng.standard_normal((4000, 16)))
    packed, number = BFP8.encode(x), np.abs(bf16.decode(x).astype(np.float64))
    assert abs(np.abs(bf16.decode(BFP8.decode(packed))).sum() / number.sum() - 1) < 3e-4
    unit = np.ldexp(1.0, packed.headers[:, None].astype(int) - 133)
    away = np.minimum(np.floor(number / unit + 0.5), 127) * unit  # ties away from zero
    assert away.sum() / number.sum() - 1 == pytest.approx(0.0028, abs=4e-4)


def test_bits_of_an_element():
    sizes = {name: form.element_bits for name, form in FORMATS.items()}
    assert sizes == {
        "mxfp4": 4.25, "mxfp8": 8.25, "fp4": 4.5, "int4": 4.5, "int8": 8.5, "bfp8": 8.5, "affine4": 4.5, "affine4s": 5,
        "affine2": 3, "bfp4": 4.5,
    }  # fmt: skip


@pytest.mark.parametrize("name", kv_formats.NAMES)
def test_read_back_of_a_cache(name, rng):
    """Tokens keep their order, heads do not mix, and KIVI leaves an incomplete group of keys in BF16."""
    keys, values = rng.standard_normal((2, 70, 2, 16)).astype(ml_dtypes.bfloat16).astype(np.float32)
    result = read_back(name, keys, values)
    limit = 0.5 if name == "kivi2" else 0.3
    for read, x in ((result.keys, keys), (result.values, values)):
        assert read.shape == x.shape and 0 < np.linalg.norm(read - x) / np.linalg.norm(x) < limit
    if name in kv_formats.KIVI:
        form = kv_formats.KIVI[name]
        np.testing.assert_array_equal(result.keys[64:], keys[64:])
        column = bf16.decode(form.decode(form.encode(bf16.encode(keys[32:64, 1, 3]))))
        np.testing.assert_array_equal(result.keys[32:64, 1, 3], column)
        key_bits = (form.element_bits * 64 + 16 * 6) / 70
        assert result.bits == pytest.approx((key_bits + form.resized(16).element_bits) / 2)
    elif name != "oaken":
        form = kv_formats.PER_TOKEN[name].resized(16)
        np.testing.assert_array_equal(
            result.values[7, 1], bf16.decode(form.decode(form.encode(bf16.encode(values[7, 1]))))
        )
        assert result.bits == form.element_bits


def test_bad_input():
    one = np.zeros((1, 32), np.uint16)
    for call, message in (
        (lambda: INT4.encode(np.zeros((1, 31), np.uint16)), "x must have blocks of 32 elements, got shape"),
        (lambda: INT4.encode(np.zeros((1, 32))), "x must hold BF16 bit patterns"),
        (lambda: INT4.decode(Packed(np.zeros((2, 32), np.uint8), np.zeros(1, np.uint32))), "codes must have shape"),
        (lambda: INT4.resized(0), "block must be at least 1, got 0"),
        (lambda: read_back("fp3", one[None], one[None]), "kv_format must be one of .*, got 'fp3'"),
        (lambda: read_back("int4", np.zeros((1, 1, 33)), np.zeros((1, 1, 33))), "head_dim must be a multiple of 32"),
        (lambda: read_back("int4", np.full((1, 1, 32), np.inf), np.zeros((1, 1, 32))), "keys must be finite"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            call()
