"""The report page: its elements, and the function that writes them as one HTML file.

Every number can carry its origin (`ORIGINS`). The page marks the number, so that a reader sees whether it was measured
on the RTL, computed, or taken from a publication.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from util.files import write as write_file
from util.report.treemap import PALETTE, Treemap

# origin -> the mark that follows the number
ORIGINS = {
    "measured from RTL": "RTL",
    "measured on golden": "golden",
    "computed": "computed",
    "paper": "paper",
    "assumed": "assumed",
}
# origin -> explanation in the legend, where it differs from the origin
MEANINGS = {"computed": "from first principles", "paper": "as published", "assumed": "an assumption, source given"}
STATUS_COLORS = ("green", "yellow", "red", "gray")
NO_VALUE = "–"  # text of a cell without a value


@dataclass(frozen=True)
class Marked:
    """A value with its origin, in a cell of a table."""

    value: Any
    origin: str

    def __post_init__(self) -> None:
        _check_origin(self.origin)


@dataclass(frozen=True)
class Bar:
    """A stacked bar in a cell of a table: named values on a scale that ends at `maximum`."""

    values: Mapping[str, float]
    maximum: float
    unit: str = ""

    def __post_init__(self) -> None:
        values = self.values.values()
        if self.maximum <= 0 or min(values, default=0) < 0 or sum(values) > self.maximum * 1.000001:
            raise ValueError(f"maximum must be above 0 and at least the sum of the values, got {self.maximum}")

    @property
    def segments(self) -> list[tuple[str, float, float]]:
        """Name, value and width in per cent of every value above zero."""
        return [(name, value, 100 * value / self.maximum) for name, value in self.values.items() if value]


@dataclass(frozen=True)
class Status:
    """A state in a cell of a table: its text on a colour. `link` is the address to which it leads."""

    text: str
    color: str
    link: str = ""

    def __post_init__(self) -> None:
        if self.color not in STATUS_COLORS:
            raise ValueError(f"color must be one of {', '.join(STATUS_COLORS)}, got {self.color!r}")

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Fact:
    """A key figure in large type."""

    name: str
    value: Any
    unit: str = ""
    origin: str | None = None

    def __post_init__(self) -> None:
        _check_origin(self.origin)


@dataclass(frozen=True)
class Column:
    """A column: its title, the unit of all its numbers, a format such as `.1f`, and their common origin."""

    title: str
    unit: str = ""
    format: str = ""
    origin: str | None = None

    def __post_init__(self) -> None:
        _check_origin(self.origin)


@dataclass(frozen=True)
class Table:
    """Rows of values under `columns`; a plain string is a column without unit. The page shows None as a dash.

    A `collapsed` table shows its caption only, until the reader opens it.
    """

    columns: Sequence[Column | str]
    rows: Sequence[Sequence[Any]]
    caption: str = ""
    collapsed: bool = False

    def __post_init__(self) -> None:
        for index, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise ValueError(f"table row {index} must have {len(self.columns)} values, got {len(row)}")
        if self.collapsed and not self.caption:
            raise ValueError("caption must not be empty in a collapsed table, got ''")

    @property
    def heads(self) -> list[Column]:
        """The columns, plain strings converted."""
        return [column if isinstance(column, Column) else Column(column) for column in self.columns]

    @property
    def bar_colors(self) -> dict[str, str]:
        """Colour of every name in the table's bars, in the order in which the names first occur."""
        bars = [value for row in self.rows for value in row if isinstance(value, Bar)]
        names = dict.fromkeys(name for bar in bars for name in bar.values)
        return {name: PALETTE[index % len(PALETTE)] for index, name in enumerate(names)}


@dataclass(frozen=True)
class Image:
    """A picture as bytes in SVG or PNG; `alt` describes it in words; a wide one takes the page's width."""

    content: bytes
    alt: str
    caption: str = ""
    wide: bool = False

    @property
    def uri(self) -> str:
        kind = "png" if self.content.startswith(b"\x89PNG") else "svg+xml"
        return f"data:image/{kind};base64,{base64.b64encode(self.content).decode()}"


@dataclass(frozen=True)
class Section:
    """One section of the page: paragraphs, key figures, a gallery of small pictures, pictures, treemaps, tables."""

    title: str
    text: str | Sequence[str] = ()
    facts: Sequence[Fact] = ()
    gallery: Sequence[Image] = ()
    images: Sequence[Image] = ()
    treemaps: Sequence[Treemap] = ()
    tables: Sequence[Table] = ()

    @property
    def anchor(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")

    @property
    def paragraphs(self) -> list[str]:
        return [self.text] if isinstance(self.text, str) and self.text else list(self.text)

    @property
    def origins(self) -> set[str]:
        """Origins of the section's numbers."""
        marked = [fact.origin for fact in self.facts]
        for table in self.tables:
            marked += [column.origin for column in table.heads]
            marked += [value.origin for row in table.rows for value in row if isinstance(value, Marked)]
        return {origin for origin in marked if origin}


def _check_origin(origin: str | None) -> None:
    if origin is not None and origin not in ORIGINS:
        raise ValueError(f"origin must be one of {', '.join(ORIGINS)}, got {origin!r}")


def show(value: Any, form: str = "") -> str:
    """A value as the page prints it: thousands separated, a suitable number of digits, a dash for no value."""
    if isinstance(value, Marked):
        value = value.value
    if value is None or (isinstance(value, float | np.floating) and np.isnan(value)):
        return NO_VALUE
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, int | float | np.number) and form:
        return format(value, form)
    if isinstance(value, int | np.integer):
        return f"{value:,}"
    if isinstance(value, float | np.floating):
        size = abs(float(value))
        return f"{value:,.0f}" if size >= 1000 else f"{value:.1f}" if size >= 100 else f"{value:.3g}"
    return str(value)


def _is_number(value: Any) -> bool:
    value = value.value if isinstance(value, Marked) else value
    return value is None or isinstance(value, int | float | np.number)


def _groups(metadata: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Metadata as titled lists: a nested mapping is a list of its own, deeper ones have dotted names."""

    def flat(prefix: str, value: Any) -> list[tuple[str, str]]:
        if isinstance(value, Mapping):
            return [pair for key, inner in value.items() for pair in flat(f"{prefix}.{key}" if prefix else key, inner)]
        return [(prefix, str(value) if isinstance(value, int | float) else show(value))]

    plain = {key: value for key, value in metadata.items() if not isinstance(value, Mapping)}
    nested = {key: value for key, value in metadata.items() if isinstance(value, Mapping)}
    groups = [("run", flat("", plain))] if plain else []
    return groups + [(key, flat("", value)) for key, value in nested.items() if value]


def render(title: str, sections: Sequence[Section], metadata: Mapping[str, Any], subtitle: str = "") -> str:
    """The page as HTML text that needs no other file.

    The page ends with `metadata`, nested mappings as groups (`run_metadata` makes one). Raises ValueError for an empty
    title or two sections with the same title.
    """
    anchors = [section.anchor for section in sections]
    if not title or not all(anchors):
        raise ValueError("title must not be empty, on the page and in every section")
    if duplicates := {anchor for anchor in anchors if anchors.count(anchor) > 1}:
        raise ValueError(f"sections must have different titles, got {sorted(duplicates)} twice")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["show"] = show
    environment.tests["number"] = _is_number
    environment.tests["available"] = lambda value: show(value) != NO_VALUE
    environment.tests["marked"] = lambda value: isinstance(value, Marked)
    environment.tests["status"] = lambda value: isinstance(value, Status)
    environment.tests["bar"] = lambda value: isinstance(value, Bar)
    used = {origin for section in sections for origin in section.origins}
    return environment.get_template("page.html.j2").render(
        title=title,
        subtitle=subtitle,
        sections=sections,
        metadata=_groups(metadata),
        origins=ORIGINS,
        legend={origin: MEANINGS.get(origin, origin) for origin in ORIGINS if origin in used},
    )


def write(
    path: Path | str, title: str, sections: Sequence[Section], metadata: Mapping[str, Any], subtitle: str = ""
) -> Path:
    """Write the page of `render` to `path`, first under a temporary name, then renamed; returns the path.

    Raises ValueError as `render` does, OSError if the file cannot be written.
    """
    write_file(Path(path), render(title, sections, metadata, subtitle))
    return Path(path)
