"""The page: what a caller puts together, and how it is written.

Every number may carry its origin (`ORIGINS`), so that a reader sees at the number itself whether it was measured
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

# origin -> the mark shown beside the number
ORIGINS = {
    "measured from RTL": "RTL",
    "measured on golden": "golden",
    "computed": "computed",
    "paper": "paper",
    "assumed": "assumed",
}
NOTHING = "–"  # stands where there is no value


@dataclass(frozen=True)
class Marked:
    """A value with its origin, in a cell of a table."""

    value: Any
    origin: str

    def __post_init__(self) -> None:
        _check_origin(self.origin)


@dataclass(frozen=True)
class Fact:
    """A key figure, shown large."""

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
    """Rows of values under `columns`; a plain string is a column without unit. None shows as a dash."""

    columns: Sequence[Column | str]
    rows: Sequence[Sequence[Any]]
    caption: str = ""

    def __post_init__(self) -> None:
        for index, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise ValueError(f"table row {index} must have {len(self.columns)} values, got {len(row)}")


@dataclass(frozen=True)
class Image:
    """A picture as bytes in SVG or PNG; `alt` says in words what it shows; a wide one takes the page's width."""

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
    """One part of the page: text (paragraphs), key figures, a gallery of small pictures, pictures, tables."""

    title: str
    text: str | Sequence[str] = ()
    facts: Sequence[Fact] = ()
    gallery: Sequence[Image] = ()
    images: Sequence[Image] = ()
    tables: Sequence[Table] = ()

    @property
    def anchor(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")

    @property
    def paragraphs(self) -> list[str]:
        return [self.text] if isinstance(self.text, str) and self.text else list(self.text)


def _check_origin(origin: str | None) -> None:
    if origin is not None and origin not in ORIGINS:
        raise ValueError(f"origin must be one of {', '.join(ORIGINS)}, got {origin!r}")


def show(value: Any, form: str = "") -> str:
    """A value as the page prints it: thousands apart, a sensible number of digits, a dash for nothing."""
    if isinstance(value, Marked):
        value = value.value
    if value is None or (isinstance(value, float | np.floating) and np.isnan(value)):
        return NOTHING
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
    """Metadata as titled lists: nested mappings become groups of their own, deeper ones dotted names."""

    def flat(prefix: str, value: Any) -> list[tuple[str, str]]:
        if isinstance(value, Mapping):
            return [pair for key, inner in value.items() for pair in flat(f"{prefix}.{key}" if prefix else key, inner)]
        return [(prefix, str(value) if isinstance(value, int | float) else show(value))]

    plain = {key: value for key, value in metadata.items() if not isinstance(value, Mapping)}
    nested = {key: value for key, value in metadata.items() if isinstance(value, Mapping)}
    groups = [("run", flat("", plain))] if plain else []
    return groups + [(key, flat("", value)) for key, value in nested.items() if value]


def write(
    path: Path | str, title: str, sections: Sequence[Section], metadata: Mapping[str, Any], subtitle: str = ""
) -> Path:
    """Write the page to `path`: one file, nothing outside it is needed to read it.

    `metadata` closes the page, nested mappings as groups (`run_metadata` makes one). The file is written aside and
    renamed. Raises ValueError for an empty title or two sections with the same one, OSError if it cannot be written.
    """
    anchors = [section.anchor for section in sections]
    if not title or not all(anchors):
        raise ValueError("title must not be empty, on the page and in every section")
    if twice := {anchor for anchor in anchors if anchors.count(anchor) > 1}:
        raise ValueError(f"sections must have different titles, got {sorted(twice)} twice")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["show"] = show
    environment.tests["number"] = _is_number
    environment.tests["given"] = lambda value: show(value) != NOTHING
    environment.tests["marked"] = lambda value: isinstance(value, Marked)
    page = environment.get_template("page.html.j2").render(
        title=title,
        subtitle=subtitle,
        sections=[(section, [_columns(table) for table in section.tables]) for section in sections],
        metadata=_groups(metadata),
        origins=ORIGINS,
    )
    write_file(Path(path), page)
    return Path(path)


def _columns(table: Table) -> list[Column]:
    return [column if isinstance(column, Column) else Column(column) for column in table.columns]
