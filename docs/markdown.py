"""Parts of generated Markdown pages."""

from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "measurements"


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table."""
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)
