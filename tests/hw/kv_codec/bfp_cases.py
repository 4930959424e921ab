"""Words of BF16 codes for the KV codec with 8 bits, and golden results as columns of its streams."""

import numpy as np

from golden.kv_formats import BlockFloat, Packed
from tests.hw.kv_codec.codec_cases import words


def quarters(rng, lanes, count):
    """Words of one kind, and words with quarters of different kinds, in mixed order."""
    rows = words(rng, lanes, count)
    if lanes >= 8:
        mixed = words(rng, lanes // 4, 4 * count)
        rows = np.concatenate([rows, mixed[: len(mixed) // 4 * 4].reshape(-1, lanes)])
    return rows[rng.permutation(len(rows))]


def encode(x):
    """Encoded words as columns of a stream, from BF16 bit patterns (N, lanes)."""
    lanes = x.shape[1]
    packed = BlockFloat(8, lanes // 4).encode(x.reshape(-1, lanes // 4))
    return {"codes": packed.codes.reshape(-1, lanes), "header": packed.headers.reshape(-1, 4).astype(np.int64)}


def decode(columns):
    """BF16 bit patterns (N, lanes) of encoded words."""
    codes, header = columns["codes"], columns["header"]
    size = codes.shape[1] // 4
    packed = Packed(codes.reshape(-1, size).astype(np.uint8), header.ravel().astype(np.uint32))
    return BlockFloat(8, size).decode(packed).reshape(codes.shape)
