"""Streams of products for the matrix engine, and its Verilog as a function."""

import numpy as np

from golden import bf16
from sim.bench.run import simulate


def stream(unit, x, w):
    """Beats of `w` (M, K) times the columns of `x` (K, T): tile after tile, K inside M."""
    (rows, depth), tokens = w.shape, x.shape[1]
    blocks, steps = -(-rows // unit.trees), -(-depth // unit.inputs)
    w = np.pad(w, ((0, blocks * unit.trees - rows), (0, steps * unit.inputs - depth)))
    x = np.pad(x, ((0, steps * unit.inputs - depth), (0, 0)))
    tiles = w.reshape(blocks, unit.trees, steps, unit.inputs).swapaxes(1, 2)
    columns = np.tile(x.reshape(steps, unit.inputs, tokens).swapaxes(1, 2), (blocks, 1, 1, 1))
    step, token = np.meshgrid(np.arange(steps), np.arange(tokens), indexing="ij")
    flags = {"accumulator": token, "first": step == 0, "last": step == steps - 1, "release": token == tokens - 1}
    return {
        "i": {
            "x": columns.reshape(-1, unit.inputs),
            **{name: np.tile(value.astype(int), (blocks, 1, 1)).ravel() for name, value in flags.items()},
        },
        "i_weights": tiles.reshape(-1, unit.load_rows, unit.inputs),
    }


def run(unit, x, w, **options):
    """The product (T, M) from the Verilog, and the record."""
    beats = stream(unit, x, w)
    results = int(beats["i"]["last"].sum())
    record = simulate(unit, "dpe", beats, {"o": results}, **options)
    y = record.outputs["o"]["y"].reshape(-1, x.shape[1], unit.trees)
    assert np.array_equal(record.outputs["o"]["accumulator"], beats["i"]["accumulator"][beats["i"]["last"] == 1])
    return y.swapaxes(0, 1).reshape(x.shape[1], -1)[:, : len(w)], record


def operands(rng, rows, depth, tokens):
    """Weights and activations of a language model's size; a few zeros, subnormals and infinities."""
    w, x = bf16.encode(rng.standard_normal((rows, depth)) / 8), bf16.encode(rng.standard_normal((depth, tokens)))
    odd = np.array([0x0000, 0x8000, 0x0040, 0x7F80, 0x3F80], np.uint16)
    for values in (w, x):
        at = rng.random(values.shape) < 0.002
        values[at] = rng.choice(odd, at.sum())
    return x, w
