"""Verilog that knows where in the Python source it comes from, for coverage.

Amaranth writes the source of operators and signals into RTLIL, but not that of `If` and `Case`, and yosys drops most
of it again where it turns processes into multiplexers. Here processes stay, and every arm of one sets a wire of its own
whose name is looked up in the list at the end of the Verilog.

Amaranth has no public interface for this: `marked` replaces functions of `amaranth.hdl._nir` and `amaranth.back.rtlil`
while it is active. It is the only place that does so; `tests/test_library_internals.py` checks these functions.
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
    """Patterns of a case, and where they were written."""

    place: str


@cache
def _columns(code: CodeType) -> list[int]:
    return [(start or 0) + 1 for _, _, start, _ in code.co_positions()]


def _place(src_loc_at: int = 0) -> tuple[str, str]:
    """As `tracer.get_src_loc`, with the column: one line may hold several multiplexers."""
    frame = sys._getframe(2 + src_loc_at)
    return relative(frame.f_code.co_filename), f"{frame.f_lineno}.{_columns(frame.f_code)[frame.f_lasti // 2]}"


def relative(file: str) -> str:
    """A source file from the project's root on, or from where its package is installed."""
    path = Path(file)
    if path.is_relative_to(ROOT) and "site-packages" not in path.parts:
        return str(path.relative_to(ROOT))
    return file.rpartition("site-packages/")[2]


@contextmanager
def marked() -> Iterator[list[str]]:
    """Within it Amaranth marks every arm; the list gets `place arm`, in the order of the marks' numbers."""
    arms: list[str] = []
    matches, process = _nir.Matches.__init__, rtlil.Process.emit
    waiting: list[str] = []

    def keep_place(self: Any, module_idx: int, *, value: Any, patterns: Any, src_loc: Any) -> None:
        matches(self, module_idx, value=value, patterns=patterns, src_loc=src_loc)
        if src_loc:  # what Amaranth puts in itself, as for a ResetInserter, has none
            self.patterns = _Patterns(patterns)
            self.patterns.place = ":".join(map(str, src_loc))

    def mark(case: Any, text: str) -> None:
        case.contents.insert(0, rtlil.Assignment(f"\\{MARK}{len(arms)}", "1'1"))
        waiting.append(f"wire width 1 \\{MARK}{len(arms)}")
        arms.append(text)

    def mark_switches(contents: Any) -> None:
        for switch in [one for one in contents if isinstance(one, rtlil.Switch)]:
            places = [getattr(case.patterns, "place", None) for case in switch.cases if case.patterns]
            if not (places and all(places)):
                continue
            if all(case.patterns for case in switch.cases):
                switch.default()
            for case in switch.cases:
                mark_switches(case.contents)
                own = case.patterns.place if case.patterns else places[0]
                shared = places.count(own) > 1  # an Array: all its elements stand in one place
                how = ",".join(case.patterns) if shared and case.patterns else "taken" if case.patterns else "else"
                mark(case, f"{own} {how}")

    def emit_marked(self: Any, line: Any) -> None:
        mark_switches(self.contents)
        for wire in waiting:
            line("attribute \\keep 1")
            line(wire)
        waiting.clear()
        process(self, line)

    with (
        mock.patch.object(tracer, "get_src_loc", _place),
        mock.patch.object(_nir.Matches, "__init__", keep_place),
        mock.patch.object(rtlil.Process, "emit", emit_marked),
    ):
        yield arms


def to_rtlil(component: wiring.Component, name: str) -> str:
    """As `hw.emit.to_rtlil`, with sources, marks, and their list as comments."""
    with marked() as arms:
        text = emit.to_rtlil(component, name, locations=True)
    return text + "".join(f"# {MARK}{number} {arm}\n" for number, arm in enumerate(arms))


def rtlil_to_verilog(text: str, name: str) -> str:
    """Verilog of what `to_rtlil` made, with the list of marks at its end and the `src` attributes that yosys keeps."""
    listed = [line for line in text.splitlines() if line.startswith(f"# {MARK}")]
    body = emit.rtlil_to_verilog(text, name, clean_up=_CLEAN_UP, attributes=True)
    return body + "".join(f"//{line[1:]}\n" for line in listed)


_SOURCE = re.compile(r'\(\* src = "([^"]*)" \*\)')
_MARKED = re.compile(rf"\\{re.escape(MARK)}(\d+) +<?= ")
_LISTED = re.compile(rf"// {re.escape(MARK)}(\d+) (.*)")
_DECLARED = re.compile(r"\s*(?:input|output|inout|wire|reg)\b.*?(\\\S+|\w+) *(?:=.*|\[[^]]*\])?;")


@dataclass(frozen=True)
class Places:
    """Where Verilog comes from: by its lines `place arm` and places of multiplexers, by module and name signals."""

    arms: dict[int, str]
    choices: dict[int, str]
    signals: dict[tuple[str, str], str]


@cache
def places(file: Path) -> Places:
    """The places of Verilog that `rtlil_to_verilog` made."""
    lines = file.read_text().splitlines()
    listed = {found[1]: found[2] for found in map(_LISTED.match, lines) if found}
    arms: dict[int, str] = {}
    choices: dict[int, str] = {}
    signals: dict[tuple[str, str], str] = {}
    module, source = "", "?:0"
    for number, line in enumerate(lines, start=1):
        if found := re.match(r"module (\S+?) ?\(", line):
            module = found[1].removeprefix("\\")
        if found := _MARKED.search(line):
            arms[number] = listed[found[1]]
        elif " ? " in line and (found := _SOURCE.search(line.split(" ? ", 1)[1])):
            choices[number] = tidy(found[1])
        elif found := re.fullmatch(r"\s*\(\* src = \"([^\"]*)\" \*\)", line):
            source = found[1]
        elif found := _DECLARED.fullmatch(line):
            signals.setdefault((module, found[1].removeprefix("\\")), tidy(source))
            source = "?:0"
    return Places(arms, choices, signals)


def tidy(source: str) -> str:
    """One place out of yosys's `a|b|...`; installed packages' files from the package on."""
    file, _, position = source.split("|")[0].rpartition(":")
    return f"{relative(file)}:{position}"
