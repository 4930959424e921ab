"""GDSII and PNG files of the layout of two inverters."""

import io
import struct

import numpy as np
import pytest
from PIL import Image

from synth.layout import wires
from synth.layout.gds import gds, layer_numbers
from synth.layout.picture import contact_sheet, picture, png


@pytest.fixture(scope="module")
def metal(pair):
    return wires.read(pair.routed(pair.text), pair.lef)


def records(content):
    """GDSII records as (type, data)."""
    result = []
    while content:
        length, kind = struct.unpack(">HH", content[:4])
        result.append((kind, content[4:length]))
        content = content[length:]
    return result


def test_gds(pair, metal):
    content = records(gds(pair.design, pair.lef, pair.placement, metal))
    kinds = [kind for kind, _ in content]
    assert kinds[0] == 0x0002 and kinds[-1] == 0x0400
    names = [data.rstrip(b"\0").decode() for kind, data in content if kind == 0x0606]
    assert names == ["INV_X1", "pair"]
    assert [data.rstrip(b"\0") for kind, data in content if kind == 0x1206] == [b"INV_X1"] * 2
    units = next(data for kind, data in content if kind == 0x0305)
    reals = [int.from_bytes(units[k + 1 : k + 8], "big") / 2**56 * 16.0 ** (units[k] - 64) for k in (0, 8)]
    assert reals == pytest.approx([1e-3, 1e-9], rel=1e-12)
    numbers = layer_numbers(pair.lef)
    boxes, layer = set(), 0
    for kind, data in content:
        if kind == 0x0D02:
            (layer,) = struct.unpack(">h", data)
        elif kind == 0x1003 and len(data) == 40:
            points = struct.unpack(">10i", data)
            boxes.add((layer, min(points[::2]), min(points[1::2]), max(points[::2]), max(points[1::2])))
    assert (numbers["metal1"], 5050, 9350, 8550, 9650) in boxes  # the wire of net n
    assert (numbers["via"], 4300, 9400, 4500, 9600) in boxes and (0, 0, 0, 16000, 20000) in boxes
    assert gds(pair.design, pair.lef, pair.placement, metal) == gds(pair.design, pair.lef, pair.placement, metal)


def test_picture(pair, metal):
    image = picture(pair.design, pair.lef, pair.placement, metal, caption=["two inverters"], size=400)
    shown = np.asarray(image)
    colors = {tuple(color) for color in shown.reshape(-1, 3)}
    assert (0x3B, 0x6F, 0xB6) in colors and (0xC0, 0x39, 0x2B) in colors  # metal1 and metal2
    content = png(image)
    assert Image.open(io.BytesIO(content)).size == image.size and len(content) < 20_000
    sheet = contact_sheet([(image, ["a layout"])] * 5, columns=3, width=100)
    assert sheet.width == 300 and sheet.height > 2 * round(image.height * 100 / image.width)
    assert (np.asarray(sheet)[-1] == 255).all() and (np.asarray(sheet)[:, :100] != 255).any()
