"""Verilog with the locations of its Python source, for coverage.

Amaranth writes the location of operators and signals into RTLIL, but not the location of `If` and `Case`. yosys drops
most locations when it converts processes to multiplexers. This module keeps the processes, and every arm sets a marker
wire. A list at the end of the Verilog gives the location of each marker.

Amaranth has no public interface for this: `marked` replaces functions of `amaranth.hdl._nir` and `amaranth.back.rtlil`
while it is active. No other module does so; `tests/test_library_internals.py` checks these functions.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any
from unittest import mock

from amaranth import tracer
from amaranth.back import rtlil
from amaranth.hdl import _nir
from amaranth.lib import wiring

from hw import emit
from util.files import ROOT

MARK = "arm$"
_CLEAN_UP = ("techmap t:$fa", "memory_collect", "opt_expr", "opt_clean")


class _Patterns(tuple[str, ...]):
    """Patterns of a case, and their source location."""

    location: str


@cache
def _columns(code: CodeType) -> list[int]:
    return [(start or 0) + 1 for _, _, start, _ in code.co_positions()]


def _location(src_loc_at: int = 0) -> tuple[str, str]:
    """`tracer.get_src_loc` with the column, because one line may contain several multiplexers."""
    frame = sys._getframe(2 + src_loc_at)
    return relative(frame.f_code.co_filename), f"{frame.f_lineno}.{_columns(frame.f_code)[frame.f_lasti // 2]}"


def relative(file: str) -> str:
    """Path of a source file relative to the project root or to the site-packages folder."""
    path = Path(file)
    if path.is_relative_to(ROOT) and "site-packages" not in path.parts:
        return str(path.relative_to(ROOT))
    return file.rpartition("site-packages/")[2]


@contextmanager
def marked() -> Iterator[list[str]]:
    """Context in which Amaranth marks every arm; yields the list of `location arm`, in the order of the markers."""
    arms: list[str] = []
    matches, process = _nir.Matches.__init__, rtlil.Process.emit
    waiting: list[str] = []

    def record_location(self: Any, module_idx: int, *, value: Any, patterns: Any, src_loc: Any) -> None:
        matches(self, module_idx, value=value, patterns=patterns, src_loc=src_loc)
        if src_loc:  # None for statements that Amaranth generates, for example in a ResetInserter
            self.patterns = _Patterns(patterns)
            self.patterns.location = ":".join(map(str, src_loc))

    def mark(case: Any, text: str) -> None:
        case.contents.insert(0, rtlil.Assignment(f"\\{MARK}{len(arms)}", "1'1"))
        waiting.append(f"wire width 1 \\{MARK}{len(arms)}")
        arms.append(text)

    def mark_switches(contents: Any) -> None:
        for switch in [statement for statement in contents if isinstance(statement, rtlil.Switch)]:
            locations = [getattr(case.patterns, "location", None) for case in switch.cases if case.patterns]
            if not (locations and all(locations)):
                continue
            if all(case.patterns for case in switch.cases):
                switch.default()
            for case in switch.cases:
                mark_switches(case.contents)
                location = case.patterns.location if case.patterns else locations[0]
                shared = locations.count(location) > 1  # an Array: all its elements have one location
                arm = ",".join(case.patterns) if shared and case.patterns else "taken" if case.patterns else "else"
                mark(case, f"{location} {arm}")

    def emit_marked(self: Any, line: Any) -> None:
        mark_switches(self.contents)
        for wire in waiting:
            line("attribute \\keep 1")
            line(wire)
        waiting.clear()
        process(self, line)

    with (
        mock.patch.object(tracer, "get_src_loc", _location),
        mock.patch.object(_nir.Matches, "__init__", record_location),
        mock.patch.object(rtlil.Process, "emit", emit_marked),
    ):
        yield arms


def to_rtlil(component: wiring.Component, name: str) -> str:
    """`hw.emit.to_rtlil` with source locations, markers, and the list of markers as comments."""
    with marked() as arms:
        text = emit.to_rtlil(component, name, locations=True)
    return text + "".join(f"# {MARK}{number} {arm}\n" for number, arm in enumerate(arms))


def rtlil_to_verilog(text: str, name: str) -> str:
    """Verilog of the output of `to_rtlil`, with `src` attributes and the list of markers at its end."""
    markers = [line for line in text.splitlines() if line.startswith(f"# {MARK}")]
    body = emit.rtlil_to_verilog(text, name, clean_up=_CLEAN_UP, attributes=True)
    return body + "".join(f"//{line[1:]}\n" for line in markers)


_SOURCE = re.compile(r'\(\* src = "([^"]*)" \*\)')
_ASSIGNED = re.compile(rf"\\{re.escape(MARK)}(\d+) +<?= ")
_MARKER = re.compile(rf"// {re.escape(MARK)}(\d+) (.*)")
_DECLARED = re.compile(r"\s*(?:input|output|inout|wire|reg)\b.*?(\\\S+|\w+) *(?:=.*|\[[^]]*\])?;")


@dataclass(frozen=True)
class SourceMap:
    """Source locations: of arms (`location arm`) and multiplexers by Verilog line, of signals by module and name."""

    arms: dict[int, str]
    choices: dict[int, str]
    signals: dict[tuple[str, str], str]


@cache
def read(file: Path) -> SourceMap:
    """Read the source map of a Verilog file of `rtlil_to_verilog`."""
    lines = file.read_text().splitlines()
    markers = {match[1]: match[2] for match in map(_MARKER.match, lines) if match}
    arms: dict[int, str] = {}
    choices: dict[int, str] = {}
    signals: dict[tuple[str, str], str] = {}
    module, source = "", "?:0"
    for number, line in enumerate(lines, start=1):
        if match := re.match(r"module (\S+?) ?\(", line):
            module = match[1].removeprefix("\\")
        if match := _ASSIGNED.search(line):
            arms[number] = markers[match[1]]
        elif " ? " in line and (match := _SOURCE.search(line.split(" ? ", 1)[1])):
            choices[number] = tidy(match[1])
        elif match := re.fullmatch(r"\s*\(\* src = \"([^\"]*)\" \*\)", line):
            source = match[1]
        elif match := _DECLARED.fullmatch(line):
            signals.setdefault((module, match[1].removeprefix("\\")), tidy(source))
            source = "?:0"
    return SourceMap(arms, choices, signals)


def tidy(source: str) -> str:
    """The first location of a yosys `src` attribute `a|b|...`, with a relative path."""
    file, _, position = source.split("|")[0].rpartition(":")
    return f"{relative(file)}:{position}"
