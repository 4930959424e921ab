"""Runs of encoded tiles for the decoder of weights, with boundary scales and all codes."""

import numpy as np

from golden.weight_formats import BY_NUMBER
from tests.golden.weight_cases import matrix, near_ties


def runs(rng, lanes, count):
    """Random runs of all formats: payload columns of the runs, words as integers, and the decoded rows."""
    columns, words, rows = {"encoding": [], "rows": [], "tiles": []}, [], []
    for number in rng.integers(1, 4, count):
        form, (m_blocks, tiles) = BY_NUMBER[int(number)], rng.integers(1, 4, 2).tolist()
        run_words, run_rows = encoded(rng, form, lanes, m_blocks, tiles)
        for name, value in zip(columns, (form.number, m_blocks, tiles), strict=True):
            columns[name].append(value)
        words += run_words
        rows.append(run_rows)
    return columns, words, np.concatenate(rows)


def encoded(rng, form, lanes, m_blocks, tiles):
    """Words of a matrix as integers, and its decoded rows, tile after tile."""
    group = 32 if form.name == "mxfp4" else lanes
    return _tiles(form, lanes, matrix(rng, form, m_blocks * lanes, tiles * lanes, group))


def ties(rng, lanes):
    """A run of FP8: payload columns, words and decoded rows of products that round by one bit."""
    packed = near_ties(rng, lanes)
    words, rows = _tiles(BY_NUMBER[3], lanes, packed)
    return {"encoding": [3], "rows": [len(packed.codes) // lanes], "tiles": [1]}, words, rows


def _tiles(form, lanes, packed):
    image = np.ascontiguousarray(form.tiles(packed, lanes)).reshape(-1, 2 * lanes)
    decoded = form.decode_tiles(image.view("<u2"))
    return [int.from_bytes(word.tobytes(), "little") for word in image], decoded


def stimulus(columns, words):
    """Inputs of the decoder."""
    return {"runs": columns, "words": {"data": np.array(words, object), "last": [0] * len(words)}}


def bf16_rows(record, lanes):
    """Rows of BF16 bit patterns that a simulation returned."""
    data = b"".join(int(word).to_bytes(2 * lanes, "little") for word in record.outputs["o"]["data"])
    return np.frombuffer(data, "<u2").reshape(-1, lanes)
