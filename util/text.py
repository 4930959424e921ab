"""Plain-text tables."""

from __future__ import annotations

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Table as text. Columns are as wide as their widest entry; the first is left-aligned, the others right-aligned."""
    all_rows = [list(head), *(list(row) for row in rows)]
    widths = [max(len(row[k]) for row in all_rows) for k in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = [row[0].ljust(widths[0]), *(text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True))]
        return "  ".join(cells).rstrip()

    return "\n".join([line(all_rows[0]), "  ".join("-" * width for width in widths), *map(line, all_rows[1:])])
