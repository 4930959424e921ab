"""Reasons for coverage points that no test covers: a list of patterns with one reason each."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

KINDS = ("verilog", "toggle", "bin", "python")


@dataclass(frozen=True)
class Reason:
    """Pattern of coverage points that no test covers, and the reason.

    kind : one of `KINDS` ; where : file, or unit of a bin, with wildcards ; reason : one sentence
    what : regular expression that is searched in `source line -> arm` (`verilog`), `signal[bit] edge` (`toggle`),
        `mode: boundary | back-pressure` (`bin`), or the line and the lines that enclose it (`python`)
    """

    kind: str
    where: str
    what: str
    reason: str

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if not self.reason.endswith("."):
            raise ValueError(f"reason must end with a period, got {self.reason!r}")
        re.compile(self.what)


class Reasons:
    """The list of reasons; counts how many points each entry explains."""

    def __init__(self, entries: list[Reason]):
        self.entries, self.uses = entries, dict.fromkeys(entries, 0)

    @classmethod
    def read(cls, path: Path) -> Reasons:
        """Read a TOML file with tables `[[KIND]]`. Raises ValueError that names the file."""
        try:
            tables = tomllib.loads(path.read_text())
            return cls([Reason(kind=kind, **entry) for kind, entries in tables.items() for entry in entries])
        except (TypeError, ValueError, re.error) as error:
            raise ValueError(f"{path}: {error}") from error

    def find(self, kind: str, where: str, *texts: str) -> str | None:
        """The reason of the first entry that matches one of `texts`; None without a match."""
        for entry in self.entries:
            if (
                entry.kind == kind
                and fnmatch(where, entry.where)
                and any(re.search(entry.what, text) for text in texts)
            ):
                self.uses[entry] += 1
                return entry.reason
        return None

    def stale(self) -> list[Reason]:
        """Entries that matched no point."""
        return [entry for entry, uses in self.uses.items() if not uses]


@cache
def lines(path: Path) -> list[str]:
    """Lines of a source file; none when the file does not exist."""
    return path.read_text().splitlines() if path.is_file() else []


def context(path: Path, number: int) -> list[str]:
    """Line `number` (from 1) and the lines that enclose it, innermost first, without indentation."""
    text = lines(path)
    if not 1 <= number <= len(text):
        return []
    result, indent = [text[number - 1].strip()], _indent(text[number - 1])
    for line in reversed(text[: number - 1]):
        if _indent(line) < indent and line.strip() and line.strip()[0] not in ")]}#":
            indent = _indent(line)
            result.append(line.strip())
    return result


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
