"""Charts and overlays show the values of their arguments."""

import io
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from PIL import Image as Picture

from cli.demo import overlay
from util.report import charts


def pixels(image):
    return np.array(Picture.open(io.BytesIO(image.content)).convert("RGB")).astype(int)


def test_frame_is_tinted_by_cluster():
    rgb = np.full((60, 90, 3), 100, np.uint8)
    picture = pixels(overlay.frame_clusters(rgb, np.array([5, 1, 2, 1, 3])))
    assert picture.shape == (60 + overlay.MARGIN, 90, 3)
    corners = {}
    for cell, (y, x) in enumerate([(3, 3), (3, 85), (55, 3), (55, 85)], start=1):
        corners[cell] = tuple(picture[overlay.MARGIN + y, x])
    assert corners[1] == corners[3]
    assert len(set(corners.values())) == 3
    for cell, cluster in ((1, 1), (2, 2), (4, 3)):
        want = (1 - overlay.TINT) * 100 + overlay.TINT * np.array(overlay.cluster_color(cluster))
        assert np.abs(np.array(corners[cell]) - want).max() <= 1
    assert tuple(picture[2, 2]) == overlay.cluster_color(5)


def test_any_grid_and_size():
    for height, width, grid in ((37, 61, 3), (24, 24, 8), (200, 90, 1)):
        image = overlay.frame_clusters(np.zeros((height, width, 3), np.uint8), np.arange(grid * grid + 1))
        assert pixels(image).shape == (height + overlay.MARGIN, width, 3)


def test_neighbouring_clusters_differ_in_colour():
    colors = np.array([overlay.cluster_color(c) for c in range(60)]).astype(int)
    assert np.abs(np.diff(colors, axis=0)).max(1).min() > 40
    assert len({tuple(color) for color in colors}) == 60


def test_timeline_has_a_column_per_frame_and_a_row_per_token():
    clusters = np.array([0, 1, 2, 0, 3, 2, 0, 1, 1])
    picture = pixels(overlay.cluster_timeline(clusters, 3))
    height, width = picture.shape[0] // 3, picture.shape[1] // 3
    for frame in range(3):
        for token in range(3):
            block = picture[token * height : (token + 1) * height, frame * width : (frame + 1) * width]
            assert (block == overlay.cluster_color(clusters[3 * frame + token])).all()


def test_overlay_rejects():
    frame = np.zeros((30, 30, 3), np.uint8)
    with pytest.raises(ValueError, match=r"clusters must have 1 \+ grid\*\*2 entries, got 6"):
        overlay.frame_clusters(frame, np.arange(6))
    with pytest.raises(ValueError, match="rgb must be uint8"):
        overlay.frame_clusters(frame.astype(float), np.arange(10))
    with pytest.raises(ValueError, match="clusters must hold whole frames of tokens_per_frame = 10, got 25 tokens"):
        overlay.cluster_timeline(np.zeros(25, int), 10)


@pytest.fixture
def drawn(monkeypatch):
    """The axes of every chart, in drawing order."""
    all_axes = []
    plain = charts._svg

    def record(draw, *rest):
        def both(axes):
            draw(axes)
            all_axes.append(axes)

        return plain(both, *rest)

    monkeypatch.setattr(charts, "_svg", record)
    return all_axes


def test_sizes_count_every_cluster(drawn):
    counts = {"a": np.array([1, 1, 2, 500]), "b": np.array([3])}
    image = charts.cluster_sizes(counts, caption="sizes")
    ET.fromstring(image.content)
    assert (image.caption, bool(image.alt)) == ("sizes", True)
    stairs = [patch.get_data() for patch in drawn[0].patches]
    assert [int(data.values.sum()) for data in stairs] == [4, 1]
    for cluster in (1, 2, 500):
        data = stairs[0]
        inside = (data.edges[:-1] <= cluster) & (cluster < data.edges[1:])
        assert data.values[inside].sum() >= 1


def test_growth_ends_at_the_number_of_clusters(drawn, rng):
    opened = rng.random(5000) < 0.1
    charts.cluster_growth({"layer 0": opened}, limit=1024)
    line = drawn[0].lines[0]
    assert (line.get_xdata()[-1], line.get_ydata()[-1]) == (5000, opened.sum())
    for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True):
        assert y == opened[:x].sum()
    assert list(drawn[0].lines[1].get_ydata()) == [1024, 1024]


def test_stacked_bars_add_up_and_mark_the_reference(drawn):
    parts = {"weights": [3.0, 4.0], "fetch": [1.0, 6.0], "never": [0.0, 0.0]}
    image = charts.stacked_bars(["1K", "40K"], parts, unit="ms", reference=[None, 12.0])
    ET.fromstring(image.content)
    (axes,) = drawn
    ends = [(round(p.get_y() + p.get_height() / 2), p.get_x() + p.get_width()) for p in axes.patches]
    assert ends == [(0, 3), (1, 4), (0, 4), (1, 10)]
    assert [t.get_text() for t in axes.texts] == ["4", "10, paper 12"]
    assert (list(axes.lines[0].get_xdata()), list(axes.lines[0].get_ydata())) == ([12.0], [1])
    assert axes.get_xlim()[1] > 12
    with pytest.raises(ValueError, match="series must have the same length"):
        charts.stacked_bars(["1K"], parts, unit="ms")


def test_paired_bars_tell_every_value(drawn):
    charts.paired_bars(["HCU", "WTU"], {"here": [0.5, None], "paper": [0.28, 1.23]}, unit="%")
    (axes,) = drawn
    assert [t.get_text() for t in axes.texts] == ["0.5", "–", "0.28", "1.23"]
    assert [p.get_width() for p in axes.patches] == [0.5, 0, 0.28, 1.23]


def test_curves_have_every_point_and_start_at_zero(drawn):
    charts.curves({"host": [(1, 2), (2, 4)], "device": [(1, 3), (2, 3)]}, x="minutes", y="MB", alt="memory")
    axes = drawn[-1]
    assert [line.get_xydata().tolist() for line in axes.get_lines()] == [[[1, 2], [2, 4]], [[1, 3], [2, 3]]]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["host", "device"]
    assert (axes.get_xlim()[0], axes.get_ylim()[0]) == (0, 0)


def test_empty_data_still_draws():
    for image in (
        charts.cluster_sizes({"none": np.zeros(0, int)}),
        charts.cluster_growth({"none": np.zeros(0, bool)}),
        charts.stacked_bars([], {}, unit="ms"),
    ):
        ET.fromstring(image.content)


def test_same_data_same_bytes():
    first, second = (charts.cluster_sizes({"a": np.arange(1, 9)}).content for _ in range(2))
    assert first == second
