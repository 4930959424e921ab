"""One self-contained HTML page from plain data: sections of text, key figures, tables and pictures."""

from sw_model.report.metadata import run_metadata
from sw_model.report.page import ORIGINS, Column, Fact, Image, Marked, Section, Table, write

__all__ = ["ORIGINS", "Column", "Fact", "Image", "Marked", "Section", "Table", "run_metadata", "write"]
