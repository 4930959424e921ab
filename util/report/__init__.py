"""One self-contained HTML page from plain data: sections of text, key figures, tables, pictures and treemaps."""

from util.report.metadata import run_metadata
from util.report.page import ORIGINS, Bar, Column, Fact, Image, Marked, Section, Status, Table, render, write
from util.report.treemap import Tile, Treemap

__all__ = [
    "ORIGINS",
    "Bar",
    "Column",
    "Fact",
    "Image",
    "Marked",
    "Section",
    "Status",
    "Table",
    "Tile",
    "Treemap",
    "render",
    "run_metadata",
    "write",
]
