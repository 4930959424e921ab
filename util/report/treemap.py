"""Treemap: rectangles whose areas are proportional to values, as a general element of a report page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

PALETTE = ("#2f6690", "#7aa6c2", "#c8963e", "#3f7d6e", "#a4503c", "#7d6b9d", "#9fb8a0", "#8b939c", "#d3b58b", "#4a4e69")


@dataclass(frozen=True)
class Tile:
    """One value of a treemap; tiles of one group have one colour."""

    label: str
    value: float
    group: str


@dataclass(frozen=True)
class Box:
    """The rectangle of one tile, in per cent of the treemap's width and height."""

    tile: Tile
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Treemap:
    """Rectangles of the tiles above zero, the largest first; a pointer on a rectangle shows its label and value.

    Parameters
    ----------
    tiles : the values, all in `unit`
    alt : description in words for readers who do not see the picture
    """

    tiles: Sequence[Tile]
    unit: str
    alt: str
    caption: str = ""

    @property
    def colors(self) -> dict[str, str]:
        """Colour of every group, in the order in which the groups first occur."""
        groups = dict.fromkeys(tile.group for tile in self.tiles)
        return {group: PALETTE[index % len(PALETTE)] for index, group in enumerate(groups)}

    def boxes(self) -> list[Box]:
        """The rectangles; together they fill the treemap."""
        tiles = sorted((tile for tile in self.tiles if tile.value > 0), key=lambda tile: -tile.value)
        return list(_split(tiles, 0.0, 0.0, 100.0, 100.0))


def _split(tiles: Sequence[Tile], x: float, y: float, width: float, height: float) -> Iterator[Box]:
    """Divide a rectangle at its longer side into two parts of nearly equal value, recursively."""
    if not tiles:
        return
    if len(tiles) == 1:
        yield Box(tiles[0], x, y, width, height)
        return
    total = sum(tile.value for tile in tiles)
    sums = [sum(tile.value for tile in tiles[:count]) for count in range(1, len(tiles))]
    cut = min(range(len(sums)), key=lambda index: abs(sums[index] - total / 2))
    share = sums[cut] / total
    first, second = tiles[: cut + 1], tiles[cut + 1 :]
    if width >= height:
        yield from _split(first, x, y, width * share, height)
        yield from _split(second, x + width * share, y, width * (1 - share), height)
    else:
        yield from _split(first, x, y, width, height * share)
        yield from _split(second, x, y + height * share, width, height * (1 - share))
