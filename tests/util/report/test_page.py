"""The page: self-contained, escaped, marked by origin, written completely or not at all."""

import html.parser
import json
import re

import numpy as np
import pytest

from util.report import ORIGINS, Bar, Column, Fact, Image, Marked, Section, Status, Table, run_metadata, write
from util.report import metadata as about
from util.report import page as page_module

PNG = b"\x89PNG\r\n\x1a\nrest"


class Reader(html.parser.HTMLParser):
    """Collects what a browser would see and load, and checks that tags close in order."""

    VOID = ("meta", "img", "br", "link", "input", "hr")

    def __init__(self, text):
        super().__init__()
        self.open, self.text, self.links, self.cells = [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href")]
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text.append(data)
        if "td" in self.open or "th" in self.open:
            self.cells[-1] += data


def render(tmp_path, *sections, metadata=None):
    path = write(tmp_path / "out" / "index.html", "A <title> & more", sections, metadata or {}, subtitle="below it")
    return Reader(path.read_text(encoding="utf-8"))


def test_everything_given_is_shown_and_escaped(tmp_path):
    table = Table(
        ["unit", Column("area", "µm²", origin="computed"), Column("share", "%", ".1f")],
        [["HCU <16>", Marked(12345.6, "measured from RTL"), 0.284], ["WTU", None, np.float64(1.23)]],
        caption="per core",
    )
    section = Section(
        "Area & power",
        ["first paragraph", "second <b>"],
        facts=[Fact("tokens", 12345, "of 1 layer", "paper")],
        images=[Image(PNG, "a frame", "below the frame")],
        tables=[table],
    )
    seen = render(tmp_path, section, Section("Other", "single text"), metadata={"seed": 3, "tools": {"numpy": "2.4"}})
    text = " ".join(" ".join(seen.text).split())
    for part in ("A <title> & more", "below it", "second <b>", "12,345", "of 1 layer", "below the frame", "per core"):
        assert part in text
    assert "single text" in text
    assert seen.cells == [
        *("unit", "area [µm²]computed", "share [%]"),
        *("HCU <16>", "12,346RTL", "0.3"),
        *("WTU", "–", "1.2"),
    ]
    assert re.search(r"tools numpy 2\.4", text)
    assert "run seed 3" in text


def test_status_has_color_and_link(tmp_path):
    row = [Status("passed <1>", "green"), Status("stale", "yellow", "#other")]
    seen = render(tmp_path, Section("One", tables=[Table(["a", "b"], [row])]), Section("Other"))
    assert seen.cells == ["a", "b", "passed <1>", "stale"] and seen.links == ["#one", "#other", "#other"]
    assert '<span class="status green">passed &lt;1&gt;</span>' in (tmp_path / "out" / "index.html").read_text()
    with pytest.raises(ValueError, match="color must be one of green, yellow, red, gray, got 'blue'"):
        Status("x", "blue")


def test_nothing_is_loaded_from_elsewhere(tmp_path):
    seen = render(tmp_path, Section("One", images=[Image(PNG, "x"), Image(b"<svg/>", "y")]), Section("Two"))
    assert [link.split(",")[0] for link in seen.links] == [
        *("#one", "#two"),
        *("data:image/png;base64", "data:image/svg+xml;base64"),
    ]
    text = (tmp_path / "out" / "index.html").read_text()
    assert "http" not in text
    assert "@import" not in text
    assert "<script" not in text


@pytest.mark.parametrize(
    ("value", "form", "shown"),
    [
        (None, "", "–"),
        (float("nan"), "", "–"),
        (True, "", "yes"),
        (np.int64(1234567), "", "1,234,567"),
        (0.012345, "", "0.0123"),
        (254.04, "", "254.0"),
        (99.96, "", "100"),
        (12345.6, "", "12,346"),
        (-3.21, "+.1f", "-3.2"),
        (7, ".2f", "7.00"),
        ("text", ".2f", "text"),
        (Marked(0.5, "paper"), "", "0.5"),
        (np.float32(2.5), "", "2.5"),
    ],
)
def test_numbers_as_shown(value, form, shown):
    assert page_module.show(value, form) == shown


def test_every_origin_has_its_mark_and_style(tmp_path):
    facts = [Fact(origin, 1, origin=origin) for origin in ORIGINS]
    render(tmp_path, Section("Marks", facts=facts))
    text = (tmp_path / "out" / "index.html").read_text()
    for origin, short in ORIGINS.items():
        assert f'class="mark {short.lower()}" title="{origin}"' in text
        assert f".mark.{short.lower()} {{" in text


def test_rejects(tmp_path):
    with pytest.raises(ValueError, match="table row 1 must have 2 values, got 3"):
        Table(["a", "b"], [[1, 2], [1, 2, 3]])
    for make in (lambda o: Marked(1, o), lambda o: Fact("a", 1, origin=o), lambda o: Column("a", origin=o)):
        with pytest.raises(ValueError, match=r"origin must be one of measured from RTL, .* got 'guessed'"):
            make("guessed")
    with pytest.raises(ValueError, match="title must not be empty"):
        write(tmp_path / "x.html", "", [], {})
    with pytest.raises(ValueError, match=r"sections must have different titles, got \['a-b'\] twice"):
        write(tmp_path / "x.html", "t", [Section("A b"), Section("a B")], {})
    assert not list(tmp_path.iterdir())


def test_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = write(tmp_path / "page.html", "first", [], {})
    before = path.read_text()

    def full(self, content):
        self.touch()
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        write(path, "second", [], {})
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]
    assert path.read_text() == before


def test_unwritable_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        write(tmp_path / "file" / "page.html", "t", [], {})


def test_metadata_tells_how_to_run_again(tmp_path):
    metadata = run_metadata({"seed": 3, "nested": {"grid": 3}})
    assert metadata["configuration"] == {"seed": 3, "nested": {"grid": 3}}
    assert {"python", "numpy", "av"} <= set(metadata["tools"])
    json.dumps(metadata)
    seen = render(tmp_path, metadata=metadata)
    assert "nested.grid" in seen.text


def test_a_cell_without_a_value_stands_as_its_column_does_and_has_no_origin(tmp_path):
    rows = [("high", 1.5), (Marked(None, "paper"), Marked(None, "paper")), (Marked("low", "paper"), np.nan)]
    page = write(tmp_path / "p.html", "T", [Section("S", tables=[Table(["words", "numbers"], rows)])], {}).read_text()
    cells = re.findall(r'<td class="(\w+)">(.*?)</td>', page)
    assert [(kind, cell.split("<")[0]) for kind, cell in cells] == [
        ("text", "high"), ("n", "1.5"), ("text", "–"), ("n", "–"), ("text", "low"), ("n", "–")
    ]  # fmt: skip
    assert [cell for _, cell in cells if "<span" in cell] == [cells[4][1]]


def test_tools_that_are_not_installed_are_left_out(monkeypatch):
    monkeypatch.setattr(about, "TOOLS", ("numpy", "no-such-package"))
    assert set(about.tool_versions()) == {"python", "numpy"}


def test_bars_have_widths_names_and_a_key(tmp_path):
    rows = [["hcu", Bar({"clock": 3.0, "logic": 1.0}, 8.0, "mW")], ["wtu", None]]
    page = write(tmp_path / "p.html", "T", [Section("S", tables=[Table(["unit", "power"], rows)])], {}).read_text()
    segments = re.findall(r'<div style="width:([\d.]+)%;background:(#\w+)" title="([^"]+)">', page)
    assert [(float(width), title) for width, _, title in segments] == [(37.5, "clock: 3 mW"), (12.5, "logic: 1 mW")]
    for (_, color, _), name in zip(segments, ("clock", "logic"), strict=True):
        assert f'background:{color}"></span>{name}</span>' in page
    for values, maximum in (({"a": 2.0}, 1.0), ({"a": -1.0}, 1.0), ({}, 0.0)):
        with pytest.raises(ValueError, match="maximum must be above 0 and at least the sum of the values, got"):
            Bar(values, maximum)


def test_collapsed_table_is_in_details_with_its_caption(tmp_path):
    tables = [Table(["a"], [[1]], "cells", collapsed=True), Table(["b"], [[2]], "open")]
    page = write(tmp_path / "p.html", "T", [Section("S", tables=tables)], {}).read_text()
    assert page.count("<details><summary>cells</summary>") == page.count("<details>") == page.count("</details>") == 1
    assert "<caption>open</caption>" in page and "<caption>cells" not in page
    Reader(page)
    with pytest.raises(ValueError, match="caption must not be empty in a collapsed table"):
        Table(["a"], [], collapsed=True)


def test_legend_explains_the_origins_in_use_only(tmp_path):
    plain = write(tmp_path / "p.html", "T", [Section("S", tables=[Table(["a"], [[1]])])], {}).read_text()
    assert '<p class="legend">' not in plain
    sections = [Section("S", facts=[Fact("f", 1, origin="paper")], tables=[Table(["a"], [[Marked(2, "computed")]])])]
    page = write(tmp_path / "p.html", "T", sections, {}).read_text()
    legend = re.search(r'<p class="legend">(.*?)</p>', page, re.S).group(1)
    assert "as published" in legend and "from first principles" in legend and "assumption" not in legend
