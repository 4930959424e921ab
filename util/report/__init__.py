"""One self-contained HTML page from plain data: sections of text, key figures, tables and pictures."""

from util.report.metadata import run_metadata
from util.report.page import ORIGINS, Column, Fact, Image, Marked, Section, Table, write

__all__ = ["ORIGINS", "Column", "Fact", "Image", "Marked", "Section", "Table", "run_metadata", "write"]
