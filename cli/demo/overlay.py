"""Pictures of clusters: a video frame with coloured tokens, and the clusters of all tokens of a video."""

from __future__ import annotations

import colorsys
import io

import numpy as np
from PIL import Image as Picture
from PIL import ImageDraw, ImageFont

from util.report.page import Image

GOLDEN_RATIO = 0.6180339887
TINT = 0.42
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont
MARGIN = 30  # pixels above the frame, for the class token


def cluster_color(cluster: int) -> tuple[int, int, int]:
    """The colour of a cluster, the same in all pictures; consecutive numbers have different hues."""
    hue = (cluster * GOLDEN_RATIO) % 1.0
    red, green, blue = colorsys.hsv_to_rgb(hue, (0.75, 0.5, 0.9)[cluster % 3], (0.85, 0.95, 0.65)[cluster % 3])
    return round(255 * red), round(255 * green), round(255 * blue)


def _png(picture: Picture.Image) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, "PNG", optimize=True)
    return stream.getvalue()


def frame_clusters(rgb: np.ndarray, clusters: np.ndarray, *, caption: str = "") -> Image:
    """One frame, uint8 (height, width, 3), whose cells have the colour and, where it fits, the number of their cluster.

    `clusters` holds the class token's cluster and then the cells' in row order: 1 + grid**2 numbers.
    """
    grid = round(np.sqrt(len(clusters) - 1)) if len(clusters) > 1 else 0
    if grid < 1 or grid * grid + 1 != len(clusters):
        raise ValueError(f"clusters must have 1 + grid**2 entries, got {len(clusters)}")
    if rgb.dtype != np.uint8 or rgb.ndim != 3 or rgb.shape[2] != 3:
        raise ValueError(f"rgb must be uint8 (height, width, 3), got {rgb.dtype} {rgb.shape}")
    height, width, _ = rgb.shape
    y, x = np.arange(height) * grid // height, np.arange(width) * grid // width
    colors = np.array([cluster_color(int(c)) for c in clusters[1:]]).reshape(grid, grid, 3)[y][:, x]
    mixed = (1 - TINT) * rgb + TINT * colors
    edges = (np.diff(y, prepend=0) > 0)[:, None] | (np.diff(x, prepend=0) > 0)
    mixed[edges] = 255
    picture = Picture.new("RGB", (width, height + MARGIN), "white")
    picture.paste(Picture.fromarray(mixed.astype(np.uint8)), (0, MARGIN))
    draw = ImageDraw.Draw(picture)
    draw.rectangle((0, 0, 96, MARGIN - 5), fill=cluster_color(int(clusters[0])))
    _label(draw, (48, (MARGIN - 4) / 2), f"CLS {clusters[0]}", ImageFont.load_default(17))
    cell = min(width, height) / grid
    if cell >= 24:
        font = ImageFont.load_default(min(22, cell / 2.4))
        for index, cluster in enumerate(clusters[1:]):
            row, column = divmod(index, grid)
            center = ((column + 0.5) * width / grid, MARGIN + (row + 0.5) * height / grid)
            _label(draw, center, str(cluster), font)
    return Image(_png(picture), f"Frame whose tokens are in clusters {', '.join(map(str, clusters))}", caption)


def _label(draw: ImageDraw.ImageDraw, center: tuple[float, float], text: str, font: Font) -> None:
    draw.text(center, text, fill="white", font=font, anchor="mm", stroke_width=2, stroke_fill=(25, 32, 40))


def cluster_timeline(clusters: np.ndarray, tokens_per_frame: int, *, caption: str = "") -> Image:
    """All tokens of a video coloured by cluster: a column per frame, a row per token of the frame.

    `clusters` is the cluster of each token in arrival order, for complete frames.
    Static parts of the video appear as lines.
    """
    if tokens_per_frame < 1 or not len(clusters) or len(clusters) % tokens_per_frame:
        raise ValueError(
            f"clusters must hold whole frames of tokens_per_frame = {tokens_per_frame}, got {len(clusters)} tokens"
        )
    known, index = np.unique(clusters, return_inverse=True)
    colors = np.array([cluster_color(int(c)) for c in known], np.uint8)
    picture = colors[index].reshape(-1, tokens_per_frame, 3).swapaxes(0, 1)
    frames = picture.shape[1]
    wide, high = max(1, 1120 // frames), max(1, 180 // tokens_per_frame)
    return Image(
        _png(Picture.fromarray(np.ascontiguousarray(picture.repeat(high, 0).repeat(wide, 1)))),
        f"Clusters of {tokens_per_frame} tokens over {frames} frames",
        caption,
        wide=True,
    )
