"""The layout of a head page: places of keys and values, and the bytes of encoded ones."""

from itertools import product

import numpy as np
import pytest

from golden.kv_formats import Affine, BlockFloat
from golden.page_layout import PageLayout
from hw.config import PRESETS, Config
from hw.kv_codec.page_layout import PageLayout as HardwareLayout
from tests.golden.kv_blocks import blocks


def layout(preset, kv_bits=4):
    c = Config.preset(preset)
    return PageLayout(c.head_dim, c.page_tokens, c.dpe_inputs, kv_bits)


@pytest.mark.parametrize("kv_bits", [16, 8, 4])
@pytest.mark.parametrize("preset", PRESETS)
def test_every_byte_belongs_to_one_slot(preset, kv_bits):
    """The keys and values of all slots fill the head page; blocks and their halves are whole words."""
    form = layout(preset, kv_bits)
    owners = np.zeros(form.head_page_bytes, int)
    for slot, value in product(range(form.page_tokens), range(2)):
        first = form.offset(slot, value)
        owners[first : first + form.key_bytes] += 1
        assert form.block_offset(slot) <= first < form.block_offset(slot) + form.block_bytes
    assert np.all(owners == 1)
    assert form.block_bytes // 2 % (2 * form.lanes) == 0 or kv_bits == 16
    for used in range(form.page_tokens + 1):
        ends = [form.offset(slot, value) + form.key_bytes for slot, value in product(range(used), range(2))]
        assert max(ends, default=0) <= form.used_bytes(used) < max(ends, default=0) + form.block_bytes


def test_bf16_slots():
    """Key, then value, slot after slot."""
    form = PageLayout(128, 32)
    assert [form.offset(slot, value) for slot, value in product(range(2), range(2))] == [0, 256, 512, 768]
    assert (form.block_tokens, form.head_page_bytes, form.used_bytes(3)) == (1, 16384, 1536)


def test_encoded_sizes():
    """At `paper` a page has 36 words with 4 bits and 68 words with 8 bits, instead of 128."""
    form = layout("paper")
    assert (form.record_bytes, form.key_bytes, form.block_tokens, form.head_page_bytes) == (36, 72, 16, 36 * 128)
    assert [form.used_bytes(used) for used in (0, 1, 16, 17, 32)] == [0, 2304, 2304, 4608, 4608]
    form = layout("paper", 8)
    assert (form.record_bytes, form.key_bytes, form.block_tokens, form.head_page_bytes) == (68, 136, 16, 68 * 128)


@pytest.mark.parametrize("preset", PRESETS)
def test_stored_bytes(preset, rng):
    """Each nibble and header, read from the bytes as one number, gives the level of the element."""
    form = layout(preset)
    keys = blocks(rng, 3 * form.head_dim // form.lanes, form.lanes).reshape(3, form.head_dim)
    stored = form.encode(keys)
    assert stored.shape == (3, form.key_bytes)
    decoded, affine = form.decode(stored), Affine(4, form.lanes)
    for token in range(3):
        number = int.from_bytes(stored[token].tobytes(), "little")
        for record in range(form.head_dim // form.lanes):
            bits = number >> 8 * form.record_bytes * record
            levels = affine.levels(np.array(bits >> 4 * form.lanes & 0xFFFFFFFF))
            want = [levels[bits >> 4 * element & 15] for element in range(form.lanes)]
            got = decoded[token, record * form.lanes : (record + 1) * form.lanes]
            assert got.tolist() == [int(level) for level in want]
    direct = affine.decode(affine.encode(keys.reshape(-1, form.lanes)))
    np.testing.assert_array_equal(decoded, direct.reshape(3, form.head_dim))


@pytest.mark.parametrize("preset", PRESETS)
def test_stored_bytes_of_8_bits(preset, rng):
    """Each byte, under the exponent of its quarter, gives the element."""
    form = layout(preset, 8)
    keys = blocks(rng, 12 * form.head_dim // form.lanes, form.lanes // 4).reshape(3, form.head_dim)
    stored = form.encode(keys)
    assert stored.shape == (3, form.key_bytes)
    quarter = BlockFloat(8, form.lanes // 4)
    packed = quarter.encode(keys.reshape(-1, form.lanes // 4))
    for n, record in enumerate(stored.reshape(-1, form.record_bytes)):
        assert record[: form.lanes].tolist() == packed.codes[4 * n : 4 * n + 4].ravel().tolist()
        assert record[form.lanes :].tolist() == packed.headers[4 * n : 4 * n + 4].tolist()
    np.testing.assert_array_equal(form.decode(stored), quarter.decode(packed).reshape(3, form.head_dim))


@pytest.mark.parametrize("kv_bits", [16, 8, 4])
@pytest.mark.parametrize("preset", PRESETS)
def test_hardware_has_the_same_layout(preset, kv_bits):
    golden, c = layout(preset, kv_bits), Config.preset(preset)
    unit = HardwareLayout(head_dim=c.head_dim, page_tokens=c.page_tokens, word=16 * c.dpe_inputs, kv_bits=kv_bits)
    for name in ("block_tokens", "block_bytes", "head_page_bytes"):
        assert getattr(unit, name) == getattr(golden, name), name
    assert unit.key_bits == 8 * golden.key_bytes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((8, 4, 4, 5), "kv_bits must be 16, 8 or 4, got 5"),
        ((8, 4, 2, 8), "lanes must be a multiple of 4 for kv_bits 8, got 2"),
        ((10, 4, 4, 4), "head_dim must be a multiple of lanes = 4, got 10"),
        ((8, 1, 4, 4), "page_tokens must be a multiple of 2, the tokens of a block, got 1"),
        ((0, 4, 4, 16), "head_dim must be at least 1, got 0"),
    ],
)
def test_rejects_bad_sizes(arguments, message):
    with pytest.raises(ValueError, match=message):
        PageLayout(*arguments)
