"""Stimuli of the matrix and the vector engine, of the KV codec and of the decoder of weights.

Keys times keys or hyperplanes, softmax, norms, hash bits, and keys of the KV cache.
"""

from __future__ import annotations

import numpy as np
from ml_dtypes import bfloat16

from compiler import vector_programs as programs
from golden.hashing import hyperplanes
from golden.kv_formats import FIXED_BITS, Affine, BlockFloat
from golden.vpe import widen
from golden.weight_formats import FORMATS
from hw.arith.dot import DotTree
from hw.kv_codec.bfp import QUARTERS
from hw.kv_codec.bfp_decoder import BfpDecoder
from hw.kv_codec.bfp_encoder import BfpEncoder
from hw.kv_codec.kv_decoder import KvDecoder
from hw.kv_codec.kv_encoder import KvEncoder
from hw.lxe.dpe import DPE
from hw.lxe.microcode import Instruction
from hw.lxe.operand_memory import OperandMemory
from hw.lxe.vpe import VPE
from hw.weight_codec.weight_decoder import WeightDecoder
from synth.power.streams import STEP, Stimulus, drain


def _vectors(keys: np.ndarray | None, rows: int, width: int, rng: np.random.Generator) -> np.ndarray:
    """BF16 bits (rows, width): the keys in order, repeated as necessary; without keys normal deviates."""
    if keys is None:
        return rng.standard_normal((rows, width)).astype(bfloat16).view(np.uint16)
    flat = keys.reshape(len(keys), -1)
    wide = np.tile(flat, (1, -(-width // flat.shape[1])))[:, :width]
    return wide[np.arange(rows) % len(wide)].astype(bfloat16).view(np.uint16)


def dot_tree(unit: DotTree, name: str, keys: np.ndarray | None, count: int, rng: np.random.Generator) -> Stimulus:
    """Keys times hyperplanes, slice by slice, as for hash bits; without keys normal deviates."""
    if keys is None:
        a, b = rng.standard_normal((2, count, unit.inputs)).astype(bfloat16)
    else:
        flat = keys[:count].reshape(len(keys[:count]), -1)
        planes = hyperplanes(flat.shape[1]).T
        slices = flat.shape[1] // unit.inputs
        if not slices:
            raise ValueError(f"dimension of keys must be at least {unit.inputs}, got {flat.shape[1]}")
        token, chunk = np.divmod(np.arange(count), slices)
        columns = chunk[:, None] * unit.inputs + np.arange(unit.inputs)
        a = flat[token % len(flat), :][np.arange(count)[:, None], columns]
        b = planes[(token // len(flat)) % len(planes), :][np.arange(count)[:, None], columns]
    beats = {"a": a.view(np.uint16), "b": b.view(np.uint16)}
    return Stimulus(name, {"i": beats}, {"o": len(a)}, drain_cycles=drain(count))


def dpe(unit: DPE, name: str, keys: np.ndarray | None, count: int, rng: np.random.Generator) -> Stimulus:
    """Tiles of keys times columns of other keys, as a frame's scores; each result sums two tiles."""
    columns = min(STEP, unit.accumulators)
    tiles = -(-count // columns)
    weights = _vectors(keys, tiles * unit.trees, unit.inputs, rng)
    x = _vectors(None if keys is None else keys[::-1], tiles * columns, unit.inputs, rng)
    tile, accumulator = np.divmod(np.arange(tiles * columns), columns)
    last = (tile % 2 == 1) | (tile == tiles - 1)
    flags = {"accumulator": accumulator, "first": tile % 2 == 0, "last": last, "release": accumulator == columns - 1}
    inputs = {"i": {"x": x, **flags}, "i_weights": weights.reshape(-1, unit.load_rows, unit.inputs)}
    return Stimulus(name, inputs, {"o": int(last.sum())}, drain_cycles=drain(count))


def operand_memory(
    unit: OperandMemory, name: str, keys: np.ndarray | None, count: int, rng: np.random.Generator
) -> Stimulus:
    """Reads of the matrix engine for such columns, while one row per cycle is written, weights and activations in turn.

    Tiles are square, as in every preset.
    """
    columns = min(STEP, unit.accumulators)
    tiles = -(-count // columns)
    rows, reads = np.arange(count), np.arange(tiles * columns)
    bank = rows % 2
    address = np.where(bank, rows % unit.activation_rows, rows % unit.weight_rows)
    write = {"row": address, "activations": bank, "codes": _vectors(keys, count, unit.inputs, rng)}
    tile, accumulator = np.divmod(reads, columns)
    flags = {
        "accumulator": accumulator,
        "first": tile % 2 == 0,
        "last": tile % 2 == 1,
        "release": accumulator == columns - 1,
    }
    weights = np.arange(tiles * unit.inputs // unit.load_rows) % (unit.weight_rows // unit.load_rows)
    inputs = {
        "i_write": write,
        "i_weights": weights,
        "i_activations": {"row": reads % unit.activation_rows, **flags},
    }
    outputs = {"o_weights": len(weights), "o_activations": len(reads)}
    return Stimulus(name, inputs, outputs, drain_cycles=drain(count))


def vpe(unit: VPE, name: str, keys: np.ndarray | None, count: int, rng: np.random.Generator) -> Stimulus:
    """Softmax of rows that fill the lanes, the norm before a layer, and hash bits, repeated."""
    lanes = unit.lanes
    wide = 4 * lanes
    kinds = (
        (programs.softmax(wide, lanes, 64), 4),
        (programs.rms_factor(wide, lanes) + programs.rms_scale(wide, lanes), 13),
        (programs.hash_bits(min(32, lanes), lanes, 4), 4),
    )
    program: list[Instruction] = []
    beats = 0
    while beats < count:
        for code, operands in kinds:
            program += code
            beats += operands
    stream = widen(_vectors(keys, beats, lanes, rng))
    rows = [op.fields() for op in program]
    code_columns = {n: np.array([row[n] for row in rows], np.int64) for n in Instruction().fields()}
    results = sum(op.results for op in program)
    return Stimulus(name, {"code": code_columns, "i": stream}, {"o": results}, drain_cycles=drain(count))


def _words(keys: np.ndarray | None, count: int, lanes: int, rng: np.random.Generator) -> np.ndarray:
    """BF16 bits (count, lanes): the words of the keys, token by token; without keys normal deviates."""
    if keys is None or not count:
        return _vectors(None, count, lanes, rng)
    flat = keys.astype(bfloat16).view(np.uint16).ravel()
    return np.resize(flat[: max(1, len(flat) // lanes) * lanes], (count, lanes))


def kv_encoder(
    unit: KvEncoder | BfpEncoder, name: str, keys: np.ndarray | None, count: int, rng: np.random.Generator
) -> Stimulus:
    """Keys of consecutive tokens, word by word."""
    x = _words(keys, count, unit.lanes, rng)
    return Stimulus(name, {"i": x}, {"o": count}, drain_cycles=drain(count))


def kv_decoder(unit: KvDecoder, name: str, keys: np.ndarray | None, count: int, rng: np.random.Generator) -> Stimulus:
    """The same words, encoded."""
    packed = Affine(unit.bits, unit.lanes).encode(_words(keys, count, unit.lanes, rng))
    headers, mask = packed.headers.astype(np.int64), (1 << FIXED_BITS) - 1
    header = {"exponent": headers & 255, "low": headers >> 8 & mask, "high": headers >> 8 + FIXED_BITS & mask}
    inputs = {"i": {"codes": packed.codes, "header": header}}
    return Stimulus(name, inputs, {"o": count}, drain_cycles=drain(count))


def bfp_decoder(unit: BfpDecoder, name: str, keys: np.ndarray | None, count: int, rng: np.random.Generator) -> Stimulus:
    """The same words, encoded with 8 bits."""
    size, words = unit.lanes // QUARTERS, _words(keys, count, unit.lanes, rng)
    packed = BlockFloat(8, size).encode(words.reshape(-1, size))
    codes, header = packed.codes.reshape(-1, unit.lanes), packed.headers.astype(np.int64).reshape(-1, QUARTERS)
    return Stimulus(name, {"i": {"codes": codes, "header": header}}, {"o": count}, drain_cycles=drain(count))


def weight_decoder(
    unit: WeightDecoder, name: str, keys: np.ndarray | None, count: int, rng: np.random.Generator
) -> Stimulus:
    """Tiles of the same words as weights, in all formats one after the other; about `count` rows."""
    lanes, forms = unit.lanes, list(FORMATS.values()) if count else []
    tiles = max(1, count // (lanes * len(FORMATS)))
    words, weights = list[int](), _words(keys, tiles * lanes, lanes, rng)
    for form in forms:
        image = form.tiles(form.quantise(weights, 32 if form.name == "mxfp4" else lanes), lanes)
        flat = np.ascontiguousarray(image).reshape(-1, 2 * lanes)
        words += [int.from_bytes(word.tobytes(), "little") for word in flat]
    ones = np.ones(len(forms), np.int64)
    runs = {"encoding": np.array([form.number for form in forms], np.int64), "rows": tiles * ones, "tiles": ones}
    rows = len(forms) * tiles * lanes
    return Stimulus(
        name,
        {"runs": runs, "words": {"data": np.array(words, object), "last": np.zeros(len(words), np.int64)}},
        {"o": rows},
        drain_cycles=drain(rows),
    )
