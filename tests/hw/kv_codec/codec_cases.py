"""Words of BF16 codes for the KV codec, and golden results as columns of its streams."""

import numpy as np

from golden.kv_formats import FIXED_BITS, Affine
from tests.golden.kv_blocks import blocks, boundaries

SPECIAL = (0x7F80, 0xFF80, 0x7FC0, 0xFF81, 0x7FFF)  # infinities and NaN


def words(rng, lanes, count):
    """Words of every kind in mixed order: random exponents, boundaries, equal elements, ties, thresholds between codes,
    infinities and NaN."""
    random = blocks(rng, 4 * count, lanes)
    edges = np.tile(boundaries(), (1, max(1, lanes // 8)))
    edges = np.concatenate([edges[:, first : first + lanes] for first in range(0, edges.shape[1], lanes)])
    special = blocks(rng, count, lanes, 100, 254)
    special[np.arange(count), rng.integers(0, lanes, count)] = rng.choice(SPECIAL, count)
    equal = blocks(rng, count, 1).repeat(lanes, axis=1)
    ties = _integers(rng.integers(-120, 121, (count, lanes)))  # of one exponent: many lie between two levels
    ties[:, :2] = _integers(np.stack([np.full(count, -120), rng.integers(120, 121, count)], axis=1))
    near = blocks(rng, count, lanes, 120, 135)
    result = np.concatenate([random, edges, special, equal, ties, near, _thresholds(rng, lanes, 4 * count)])
    return result[rng.permutation(len(result))]


def _thresholds(rng, lanes, count):
    """Words of a minimum, a maximum, and numbers next to the threshold between two of 16 codes."""
    low, high = np.sort(rng.integers(-255, 256, (2, count, 1)) << rng.integers(0, 4, (count, 1)), axis=0)
    threshold = low + (high - low) * (2 * rng.integers(0, 15, (count, lanes)) + 1) / 30
    codes = _integers(threshold) + rng.integers(-1, 2, threshold.shape).astype(np.uint16)
    codes[:, :1], codes[:, 1:2] = _integers(low), _integers(high)
    return codes


def _integers(value):
    """BF16 codes of integers whose magnitudes have at most 8 bits."""
    bits = np.asarray(value, np.float32).view(np.uint32)
    return (bits >> 16).astype(np.uint16)


def columns(packed):
    """Payload columns of encoded words."""
    mask = (1 << FIXED_BITS) - 1
    header = packed.headers.astype(np.int64)
    fields = {"exponent": header & 255, "low": header >> 8 & mask, "high": header >> 8 + FIXED_BITS & mask}
    return {"codes": packed.codes, "header": fields}


def golden(unit):
    """The golden model of a unit's format."""
    return Affine(unit.bits, unit.lanes)
