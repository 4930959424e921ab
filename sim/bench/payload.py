"""Packing of stream payloads: NumPy columns to payload words and back, whole arrays at a time.

A payload word is a row of little-endian bytes, `uint8 (n, ceil(width / 8))`, as the simulator moves it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from amaranth.hdl import Shape
from amaranth.lib import data


def pack(layout: data.Layout | Shape | int, values: Mapping[str, np.ndarray] | np.ndarray) -> np.ndarray:
    """Payload words of a column per field (missing fields are 0), or of one column for a plain shape.

    A field that is itself a layout takes a mapping (struct) or an array with one more axis (array).
    Raises `ValueError` when a name is unknown, a value does not fit its field or the lengths differ.
    """
    return np.packbits(_bits(layout, values, "payload"), axis=1, bitorder="little")


def unpack(layout: data.Layout | Shape | int, words: np.ndarray) -> Any:
    """The inverse of `pack`: a column per field; unsigned fields up to 64 bits come as uint64, signed ones as int64."""
    return _columns(layout, np.unpackbits(np.asarray(words, np.uint8), axis=1, bitorder="little"))


def _bits(layout: Any, values: Any, where: str) -> np.ndarray:
    if isinstance(layout, data.ArrayLayout):
        array = np.asarray(values)
        if array.ndim < 2 or array.shape[1] != layout.length:
            raise ValueError(f"{where} must have shape (n, {layout.length}, ...), got {array.shape}")
        return np.concatenate(
            [_bits(layout.elem_shape, array[:, k], f"{where}[{k}]") for k in range(layout.length)], axis=1
        )
    if isinstance(layout, data.Layout):
        if not isinstance(values, Mapping):
            raise ValueError(f"{where} must be a mapping of field names, got {type(values).__name__}")
        fields = dict(iter(layout))
        if unknown := set(values) - set(fields):
            raise ValueError(
                f"{where} must have fields of {', '.join(map(str, fields))}, got {sorted(map(str, unknown))[0]!r}"
            )
        lengths = {len(np.atleast_1d(_leaf(value))) for value in values.values()}
        if len(lengths) != 1:
            raise ValueError(f"{where} must have fields of equal length, got {sorted(lengths)}")
        bits = np.zeros((lengths.pop(), layout.size), np.uint8)
        for name, value in values.items():
            field = fields[name]
            part = _bits(field.shape, value, f"{where}.{name}")
            bits[:, field.offset : field.offset + part.shape[1]] = part
        return bits
    shape = Shape.cast(layout)
    column = np.atleast_1d(np.asarray(values))
    if column.ndim != 1:
        raise ValueError(f"{where} must be one-dimensional, got shape {column.shape}")
    if shape.width > 64:
        return np.array([[int(v) >> k & 1 for k in range(shape.width)] for v in column], np.uint8)
    if column.size:
        low, high = (
            (-(1 << shape.width - 1), (1 << shape.width - 1) - 1) if shape.signed else (0, (1 << shape.width) - 1)
        )
        smallest, largest = int(column.min()), int(column.max())
        if smallest < low or largest > high:
            raise ValueError(f"{where} must be {low} to {high}, got {smallest if smallest < low else largest}")
    raw = column.astype(np.int64 if shape.signed else np.uint64).astype("<u8" if not shape.signed else "<i8")
    spread = np.unpackbits(raw.view(np.uint8).reshape(len(column), 8), axis=1, bitorder="little")
    return spread[:, : shape.width]


def _leaf(value: Any) -> Any:
    while isinstance(value, Mapping):
        value = next(iter(value.values()))
    return value


def _columns(layout: Any, bits: np.ndarray) -> Any:
    if isinstance(layout, data.ArrayLayout):
        width = Shape.cast(layout.elem_shape).width
        parts = [_columns(layout.elem_shape, bits[:, k * width : (k + 1) * width]) for k in range(layout.length)]
        if isinstance(parts[0], dict):
            return {name: np.stack([part[name] for part in parts], axis=1) for name in parts[0]}
        return np.stack(parts, axis=1)
    if isinstance(layout, data.Layout):
        return {
            str(name): _columns(field.shape, bits[:, field.offset : field.offset + Shape.cast(field.shape).width])
            for name, field in layout
        }
    shape = Shape.cast(layout)
    bits = bits[:, : shape.width]
    if shape.width > 64:
        words = np.packbits(bits, axis=1, bitorder="little")
        return np.array([int.from_bytes(row.tobytes(), "little") for row in words], object)
    full = np.zeros((len(bits), 64), np.uint8)
    full[:, : shape.width] = bits
    if shape.signed and shape.width:
        full[:, shape.width :] = bits[:, -1:]
    column = np.packbits(full, axis=1, bitorder="little").view("<u8").reshape(-1)
    return column.astype(np.int64) if shape.signed else column.astype(np.uint64)
