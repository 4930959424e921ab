"""Why something is not reached: a list of patterns with one reason each, checked against what was measured."""

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
    """What is not reached, and why.

    kind : of `KINDS` ; where : file, or unit of a bin, with wildcards ; reason : one sentence
    what : regular expression; of `verilog` found in `source line -> arm`, of `toggle` in `signal[bit] edge`, of `bin`
        in `mode: boundary | back-pressure`, of `python` in the line or in one that it is indented under
    """

    kind: str
    where: str
    what: str
    reason: str

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind = {self.kind!r}: must be one of {', '.join(KINDS)}")
        if not self.reason.endswith("."):
            raise ValueError(f"reason = {self.reason!r}: must be a sentence")
        re.compile(self.what)


class Reasons:
    """The list; it remembers which entries it needed."""

    def __init__(self, listed: list[Reason]):
        self.listed, self.used = listed, dict.fromkeys(listed, 0)

    @classmethod
    def read(cls, path: Path) -> Reasons:
        """From a TOML file with tables `[[KIND]]`. Raises ValueError that names the file."""
        try:
            found = tomllib.loads(path.read_text())
            return cls([Reason(kind=kind, **entry) for kind, entries in found.items() for entry in entries])
        except (TypeError, ValueError, re.error) as error:
            raise ValueError(f"{path}: {error}") from error

    def find(self, kind: str, where: str, *texts: str) -> str | None:
        """The first reason for a point that is described by one of `texts`."""
        for one in self.listed:
            if one.kind == kind and fnmatch(where, one.where) and any(re.search(one.what, text) for text in texts):
                self.used[one] += 1
                return one.reason
        return None

    def stale(self) -> list[Reason]:
        """Entries that explained nothing."""
        return [one for one, uses in self.used.items() if not uses]


@cache
def lines(path: Path) -> list[str]:
    """Lines of a source file; none for a file that is not there."""
    return path.read_text().splitlines() if path.is_file() else []


def context(path: Path, number: int) -> list[str]:
    """Line `number` (from 1) and those that it is indented under, from the inside out, without indentation."""
    text = lines(path)
    if not 1 <= number <= len(text):
        return []
    found, indent = [text[number - 1].strip()], _indent(text[number - 1])
    for line in reversed(text[: number - 1]):
        if _indent(line) < indent and line.strip() and line.strip()[0] not in ")]}#":
            indent = _indent(line)
            found.append(line.strip())
    return found


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
