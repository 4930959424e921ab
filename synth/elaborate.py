"""RTLIL of a unit in a configuration, kept until a source file that the unit comes from changes."""

from __future__ import annotations

import ast
import importlib.metadata
import json
from functools import cache
from pathlib import Path

from hw import emit, registry
from hw.config import Config
from util.files import ROOT, build_root, digest, write


@cache
def sources(module: str) -> frozenset[Path]:
    """The project's files that `module` comes from: its own, and those of all that it imports."""
    found: dict[str, Path] = {}
    waiting = [module]
    for name in waiting:
        path = next((p for p in _candidates(name) if p.exists()), None)
        if name in found or path is None:
            continue
        found[name] = path
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                waiting += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                waiting += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return frozenset(found.values())


def _candidates(module: str) -> tuple[Path, Path]:
    path = ROOT.joinpath(*module.split("."))
    return path.with_suffix(".py"), path / "__init__.py"


def rtlil(unit: str, config: Config) -> str:
    """RTLIL of `unit`; raises `ValueError` for an unknown unit or a configuration that it cannot be built for."""
    entry = registry.unit(unit)
    files = sorted(sources(entry.module) | sources(emit.__name__))
    options = json.dumps(getattr(entry.build, "keywords", {}), default=str)
    texts = [path.read_text() for path in files]
    key = digest(unit, json.dumps(config.asdict()), options, importlib.metadata.version("amaranth"), *texts)
    path = build_root() / "rtlil" / f"{unit}-{key}.il"
    if not path.exists():
        write(path, emit.to_rtlil(entry.build(config), unit))
    return path.read_text()
