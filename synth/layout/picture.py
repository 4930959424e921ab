"""Pictures of a layout: cells, wires by layer, pins, and a caption with its figures."""

from __future__ import annotations

import io
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

from synth.layout.design import Design
from synth.layout.lef import Box, Lef
from synth.layout.placement import Placement
from synth.layout.wires import Wires

SIZE = 1200  # pixels of the longer side of the die
_MARGIN, _LINE = 16, 22
_LEGEND = 620  # width of the legend
_BACKGROUND, _INK, _CELL, _EDGE, _REGISTER = "white", "#202020", "#eef1f4", "#c3cad1", "#d8e2f0"
COLORS = ("#3b6fb6", "#c0392b", "#2e8b57", "#8e5ea2", "#d98c1f", "#4aa3a2")  # of the routing layers from the lowest


def picture(
    design: Design,
    lef: Lef,
    placement: Placement,
    wires: Wires,
    *,
    caption: Sequence[str],
    registers: frozenset[str] = frozenset(),
    size: int = SIZE,
) -> Image.Image:
    """A picture with `caption` above the die and the legend of the layers below; `registers` are library cells."""
    scale = size / max(placement.width, placement.height)
    width, height = (round(side * scale) for side in (placement.width, placement.height))
    top = _MARGIN + _LINE * len(caption) + _MARGIN // 2
    font = ImageFont.load_default(16)
    legend = [(name, COLORS[k % len(COLORS)]) for k, name in enumerate(lef.layers)]
    total_width = max(width, _LEGEND) + 2 * _MARGIN
    image = Image.new("RGB", (total_width, top + height + 2 * _MARGIN + _LINE), _BACKGROUND)
    draw = ImageDraw.Draw(image)

    def on_die(box: Box) -> tuple[float, float, float, float]:
        x0, y0, x1, y1 = (value * scale for value in box)
        return _MARGIN + x0, top + height - y1, _MARGIN + x1, top + height - y0

    for k, line in enumerate(caption):
        draw.text((_MARGIN, _MARGIN + k * _LINE), line, fill=_INK, font=font)
    draw.rectangle(on_die((0, 0, placement.width, placement.height)), outline=_INK)
    for instance, kind in design.cells.items():
        at, cell = placement.cells[instance], lef.cells[kind]
        fill = _REGISTER if kind in registers else _CELL
        draw.rectangle(on_die((at.x, at.y, at.x + cell.width, at.y + cell.height)), fill=fill, outline=_EDGE)
    for layer, color in legend:
        for segment in wires.segments:
            if segment.layer == layer:
                draw.rectangle(on_die(segment.box), fill=color)
    for via in wires.vias:
        _, box = via.shapes(lef)[0]
        draw.rectangle(on_die(box), fill=_INK)
    for port in design.ports:
        pin = placement.pins[port.name]
        draw.rectangle(on_die((pin.x - 400, pin.y - 400, pin.x + 400, pin.y + 400)), fill=_INK)
    x = float(_MARGIN)
    for layer, color in legend:
        y = top + height + _MARGIN
        draw.rectangle((x, y + 3, x + 14, y + 15), fill=color)
        draw.text((x + 20, y), layer, fill=_INK, font=font)
        x += 28 + draw.textlength(layer, font=font) + 8
    return image


def png(image: Image.Image, colors: int = 64) -> bytes:
    """An image as the content of a PNG file with a palette."""
    stream = io.BytesIO()
    image.quantize(colors, dither=Image.Dither.NONE).save(stream, "PNG", optimize=True)
    return stream.getvalue()


def contact_sheet(
    images: Sequence[tuple[Image.Image, Sequence[str]]], *, columns: int = 4, width: int = 340
) -> Image.Image:
    """Pictures side by side, each `width` pixels wide with its caption below."""
    font = ImageFont.load_default(13)
    small = [
        image.resize((width, round(image.height * width / image.width)), Image.Resampling.LANCZOS)
        for image, _ in images
    ]
    lines = max(len(caption) for _, caption in images)
    height = max(image.height for image in small) + 17 * lines + _MARGIN
    sheet = Image.new("RGB", (columns * width, -(-len(images) // columns) * height), _BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    for k, (image, (_, caption)) in enumerate(zip(small, images, strict=True)):
        x, y = k % columns * width, k // columns * height
        sheet.paste(image, (x, y))
        for row, line in enumerate(caption):
            draw.text((x + 6, y + image.height + 17 * row), line, fill=_INK, font=font)
    return sheet
