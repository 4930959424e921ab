"""Packing of payloads against Amaranth's own constants."""

import numpy as np
import pytest
from amaranth import signed
from amaranth.lib import data
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.bench.payload import pack, unpack

LAYOUT = data.StructLayout(
    {"a": 3, "b": data.ArrayLayout(data.StructLayout({"x": 5, "y": 1}), 2), "c": 64, "d": 7, "e": 16}
)


def integers(words):
    return [int.from_bytes(row.tobytes(), "little") for row in words]


@settings(derandomize=True, database=None, deadline=None, max_examples=60)
@given(st.data())
def test_agrees_with_amaranth(source):
    n = source.draw(st.integers(1, 4))
    column = {
        key: source.draw(st.lists(st.integers(0, 2**w - 1), min_size=n, max_size=n))
        for key, w in {"a": 3, "c": 64, "d": 7, "e": 16}.items()
    }
    pairs = source.draw(st.lists(st.tuples(*[st.integers(0, 31), st.integers(0, 1)] * 2), min_size=n, max_size=n))
    words = pack(LAYOUT, {k: np.array(v, np.uint64) for k, v in column.items()})
    expected = [LAYOUT.const({k: column[k][i] for k in column}).as_value().value for i in range(n)]
    assert integers(words) == expected
    inner = LAYOUT["b"].shape
    array = [[{"x": p[0], "y": p[1]}, {"x": p[2], "y": p[3]}] for p in pairs]
    bits = unpack(inner, np.array([list(inner.const(row).as_value().value.to_bytes(2, "little")) for row in array]))
    assert bits["x"].tolist() == [[p[0], p[2]] for p in pairs]
    back = unpack(LAYOUT, words)
    assert {k: back[k].tolist() for k in column} == column


def test_signed_and_wide():
    layout = data.StructLayout({"s": signed(3), "w": 100})
    words = pack(layout, {"s": np.array([-4, 3]), "w": np.array([2**99, 5], object)})
    back = unpack(layout, words)
    assert back["s"].tolist() == [-4, 3]
    assert back["w"].tolist() == [2**99, 5]


def test_plain_shape():
    assert integers(pack(9, np.array([511, 0]))) == [511, 0]
    assert unpack(9, pack(9, np.array([511, 0]))).tolist() == [511, 0]


@pytest.mark.parametrize(
    "values,text",
    [
        ({"a": np.array([8])}, r"payload.a must be 0 to 7, got 8"),
        ({"a": np.array([-1])}, r"payload.a must be 0 to 7, got -1"),
        ({"z": np.array([0])}, "payload must have fields of a, b, c, d, e, got 'z'"),
        ({"a": np.array([0]), "d": np.array([0, 1])}, r"payload must have fields of equal length, got \[1, 2\]"),
        ({"b": np.array([0])}, r"payload.b must have shape \(n, 2, ...\), got \(1,\)"),
        ({"a": np.zeros((2, 2), int)}, r"payload.a must be one-dimensional, got shape \(2, 2\)"),
        (np.array([1]), "must be a mapping of field names"),
    ],
)
def test_rejects_values_that_do_not_fit(values, text):
    with pytest.raises(ValueError, match=text):
        pack(LAYOUT, values)


def test_a_structure_in_a_structure():
    layout = data.StructLayout({"inner": data.StructLayout({"x": 2, "y": 3}), "z": 1})
    words = pack(layout, {"inner": {"x": np.array([3, 1]), "y": np.array([5, 0])}, "z": np.array([1, 0])})
    assert integers(words) == [3 | 5 << 2 | 1 << 5, 1]
