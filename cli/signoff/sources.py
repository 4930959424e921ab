"""Hashes of the source files on which evidence depends. Evidence is stale when its hash differs from the present one.

A hash covers a module and all modules of the project that it imports, directly or through others. Docstrings, lines of
comments and empty lines do not change it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

from hw.registry import RegisteredUnit
from util.files import ROOT, digest

# folders that do not change the result of a check: the hardware has its own hash, coverage only observes, and a proof
# depends on the specifications of its own unit
IGNORED = ("hw", "util", "sim/coverage", "sim/formal/specifications")
MODULE = re.compile(r"[a-z_]\w*(\.[a-z_]\w*)+")  # a text that can be the name of a module
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def design_hash(unit: RegisteredUnit) -> str:
    """Hash of the sources of a unit: its module and what it imports, and the presets."""
    return _hash([path(unit.module), path("hw.config")], in_design)


def check_hash(entries: Iterable[str]) -> str:
    """Hash of the sources of a check, such as test files and golden models, without those of the hardware.

    entries  files or folders relative to the root; a folder stands for all its Python files

    Of the folders of `IGNORED`, only the files among the entries count.
    """
    return _hash_of(tuple(entries))


def in_design(file: Path) -> bool:
    """True for a file of the hardware."""
    return file.is_relative_to(ROOT / "hw")


def _files(entry: Path) -> list[Path]:
    return sorted(entry.rglob("*.py")) if entry.is_dir() else [entry]


@cache
def _hash_of(names: tuple[str, ...]) -> str:
    files = {file for name in names for file in _files(ROOT / name)}
    ignored = [ROOT / name for name in IGNORED]
    return _hash(files, lambda file: file in files or not any(file.is_relative_to(folder) for folder in ignored))


def _hash(entries: Iterable[Path], include: Callable[[Path], bool]) -> str:
    files = sorted(file for file in closure(entries, include) if include(file))
    return digest(*(text for file in files for text in (str(file.relative_to(ROOT)), code(file))))


def closure(entries: Iterable[Path], include: Callable[[Path], bool] = lambda file: True) -> set[Path]:
    """The files `entries` and all files of the project that they import; files that are not included end a path."""
    result: set[Path] = set()
    waiting = list(entries)
    while waiting:
        file = waiting.pop()
        if file not in result:
            result.add(file)
            if include(file):
                waiting += imports(file)
    return result


@cache
def imports(file: Path) -> tuple[Path, ...]:
    """Files of the project that a file imports anywhere in its text, or names as a module that the simulator loads."""
    result: dict[Path, None] = {}
    constants = (node.value for node in ast.walk(_statements(file)[0]) if isinstance(node, ast.Constant))
    loaded = (path(value) for value in constants if isinstance(value, str) and MODULE.fullmatch(value))
    result |= {file: None for file in loaded if file.is_file()}
    for node in _statements(file):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            for candidate in (path(name), ROOT.joinpath(*name.split("."), "__init__.py")):
                if candidate.is_file():
                    result[candidate] = None
    return tuple(result)


def path(module: str) -> Path:
    """File of a module by its dotted name."""
    return ROOT.joinpath(*module.split(".")).with_suffix(".py")


@cache
def code(file: Path) -> str:
    """Text of a Python file without docstrings, lines that begin with #, empty lines and spaces at the end of lines."""
    documented: set[int] = set()
    for node in _statements(file):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            documented |= set(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
    rows = enumerate(file.read_text().splitlines(), start=1)
    kept = (line for row, line in rows if row not in documented and line.lstrip()[:1] not in ("", "#"))
    return "\n".join(map(str.rstrip, kept))


@cache
def _statements(file: Path) -> tuple[ast.Module | ast.stmt, ...]:
    """The module and all its statements, those inside others included."""
    result: list[ast.Module | ast.stmt] = [ast.parse(file.read_text())]
    for node in result:
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            for inner in getattr(node, name, ()):
                result += inner.body if isinstance(inner, ast.ExceptHandler | ast.match_case) else [inner]
    return tuple(result)
