"""Hash bits of keys: the signs of projections onto random hyperplanes (V-Rex, section IV-B)."""

import math
from fractions import Fraction

import numpy as np
from ml_dtypes import bfloat16

from util import checks

MAX_HASH_BITS = 32


def hyperplanes(dimension: int, hash_bits: int = 32, *, seed: int = 0, layer: int = 0) -> np.ndarray:
    """Normal vectors of the random hyperplanes of one layer: bfloat16 (key_dim, hash_bits), standard normal.

    Every layer has its own hyperplanes, from PCG64 with seed `seed + layer`. Hardware stores them as a table.
    """
    checks.integer("dimension", dimension, 1)
    checks.integer("hash_bits", hash_bits, 1, MAX_HASH_BITS)
    normals = np.random.default_rng(checks.integer("seed + layer", seed + layer, 0)).standard_normal(
        (dimension, hash_bits)
    )
    return normals.astype(bfloat16)


def hash_codes(keys: np.ndarray, planes: np.ndarray, *, center: np.ndarray | None = None) -> np.ndarray:
    """Hash code of each key. Bit j is 1 if the exact dot product of the key and hyperplane j is positive.

    Parameters
    ----------
    keys : (T, ...) bfloat16, after RoPE; all trailing axes form one vector (all KV heads of a token, concatenated)
    planes : (key_dim, hash_bits) bfloat16, from `hyperplanes`
    center : (key_dim,) real; vector to subtract from every key first, in float64 (variant of MagicPIG); None: none

    Returns
    -------
    np.ndarray
        uint32 (T,). A key of zeros has code 0.

    Raises
    ------
    ValueError
        Wrong shapes, no tokens, more than 32 hyperplanes, NaN or infinite values.
    """
    normals = checks.reals("planes", planes, None, None)
    dimension, hash_bits = normals.shape
    checks.integer("number of planes", hash_bits, 1, MAX_HASH_BITS)
    array = np.asarray(keys)
    if array.ndim < 2:
        raise ValueError(f"keys must have shape (T, ...), got {array.shape}")
    if not len(array):
        raise ValueError("keys must hold at least one token, got none")
    vectors = checks.reals("keys", array.reshape(len(array), math.prod(array.shape[1:])), None, dimension)
    if center is not None:
        vectors = vectors - checks.reals("center", center, dimension)
    dots = vectors @ normals
    # products of BF16 values are exact in float64, but their sum is rounded: sums near zero are computed again, exactly
    doubt = np.abs(dots) <= dimension * 2.0**-51 * (np.abs(vectors) @ np.abs(normals))
    for t, j in np.argwhere(doubt):
        products = vectors[t] * normals[:, j]
        dots[t, j] = math.fsum(products)
        if center is not None and abs(dots[t, j]) <= 2.0**-52 * np.abs(products).sum():  # the products are rounded
            terms = zip(vectors[t].tolist(), normals[:, j].tolist(), strict=True)
            dots[t, j] = 1 if sum(Fraction(x) * Fraction(y) for x, y in terms) > 0 else 0
    weights = np.uint32(1) << np.arange(hash_bits, dtype=np.uint32)
    return ((dots > 0) * weights).sum(axis=1, dtype=np.uint32)
