"""Treemaps: areas proportional to values, colours by group, labels and values in the page."""

import pytest

from util.report import Section, Tile, Treemap, write

TILES = (Tile("a", 300.0, "x"), Tile("b", 200.0, "x"), Tile("none", 0.0, "x"), Tile("c <1>", 90.0, "y"))


def test_areas_are_proportional_and_fill_the_square():
    boxes = Treemap(TILES, "um2", "areas").boxes()
    assert [box.tile.label for box in boxes] == ["a", "b", "c <1>"]
    for box in boxes:
        assert box.width * box.height == pytest.approx(1e4 * box.tile.value / 590)
        assert box.x >= 0 and box.x + box.width <= 100.001 and box.y >= 0 and box.y + box.height <= 100.001


def test_treemap_without_tiles_has_no_boxes():
    assert Treemap([], "um2", "areas").boxes() == []


def test_page_shows_boxes_labels_and_groups(tmp_path):
    treemap = Treemap(TILES, "um2", "areas", "caption below")
    page = write(tmp_path / "p.html", "T", [Section("S", treemaps=[treemap])], {}).read_text()
    assert page.count('class="box"') == 3 and 'title="c &lt;1&gt;: 90 um2"' in page
    assert 'aria-label="areas"' in page and "caption below" in page
    for group, color in treemap.colors.items():
        assert f'background:{color}"></span>{group}</span>' in page
