"""Hash bits of keys: the signs of projections onto random hyperplanes (V-Rex, section IV-B)."""

import math

import numpy as np
from ml_dtypes import bfloat16

from util import checks

MAX_HASH_BITS = 32


def hyperplanes(dimension: int, hash_bits: int = 32, *, seed: int = 0, layer: int = 0) -> np.ndarray:
    """Normals of the `hash_bits` hyperplanes of one layer: bfloat16 (dimension, hash_bits), standard normal.

    Every layer has planes of its own, drawn from PCG64 seeded with `seed + layer`. In silicon this is a table.
    """
    checks.integer("dimension", dimension, 1)
    checks.integer("hash_bits", hash_bits, 1, MAX_HASH_BITS)
    normals = np.random.default_rng(checks.integer("seed + layer", seed + layer, 0)).standard_normal(
        (dimension, hash_bits)
    )
    return normals.astype(bfloat16)


def hash_codes(keys: np.ndarray, planes: np.ndarray, *, center: np.ndarray | None = None) -> np.ndarray:
    """Hash code of each key: bit j is 1 where `key . planes[:, j] > 0`, decided on the exact dot product.

    Parameters
    ----------
    keys : (T, ...) bfloat16, after RoPE; trailing axes are one vector (all KV heads of a token, concatenated)
    planes : (dimension, hash_bits) bfloat16
    center : (dimension,) real, optional; subtracted from every key first, in float64 (MagicPIG's variant)

    Returns
    -------
    uint32 (T,). A key of zeros has code 0.

    Raises
    ------
    ValueError
        Wrong shapes, more than 32 planes, NaN or infinite values.
    """
    normals = checks.reals("planes", planes, None, None)
    dimension, hash_bits = normals.shape
    checks.integer("number of planes", hash_bits, 1, MAX_HASH_BITS)
    array = np.asarray(keys)
    if array.ndim < 2:
        raise ValueError(f"keys must have shape (T, ...), got {array.shape}")
    vectors = checks.reals("keys", array.reshape(len(array), -1), None, dimension)
    exact = center is None
    if center is not None:
        vectors = vectors - checks.reals("center", center, dimension)
    dots = vectors @ normals
    # products of BF16 values are exact in float64 and only their sum rounds: near zero it is done again, exactly
    doubt = np.abs(dots) <= dimension * 2.0**-51 * (np.abs(vectors) @ np.abs(normals))
    for t, j in np.argwhere(doubt) if exact else ():
        dots[t, j] = math.fsum(vectors[t] * normals[:, j])
    weights = np.uint32(1) << np.arange(hash_bits, dtype=np.uint32)
    return ((dots > 0) * weights).sum(axis=1, dtype=np.uint32)
